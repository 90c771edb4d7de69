package main

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// drainingReason is the reason of the status with which a draining server ends
// a call.
const drainingReason = "DRAINING"

// lineOutcomes gathers what became of lines. Answers may come in any order and
// are settled in that of the lines, so a run may print as it goes; at most
// maxLinesInFlight of them wait for the answer to an earlier line.
type lineOutcomes struct {
	// next is the first line that is not settled.
	next uint64
	// waiting are answers to later lines.
	waiting map[uint64]*fanfarev1.PublishStreamResponse
	// stored, refused and unknown are the settled lines; missing are those of the
	// latter two that were never answered.
	stored, refused, unknown, missing lineSet
	// first is the first line that was answered with an error.
	first *failedLine
	// done is what a line is that was published: "stored", or of ephemeral frames
	// "published".
	done string
}

func newLineOutcomes(done string) *lineOutcomes {
	return &lineOutcomes{done: done, next: 1, waiting: map[uint64]*fanfarev1.PublishStreamResponse{}}
}

// add takes an answer and returns those that are settled by it, in the order of
// their lines. An answer to what cannot have been sent is an error.
func (o *lineOutcomes) add(answer *fanfarev1.PublishStreamResponse) (settled []*fanfarev1.PublishStreamResponse, err error) {
	number := answer.GetNumber()
	if number < o.next || number-o.next >= maxLinesInFlight || o.waiting[number] != nil {
		return nil, errStrayAnswer
	}
	o.waiting[number] = answer
	for o.waiting[o.next] != nil {
		settled = append(settled, o.settle(o.next))
		o.next++
	}
	return settled, nil
}

// settle files the answer to a line.
func (o *lineOutcomes) settle(line uint64) *fanfarev1.PublishStreamResponse {
	answer := o.waiting[line]
	delete(o.waiting, line)
	failed := answer.GetError()
	if failed == nil {
		o.stored.add(line)
		return answer
	}
	f := &failedLine{line, failed, o.done}
	switch {
	case o.first == nil:
		o.first = f // it speaks for itself
	case f.uncertain():
		o.unknown.add(line)
	default:
		o.refused.add(line)
	}
	return answer
}

// end settles everything up to the last line that was sent, and returns the
// answers among it. refused says that no line without an answer was stored.
func (o *lineOutcomes) end(last uint64, refused bool) (settled []*fanfarev1.PublishStreamResponse) {
	for ; o.next <= last; o.next++ {
		if o.waiting[o.next] != nil {
			settled = append(settled, o.settle(o.next))
			continue
		}
		o.missing.add(o.next)
		if refused {
			o.refused.add(o.next)
		} else {
			o.unknown.add(o.next)
		}
	}
	return settled
}

// texts say which lines were stored, may have been, and were not.
func (o *lineOutcomes) texts(sent sentLines) []string {
	if sent.count == 0 {
		return []string{"nothing was sent"}
	}
	var texts []string
	if !o.refused.empty() {
		either := ""
		if o.first != nil && !o.first.uncertain() {
			either = " either"
		}
		texts = append(texts, o.refused.were()+" not "+o.done+either)
	}
	switch {
	case !o.stored.empty():
		texts = append(texts, o.stored.were()+" "+o.done)
	case o.unknown.empty() && (o.first == nil || !o.first.uncertain()):
		texts = append(texts, "no line was "+o.done)
	default:
		texts = append(texts, "no line is known to be "+o.done)
	}
	if !o.unknown.empty() {
		texts = append(texts, o.unknown.String()+" may have been "+o.done)
	}
	if !sent.all && sent.err == nil {
		texts = append(texts, fmt.Sprintf("what follows line %d was not sent", sent.count))
	}
	return texts
}

// advice says how to publish the rest of the input, if it is known where that
// begins: after lines that are all stored, with none of which it is not known.
func (o *lineOutcomes) advice(sent sentLines) []string {
	uncertain := !o.unknown.empty() || o.first != nil && o.first.uncertain()
	stored := o.stored.ranges
	if uncertain || len(stored) != 1 || stored[0].first != 1 || sent.all && stored[0].last == sent.count {
		return nil
	}
	return []string{fmt.Sprintf("to go on: tail -n +%d FILE | fanfare publish …", stored[0].last+1)}
}

// failedLine is a line that was answered with an error.
type failedLine struct {
	line uint64
	err  *fanfarev1.Error
	// done is that of lineOutcomes.
	done string
}

// uncertain reports whether the line may have been stored nevertheless.
func (f *failedLine) uncertain() bool {
	code := codes.Code(f.err.GetCode())
	return code == codes.Unknown || code == codes.Internal
}

func (f *failedLine) text() string {
	reason := ""
	if r := f.err.GetReason(); r != fanfarev1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		reason = strings.TrimPrefix(r.String(), "ERROR_REASON_")
	}
	became := "was not "
	if f.uncertain() {
		became = "may have been "
	}
	became += f.done
	return fmt.Sprintf("line %d %s: %s %s", f.line, became, f.err.GetMessage(), codeText(codes.Code(f.err.GetCode()), reason))
}

// lineSet is a set of lines, as ranges. Lines are added in ascending order.
type lineSet struct{ ranges []lineRange }

type lineRange struct{ first, last uint64 }

func (s *lineSet) add(line uint64) {
	if n := len(s.ranges); n > 0 && s.ranges[n-1].last+1 == line {
		s.ranges[n-1].last = line
		return
	}
	s.ranges = append(s.ranges, lineRange{line, line})
}

func (s *lineSet) empty() bool { return len(s.ranges) == 0 }

// single reports whether the set is one line.
func (s *lineSet) single() bool {
	return len(s.ranges) == 1 && s.ranges[0].first == s.ranges[0].last
}

// String is "line 2" or "lines 1, 3-5 and 9".
func (s *lineSet) String() string {
	parts := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		if parts[i] = fmt.Sprint(r.first); r.last > r.first {
			parts[i] = fmt.Sprintf("%d-%d", r.first, r.last)
		}
	}
	if s.single() {
		return "line " + parts[0]
	}
	text := parts[len(parts)-1]
	if n := len(parts) - 1; n > 0 {
		text = strings.Join(parts[:n], ", ") + " and " + text
	}
	return "lines " + text
}

// were is the beginning of a sentence about the set.
func (s *lineSet) were() string {
	if s.single() {
		return s.String() + " was"
	}
	return s.String() + " were"
}
