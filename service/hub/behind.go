package hub

import "github.com/fanfare-io/fanfare/backlog"

// behindChunk is how many subscriptions are looked at under the stream's mutex at a
// time: so many are a few tens of microseconds, which deliveries of the stream wait.
const behindChunk = 512

// roster has the subscriptions of a stream that have been placed and not closed, in
// no order. It is guarded by the stream's mutex, and nothing in it is touched by a
// delivery.
type roster struct {
	list []*Subscription
}

// add puts a subscription in, which must not be in.
func (r *roster) add(s *Subscription) {
	r.list = append(r.list, s)
	s.listed = int32(len(r.list))
}

// remove takes a subscription out, if it is in.
func (r *roster) remove(s *Subscription) {
	if s.listed == 0 {
		return
	}
	last := len(r.list) - 1
	moved := r.list[last]
	r.list[s.listed-1], moved.listed = moved, s.listed
	r.list[last] = nil
	r.list = r.list[:last]
	s.listed = 0
}

// Behind returns how many durable frames that are in the store the slowest
// subscription of the stream has not been handed yet: 0 without subscriptions. state
// is what a store has just said of the stream. Subscriptions that have not begun do
// not count, and what a Gap skips is not waited for.
//
// If all wait at the end of the tail, that takes no time. Otherwise every subscription
// is looked at, some at a time, so that deliveries go on in between.
func (h *Hub) Behind(state *backlog.StreamState) uint64 {
	s := h.resident(state.Stream)
	if s == nil {
		return 0
	}
	slowest := uint64(0)
	// From the end: a subscription that takes the place of one that is removed then
	// moves from what has been seen to what has not.
	for before := -1; before != 0; {
		slowest, before = s.behindBefore(state, slowest, before)
	}
	return slowest
}

// behindBefore looks at some subscriptions of the roster before a place, or -1 for its
// end, and returns the greatest distance and the place where to go on; 0 is the end.
func (s *stream) behindBefore(state *backlog.StreamState, slowest uint64, before int) (uint64, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.roster.list)
	if before < 0 {
		if t := s.current; t != nil && len(t.parked.list) == n && t.unseen(state) == 0 {
			return 0, 0
		}
		before = n
	}
	before = min(before, n)
	from := max(0, before-behindChunk)
	for _, sub := range s.roster.list[from:before] {
		slowest = max(slowest, sub.behindLocked(state))
	}
	return slowest, from
}

// behindLocked is how many durable frames the subscription has not been handed.
func (s *Subscription) behindLocked(state *backlog.StreamState) uint64 {
	t, cursor := s.tail, s.cursor
	if t == nil {
		return 0
	}
	if s.turn != nil {
		t, cursor = s.turn.tail, s.turn.after
	}
	behind := minus(t.head.Sequence, cursor.Sequence)
	for ; t.ending == endedCut; t = t.next {
		behind += minus(t.next.head.Sequence, t.next.start.Sequence)
	}
	return behind + t.unseen(state)
}

// unseen is how many frames of the tail's numbering, or of the one that it waits for,
// a store has beyond the tail's head.
func (t *tail) unseen(state *backlog.StreamState) uint64 {
	switch {
	case t.ending != 0 || !state.Exists:
		return 0
	case t.own == state.OwnEpoch:
		return minus(state.Head.Sequence, t.head.Sequence)
	case t.own == 0 && !state.Closed && t.successorOf != state.OwnEpoch:
		return state.Head.Sequence
	}
	return 0
}
