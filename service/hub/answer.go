package hub

import (
	"errors"
	"slices"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// pending is a subscription that waits for a load.
type pending struct {
	start Start
	sub   *Subscription
	// first is true for a new subscription. A running one is placed anew because a
	// page could not be read.
	first bool
	// until is how long a new subscription bears a store that answers from
	// another server.
	until time.Time
}

// answer is a place in a tail, and what a new subscription is told of it.
type answer struct {
	tail       *tail
	after      backlog.Position
	gap        *Gap
	subscribed Subscribed
}

// answerLocked answers a start from the tail, without a Gap; ok is false if
// that needs a read: the tail was not confirmed under the current listening, is
// known to be behind, or does not hold the start.
func (s *stream) answerLocked(start Start, listening uint64) (a answer, ok bool) {
	t := s.current
	if t == nil || s.confirmed != listening || !s.held.explained() {
		return answer{}, false
	}
	if t.own == 0 {
		return s.answerWaitingLocked(start)
	}
	lower := t.lower(s.state.Backlog, s.notBeforeLocked())
	after, ok := t.begin(start, lower)
	if !ok {
		return answer{}, false
	}
	return newAnswer(t, after, start, t.head, lower+1), true
}

func (s *stream) answerWaitingLocked(start Start) (answer, bool) {
	t := s.current
	switch {
	case start.kind == startBehind:
		return answer{}, false
	case start.kind != startAfter:
		return newAnswer(t, backlog.Position{}, start, s.state.Head, s.state.Head.Sequence+1), true
	case start.position.IsZero() && !s.state.Exists:
		return newAnswer(t, backlog.Position{}, start, s.state.Head, 1), true
	case s.closed == nil:
		return answer{}, false
	}
	lower := s.closed.lower(s.state.Backlog, s.notBeforeLocked())
	after, ok := s.closed.begin(start, lower)
	if !ok {
		return answer{}, false
	}
	return newAnswer(s.closed, after, start, s.closed.head, lower+1), true
}

// begin returns the position after which a start begins in the tail; lower is
// the sequence after which it may.
func (t *tail) begin(start Start, lower uint64) (backlog.Position, bool) {
	switch start.kind {
	case startLive:
		return t.head, true
	case startLast:
		return t.at(max(lower, minus(t.head.Sequence, start.number)))
	case startAfter:
		p, ok := t.at(start.position.Sequence)
		return p, ok && p == start.position && p.Sequence >= lower
	case startBehind:
		return t.at(max(lower, start.number))
	default:
		return t.at(lower)
	}
}

func newAnswer(t *tail, after backlog.Position, start Start, head backlog.Position, oldest uint64) answer {
	return answer{tail: t, after: after, subscribed: Subscribed{
		Head:        head,
		Oldest:      oldest,
		ResumeAfter: after,
		Resumed:     start.kind == startAfter,
	}}
}

// verdictLocked turns a verdict on a load that was just integrated into an
// answer.
func (s *stream) verdictLocked(v Verdict, state backlog.StreamState) answer {
	a := answer{tail: s.current, after: v.After, gap: v.Gap}
	if state.Closed && !v.Waits && s.closed != nil {
		a.tail = s.closed
	}
	a.subscribed = Subscribed{
		Head:        state.Head,
		Oldest:      oldest(state, v.Waits),
		ResumeAfter: v.After,
		Resumed:     v.Resumed,
	}
	if v.Gap != nil {
		a.subscribed.ResumeAfter = v.Gap.Requested
	}
	return a
}

// judgeLocked answers everybody of a batch from the load made for them. Those
// for whom it does not suffice wait for the next, and all for the tail to reach what
// was left out of it; or, if the listening has ended meanwhile, for the next load.
func (s *stream) judgeLocked(batch []*pending, l backlog.Loaded, listening uint64, hooks *hooks) {
	lacks := s.lacksLocked(l)
	awaited := lacks && !s.hub.away.Load()
	for _, p := range batch {
		v := Judge(p.start, l)
		if v.Lacks != 0 {
			p.start = behind(v.Lacks)
			s.pending = append(s.pending, p)
			continue
		}
		switch {
		case awaited:
			s.placements = append(s.placements, placement{p, v, l.State, s.current, listening})
		case lacks:
			s.pending = append(s.pending, p)
		default:
			p.place(s.verdictLocked(v, l.State), hooks)
		}
	}
}

// answerPendingLocked answers from the tail whoever can be.
func (s *stream) answerPendingLocked(listening uint64, hooks *hooks) {
	waiting := s.pending[:0]
	for _, p := range s.pending {
		if p.sub.closed {
			continue
		}
		if a, ok := s.answerLocked(p.start, listening); ok {
			p.place(a, hooks)
			continue
		}
		waiting = append(waiting, p)
	}
	clear(s.pending[len(waiting):])
	s.pending = waiting
	if len(waiting) > 0 {
		s.queueLoadLocked()
	}
}

// abandonLocked lets go of subscriptions that were closed before they began, so that
// those of a client that changes its mind again and again do not pile up while the
// store is slow.
func (s *stream) abandonLocked() {
	const few = 64
	if s.abandoned++; s.abandoned < max(few, len(s.pending)/2) {
		return
	}
	s.abandoned = 0
	s.pending = slices.DeleteFunc(s.pending, func(p *pending) bool { return p.sub.closed })
}

// place lets the subscription begin, or go on. The stream's mutex is held.
func (p *pending) place(a answer, hooks *hooks) {
	if p.sub.closed {
		return
	}
	p.sub.placeLocked(a, p.first)
	hooks.add(p.sub)
}

// failLocked tells new subscriptions that their load failed. Running ones wait
// for the next, and so do new ones while the store answers from another server,
// which passes when its connections have been renewed.
func (s *stream) failLocked(batch []*pending, err error, hooks *hooks) (waiting bool) {
	now := time.Now()
	for _, p := range batch {
		switch {
		case p.sub.closed:
		case !p.first, errors.Is(err, backlog.ErrOtherServer) && now.Before(p.until):
			s.pending = append(s.pending, p)
		default:
			p.sub.err = err
			hooks.add(p.sub)
		}
	}
	if len(s.pending) > 0 {
		s.queueLoadLocked()
		return true
	}
	return false
}
