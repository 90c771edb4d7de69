package servicetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// Guarantee is one of Fanfare's guarantees: a definition and a validator over a
// recorded run, which returns what violates it.
type Guarantee struct {
	Name       string
	Definition string
	Validate   func(Run) []string
}

// Checks are the guarantees that a recorded run can prove broken.
var Checks = []Guarantee{
	{"Atomic", "Every frame that was received had been published, by an attempt that was neither refused nor rolled back.", atomicity},
	{"Acked", "A confirmed frame whose publishing began after a subscriber had read Subscribed reached that subscriber.", acked},
	{"Ordered", "On every subscription sequences ascend; all parties agree which content stands at a position; confirmed frames of one publisher to one stream stand in the order in which it sent them.", ordered},
	{"Once", "No subscriber got a position or a content twice, and no content stands at two positions.", once},
	{"Resumable", "A subscription from a position went on after that position, or said that it cannot; a subscriber got every confirmed frame after its first position.", resumable},
	{"Explicit", "Wherever a frame does not follow the subscriber's position, a Gap came between; every call that ended said why.", explicit},
	{"Kept", "A confirmed ephemeral frame reached, once, after what its publisher sent before and, unless a Gap came since, before what it sent later, every subscription that was acknowledged before its publishing began and ran on to a later one, unless that was told EPHEMERAL_MAYBE_MISSED since.", kept},
	{"Isolated", "In a window in which only other streams were held and other subscribers stalled, every publish was answered within 5 s, and every frame that was confirmed reached within 5 s every subscriber that had caught up.", isolated},
	{"Bounded", "No replica ever used more memory than its bound.", bounded},
	{"Frugal", "No replica ever had more than one listener connection.", frugal},
}

// Unbroken is for runs in which the backlog holds every frame.
var Unbroken = UnbrokenExcept(nil)

// UnbrokenExcept is for runs in which some streams are closed or bounded so that
// gaps are due, and the backlog holds every frame of the others.
func UnbrokenExcept(mayHaveGaps func(backlog.StreamName) bool) Guarantee {
	return Guarantee{"Unbroken", "No subscriber was told of a gap between durable frames of a stream whose backlog holds them all.", func(run Run) []string {
		return unbroken(run, mayHaveGaps)
	}}
}

// Verdict is what a validator says of a run.
type Verdict struct {
	Guarantee
	Violations []string
}

// Judge validates Checks, and more, over a run.
func Judge(run Run, more ...Guarantee) []Verdict {
	var verdicts []Verdict
	for _, g := range append(append([]Guarantee(nil), Checks...), more...) {
		verdicts = append(verdicts, Verdict{g, g.Validate(run)})
	}
	return verdicts
}

// Check reports every violation of the guarantees in a run, a few of each.
func Check(t testing.TB, run Run, more ...Guarantee) {
	t.Helper()
	Report(t, Judge(run, more...))
}

// Report fails t for violations, with a few of each guarantee.
func Report(t testing.TB, verdicts []Verdict) {
	t.Helper()
	const shown = 10
	for _, v := range verdicts {
		if len(v.Violations) == 0 {
			continue
		}
		list := strings.Join(v.Violations[:min(len(v.Violations), shown)], "\n  ")
		t.Errorf("%s is broken %d times. %s\n  %s", v.Name, len(v.Violations), v.Definition, list)
	}
}

// violations collects what is wrong.
type violations []string

func (v *violations) add(format string, args ...any) { *v = append(*v, fmt.Sprintf(format, args...)) }

// frameKey is a content on a stream.
type frameKey struct {
	stream  backlog.StreamName
	content Content
}

// rowKey is a position of a stream.
type rowKey struct {
	stream   backlog.StreamName
	position backlog.Position
}

// eachFrame visits the durable frames.
func eachFrame(run Run, visit func(s Subscriber, e Event)) {
	eachEvent(run, SawFrame, visit)
}

func eachEvent(run Run, kind EventKind, visit func(s Subscriber, e Event)) {
	for _, s := range run.Subscribers {
		for _, e := range s.Events {
			if e.Kind == kind {
				visit(s, e)
			}
		}
	}
}

