package clientlib

import (
	"math"
	"testing"
)

// A number is used again only when the server has said that it is over, and 0 never,
// however often they have all been used.
func TestNumbersInUseAreNotUsedAgain(t *testing.T) {
	c := New(nil)
	defer c.Close() //nolint:errcheck // it returns nil
	s := newSession(c)
	s.beginCall()
	subscribe := func() (*member, uint32) {
		m := &member{Subscription: &Subscription{queue: newQueue(1, Position{}), track: newTrack(Stream{}, Oldest())}}
		s.members[m] = struct{}{}
		s.enqueueLocked(m)
		return m, s.next().GetSubscribe().GetNumber()
	}
	left, first := subscribe()
	_, second := subscribe()
	s.abandonLocked(left)
	if got := s.next().GetUnsubscribe().GetNumber(); got != first {
		t.Fatalf("unsubscribes %d, want %d", got, first)
	}
	s.last = math.MaxUint32
	if _, got := subscribe(); got == 0 || got == first || got == second {
		t.Errorf("number %d is used again, beside %d that is in use and %d that is not over", got, second, first)
	}
	s.unsubscribedLocked([]uint32{first})
	s.last = math.MaxUint32
	if _, got := subscribe(); got != first {
		t.Errorf("number %d is used, and %d is free", got, first)
	}
}
