package servicetest

import (
	"slices"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// ordered, resumable and explicit walk each subscriber's events.

func ordered(run Run) []string {
	var v violations
	v = append(v, ascending(run)...)
	v = append(v, agreement(run)...)
	return append(v, sendingOrder(run)...)
}

// ascending: no frame comes after one with the same or a higher sequence, unless
// a notice moved the position.
func ascending(run Run) []string {
	var v violations
	for _, s := range run.Subscribers {
		var last uint64
		for _, e := range s.Events {
			switch e.Kind {
			case SawSubscribed, SawGap:
				last = e.Position.Sequence
			case SawFrame:
				if e.Position.Sequence <= last {
					v.add("%s of %s got %s after sequence %d", s.Name, s.Stream, e.Position, last)
				}
				last = e.Position.Sequence
			}
		}
	}
	return v
}

// agreement: one position, one content, for whoever saw it.
func agreement(run Run) []string {
	var v violations
	holds := map[rowKey]Content{}
	agree := func(who string, stream backlog.StreamName, p backlog.Position, c Content) {
		key := rowKey{stream, p}
		if other, known := holds[key]; known && other != c {
			v.add("%s has another content at %s of %s than others", who, p, stream)
			return
		}
		holds[key] = c
	}
	for _, p := range run.Publishes {
		if p.stored() {
			agree(p.Publisher, p.Stream, p.Position, p.Content)
		}
	}
	eachFrame(run, func(s Subscriber, e Event) { agree(s.Name, s.Stream, e.Position, e.Content) })
	return v
}

// sendingOrder: a stream keeps the order of each publisher. Streams that were
// closed in the run start from 1 again and are compared within an epoch only.
func sendingOrder(run Run) []string {
	type source struct {
		publisher string
		stream    backlog.StreamName
	}
	closed := renumbered(run)
	var v violations
	last := map[source]backlog.Position{}
	for _, p := range run.Publishes {
		if !p.stored() || p.Duplicate {
			continue
		}
		from := source{p.Publisher, p.Stream}
		before := last[from]
		comparable := !closed[p.Stream] || before.Epoch == p.Position.Epoch
		if comparable && p.Position.Sequence <= before.Sequence {
			v.add("%s published %s of %s after %s", p.Publisher, p.Position, p.Stream, before)
		}
		last[from] = p.Position
	}
	return v
}

// renumbered are the streams of which somebody saw that they had been closed.
func renumbered(run Run) map[backlog.StreamName]bool {
	closed := map[backlog.StreamName]bool{}
	for _, s := range run.Subscribers {
		for _, e := range s.Events {
			changed := e.Kind == SawGap && e.Reason == fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED
			closed[s.Stream] = closed[s.Stream] || e.Kind == SawClosed || changed
		}
	}
	return closed
}

func resumable(run Run) []string {
	var v violations
	byStream, closed := confirmed(run), renumbered(run)
	for _, s := range run.Subscribers {
		v = append(v, resumes(s)...)
		if !closed[s.Stream] {
			v = append(v, wholeRest(s, byStream[s.Stream])...)
		}
	}
	return v
}

// resumes: Subscribed answers a position with that position.
func resumes(s Subscriber) []string {
	var v violations
	for i, e := range s.Events {
		if e.Kind != SawSubscribed || e.Start != StartAfter {
			continue
		}
		gapFollows := i+1 < len(s.Events) && s.Events[i+1].isLoss()
		// A connection may break before the Gap.
		cut := i+1 == len(s.Events) || s.Events[i+1].Kind == SawEnd
		switch {
		// 0-0 is answered with the position before frame 1 of the numbering.
		case e.Resumed && e.Position != e.Asked && !(e.Asked.IsZero() && e.Position.Sequence == 0):
			v.add("%s of %s asked for what follows %s and was resumed after %s", s.Name, s.Stream, e.Asked, e.Position)
		case !e.Resumed && !gapFollows && !cut:
			v.add("%s of %s asked for what follows %s, was not resumed, and was not told why", s.Name, s.Stream, e.Asked)
		}
	}
	return v
}

// wholeRest: a subscriber that stayed has every confirmed frame after its first
// position, unless it was told of gaps, of a stream that has one numbering.
func wholeRest(s Subscriber, published []Publish) []string {
	// Earlier calls may have failed.
	first := slices.IndexFunc(s.Events, func(e Event) bool { return e.Kind == SawSubscribed })
	if !s.Complete || first < 0 {
		return nil
	}
	for _, e := range s.Events {
		if e.isLoss() {
			return nil
		}
	}
	var v violations
	from := s.Events[first].Position.Sequence
	got := contents(s)
	for _, p := range published {
		if p.Position.Sequence > from && !got[p.Content] {
			v.add("%s of %s, from sequence %d on, did not get %s", s.Name, s.Stream, from, p.Position)
		}
	}
	return v
}

func explicit(run Run) []string {
	var v violations
	for _, s := range run.Subscribers {
		var last backlog.Position
		for _, e := range s.Events {
			switch e.Kind {
			case SawSubscribed, SawGap:
				last = e.Position
			case SawFrame:
				if e.Position.Sequence > last.Sequence+1 {
					v.add("%s of %s got %s after %s without a Gap", s.Name, s.Stream, e.Position, last)
				}
				last = e.Position
			case SawEnd:
				if !e.Explained {
					v.add("a call of %s of %s ended at %s without a reason", s.Name, s.Stream, last)
				}
			}
		}
	}
	return v
}
