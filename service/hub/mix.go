package hub

import "github.com/fanfare-io/fanfare/backlog"

// mixedLocked hands over what follows the cursor while there are ephemeral frames
// that the subscription has not had: those that are due, with the durable frames
// of the window between them, or a Gap for an outage. The result is again if it is
// nothing of this.
func (s *Subscription) mixedLocked(maxBytes int) (Delivery, result) {
	if s.missesLocked() {
		return s.endSlowLocked()
	}
	at, next := s.cursor, s.unhadLocked()
	if len(next) > 0 && next[0].entry == nil && s.dueLocked(&next[0], at) {
		s.had = next[0].number
		return s.outageLocked(), delivered
	}
	if maxBytes == 0 {
		if len(next) > 0 && s.dueLocked(&next[0], at) {
			return s.restLocked()
		}
		return Delivery{}, again
	}
	c := collector{maxBytes: maxBytes}
	for {
		if len(next) > 0 && s.dueLocked(&next[0], at) {
			if next[0].entry == nil || !c.add(next[0].entry) {
				break
			}
			s.had, next = next[0].number, next[1:]
			continue
		}
		e := s.windowLocked(at)
		if e == nil || !c.add(e) {
			break
		}
		at = e.position
	}
	if c.first == nil {
		return Delivery{}, again
	}
	return s.framesLocked(c.collected(), at), delivered
}

// missesLocked reports whether something was dropped that is for the subscription and
// that it has not had. What is for others only counts as had.
func (s *Subscription) missesLocked() bool {
	e := &s.tail.ephemerals
	switch {
	case s.had >= e.lost:
		return false
	case s.began <= e.lostReach, s.had < e.lostOutage:
		return true
	default:
		s.had = e.lost
		return false
	}
}

// unhadLocked returns the ephemeral frames that the subscription has not had,
// from the first on that is for it.
func (s *Subscription) unhadLocked() []ephemeral {
	next := s.tail.ephemerals.after(s.had)
	for len(next) > 0 && next[0].entry != nil && next[0].follows < s.began {
		s.had, next = next[0].number, next[1:]
	}
	return next
}

// dueLocked reports whether an ephemeral frame is next for who has had what is
// up to a position. What it follows may never come: in a tail that has ended, or
// that is being left.
func (s *Subscription) dueLocked(f *ephemeral, at backlog.Position) bool {
	t := s.tail
	switch {
	case s.turn != nil:
		return true
	case !s.caughtUp && at.Sequence >= s.mark:
		return false // CaughtUp is next
	default:
		return f.follows <= at.Sequence || (t.ending != 0 && at.Sequence >= t.head.Sequence)
	}
}

// windowLocked returns the durable frame after a position, nil if it is not in
// the window or is not to be delivered yet.
func (s *Subscription) windowLocked(at backlog.Position) *entry {
	t := s.tail
	switch {
	case s.turn != nil, s.page != nil, !s.caughtUp && at.Sequence >= s.mark:
		return nil
	case at.Sequence < t.base.Sequence, at.Sequence >= t.head.Sequence:
		return nil
	default:
		return t.entries[at.Sequence-t.base.Sequence]
	}
}

// outageLocked is what tells of an outage. The cursor stays.
func (s *Subscription) outageLocked() Delivery {
	t, state := s.tail, &s.stream.state
	head, oldest := t.head, t.lower(state.Backlog, s.stream.notBeforeLocked())+1
	if t.own == 0 {
		// As Subscribed: the stream's newest position is that of what was closed, of
		// which nothing is for who waits.
		head, oldest = state.Head, state.Head.Sequence+1
	}
	return Delivery{Last: s.cursor, Notice: Gap{
		Reason:      GapEphemeralMaybeMissed,
		Requested:   s.cursor,
		Oldest:      oldest,
		Head:        head,
		ResumeAfter: s.cursor,
	}}
}

func (s *Subscription) endSlowLocked() (Delivery, result) {
	s.hub.counts.slow.Add(1)
	s.err = ErrSlowSubscriber
	s.turn = nil
	s.leavePageLocked()
	s.leaveTailLocked()
	return Delivery{}, ended
}

// collector collects encoded frames of up to maxBytes together, at least one.
type collector struct {
	maxBytes, bytes int
	first           *entry
	frames          [][]byte // nil if first is all
}

func (c *collector) add(e *entry) bool {
	switch {
	case c.first == nil:
		c.first = e
	case c.bytes+e.bytes() > c.maxBytes:
		return false
	default:
		if c.frames == nil {
			c.frames = append(make([][]byte, 0, 8), c.first.frame[0])
		}
		c.frames = append(c.frames, e.frame[0])
	}
	c.bytes += e.bytes()
	return true
}

func (c *collector) collected() [][]byte {
	if c.frames == nil {
		return c.first.frame[:]
	}
	return c.frames
}