func atomicity(run Run) []string {
	var v violations
	possible := map[bool]map[frameKey]bool{false: {}, true: {}} // by Ephemeral
	for _, p := range run.Publishes {
		of, key := possible[p.Ephemeral], frameKey{p.Stream, p.Content}
		of[key] = of[key] || p.Result == Confirmed || p.Result == Unknown
	}
	got := func(kind string, possible map[frameKey]bool) func(Subscriber, Event) {
		return func(s Subscriber, e Event) {
			stored, known := possible[frameKey{s.Stream, e.Content}]
			switch {
			case !known:
				v.add("%s got %s frame %s of %s, which nobody published", s.Name, kind, e.Position, s.Stream)
			case !stored:
				v.add("%s got %s frame %s of %s, which was refused or rolled back", s.Name, kind, e.Position, s.Stream)
			}
		}
	}
	eachFrame(run, got("durable", possible[false]))
	eachEvent(run, SawEphemeral, got("ephemeral", possible[true]))
	return v
}

func acked(run Run) []string {
	var v violations
	byStream := confirmed(run)
	for _, s := range run.Subscribers {
		since := lastBegin(s)
		if !s.Complete || since == 0 {
			continue
		}
		got := contents(s)
		for _, p := range byStream[s.Stream] {
			// A duplicate was stored by an earlier attempt, perhaps before.
			if p.Began > since && !p.Duplicate && !got[p.Content] {
				v.add("%s of %s did not get %s, whose publishing began after Subscribed", s.Name, s.Stream, p.Position)
			}
		}
	}
	return v
}

// lastBegin is when what a subscriber must get began to count: its first
// Subscribed, or its last Gap that may skip frames.
func lastBegin(s Subscriber) Tick {
	var since Tick
	for _, e := range s.Events {
		if e.isLoss() || e.Kind == SawSubscribed && since == 0 {
			since = e.Tick
		}
	}
	return since
}

// confirmed are the publishes of durable frames that were, by stream.
func confirmed(run Run) map[backlog.StreamName][]Publish {
	out := map[backlog.StreamName][]Publish{}
	for _, p := range run.Publishes {
		if p.stored() {
			out[p.Stream] = append(out[p.Stream], p)
		}
	}
	return out
}

// stored reports whether it is known that the frame was stored.
func (p *Publish) stored() bool { return p.Result == Confirmed && !p.Ephemeral }

func contents(s Subscriber) map[Content]bool {
	out := make(map[Content]bool, len(s.Events))
	for _, e := range s.Events {
		if e.Kind == SawFrame {
			out[e.Content] = true
		}
	}
	return out
}

func once(run Run) []string {
	var v violations
	at := map[frameKey]backlog.Position{}
	stands := func(who string, stream backlog.StreamName, c Content, p backlog.Position) {
		key := frameKey{stream, c}
		if other, known := at[key]; known && other != p {
			v.add("the content of %s of %s stands at %s, too (%s)", p, stream, other, who)
		}
		at[key] = p
	}
	for _, p := range run.Publishes {
		if p.stored() {
			stands(p.Publisher, p.Stream, p.Content, p.Position)
		}
	}
	for _, s := range run.Subscribers {
		positions := map[backlog.Position]bool{}
		got := map[Content]bool{}
		for _, e := range s.Events {
			if e.Kind != SawFrame {
				continue
			}
			if positions[e.Position] || got[e.Content] {
				v.add("%s got %s of %s twice", s.Name, e.Position, s.Stream)
			}
			positions[e.Position], got[e.Content] = true, true
			stands(s.Name, s.Stream, e.Content, e.Position)
		}
	}
	return v
}

func frugal(run Run) []string {
	var v violations
	for _, sample := range run.Samples {
		if sample.Connections > 1 {
			v.add("%s had %d listener connections", sample.Replica, sample.Connections)
		}
	}
	return v
}

func bounded(run Run) []string {
	var v violations
	for _, sample := range run.Memory {
		if sample.Bytes > sample.Bound {
			v.add("%s used %d bytes, and may use %d", sample.Replica, sample.Bytes, sample.Bound)
		}
	}
	return v
}

func unbroken(run Run, mayHaveGaps func(backlog.StreamName) bool) []string {
	var v violations
	for _, s := range run.Subscribers {
		if mayHaveGaps != nil && mayHaveGaps(s.Stream) {
			continue
		}
		for _, e := range s.Events {
			if e.isLoss() {
				v.add("%s of %s was told %s, to go on after %s", s.Name, s.Stream, e.Reason, e.Position)
			}
		}
	}
	return v
}
