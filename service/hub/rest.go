package hub

import "slices"

// resting are subscriptions that want no frames for the time being. Nothing wakes
// them but the status, and the loss of an ephemeral frame that they need, which ends
// them. It is guarded by the stream's mutex.
type resting struct {
	waiters
	// least is not more than the number of the last ephemeral frame that any of them
	// had.
	least uint64
}

// restLocked has a subscription wait that stands before frames.
func (s *Subscription) restLocked() (Delivery, result) {
	t := s.tail
	if t.resting == nil {
		t.resting = &resting{}
	}
	if len(t.resting.list) == 0 || s.had < t.resting.least {
		t.resting.least = s.had
	}
	s.waitLocked(&t.resting.waiters)
	return Delivery{}, waits
}

func (t *tail) wakeRestingLocked(hooks *hooks) {
	if t.resting != nil {
		t.resting.wake(hooks)
	}
}

// wakeLostLocked wakes those who rest and can not go on.
func (t *tail) wakeLostLocked(hooks *hooks) {
	r := t.resting
	if r == nil || len(r.list) == 0 || r.least >= t.ephemerals.lost {
		return
	}
	least := t.ephemerals.last
	for _, s := range slices.Clone(r.list) {
		if s.missesLocked() {
			r.remove(s)
			hooks.add(s)
			continue
		}
		least = min(least, s.had)
	}
	r.least = least
}
