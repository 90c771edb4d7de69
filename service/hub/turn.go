package hub

import "github.com/fanfare-io/fanfare/backlog"

// turn is a Gap and the place after it. Without a reason it is only the place.
type turn struct {
	gap   Gap
	tail  *tail
	after backlog.Position
	// unannounced has the subscription told, before that, that it gets no ephemeral
	// frames.
	unannounced bool
}

// turnToNextLocked prepares the way into the tail after a cut one.
func (s *Subscription) turnToNextLocked() {
	t, next := s.tail, s.tail.next
	s.turn = &turn{tail: next, after: next.start, gap: Gap{
		Reason:      t.reason,
		Requested:   s.cursor,
		Oldest:      next.start.Sequence + 1,
		Head:        next.head,
		ResumeAfter: next.start,
	}}
}

// turnLocked hands over the Gap and moves the cursor, in one, once there is no
// ephemeral frame left in the tail that it leaves.
func (s *Subscription) turnLocked(maxBytes int) (Delivery, result) {
	t := s.turn
	if t.unannounced {
		t.unannounced = false
		return s.outageLocked(), delivered
	}
	if t.tail != s.tail && s.had < s.tail.ephemerals.last {
		if d, result := s.mixedLocked(maxBytes); result != again {
			return d, result
		}
	}
	s.turn = nil
	s.enterLocked(t.tail, t.after)
	if t.gap.Reason == 0 {
		return Delivery{}, again
	}
	s.mark, s.caughtUp = t.tail.head.Sequence, false
	return Delivery{Last: t.after, Notice: t.gap}, delivered
}

// placeLocked puts the subscription where a load or the tail said.
func (s *Subscription) placeLocked(a answer, first bool) {
	s.judging = false
	if first {
		s.subscribed = &a.subscribed
		s.subscribed.Ephemeral = s.stream.marked
		s.stream.roster.add(s)
		s.enterLocked(a.tail, a.subscribed.ResumeAfter)
		// What came before is not for this subscription.
		s.had, s.began = a.tail.ephemerals.last, a.tail.head.Sequence
		s.mark, s.status = s.began, s.hub.statusAtPlacement()
	}
	switch {
	case a.gap != nil:
		s.turn = &turn{gap: *a.gap, tail: a.tail, after: a.after}
	case a.tail != s.tail && s.had < s.tail.ephemerals.last:
		s.turn = &turn{tail: a.tail, after: a.after}
	case first && s.stream.unannouncedLocked():
		s.turn = &turn{tail: a.tail, after: a.after}
	default:
		s.enterLocked(a.tail, a.after)
	}
	if s.turn != nil {
		s.turn.unannounced = first && s.stream.unannouncedLocked()
	}
}

// enterLocked moves the cursor into a tail. All its ephemeral frames are for a
// subscription that was in another.
func (s *Subscription) enterLocked(t *tail, cursor backlog.Position) {
	s.leavePageLocked()
	s.cursor = cursor
	if t == s.tail {
		return
	}
	s.leaveTailLocked()
	t.readers++
	s.tail, s.had, s.began = t, 0, 0
}

func (s *Subscription) leaveTailLocked() {
	if s.waitsIn != nil {
		s.waitsIn.remove(s)
	}
	if t := s.tail; t != nil {
		s.tail = nil
		t.readers--
		s.stream.giveUpLocked(t)
	}
}

func (s *Subscription) leavePageLocked() {
	if s.waitsIn != nil {
		s.waitsIn.remove(s)
	}
	if p := s.page; p != nil {
		s.page = nil
		s.hub.leavePageLocked(p)
	}
}

func (s *Subscription) waitLocked(w *waiters) {
	if s.waitsIn == w {
		return
	}
	if s.waitsIn != nil {
		s.waitsIn.remove(s)
	}
	w.add(s)
}
