package service

import (
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/fanfare-io/fanfare/service/hub"
)

// member is a subscription of a session.
type member struct {
	number uint32
	// at is where it stands in its cohort.
	at     int32
	cohort *cohort
	// limited is true if it gets frames only while it has credit, which is how many bytes
	// it may still be sent. The last message may take more than that.
	limited bool
	credit  int64
}

// mayTake reports whether the member may be sent frames.
func (m *member) mayTake() bool { return !m.limited || m.credit > 0 }

// cohort has members of a session whose subscriptions stand at the same place of the
// same stream, so that one of the hub serves them all and what follows is sent once. A
// subscription begins in a cohort of its own, and joins another when it has got to the
// same place. Who runs out of credit leaves with those who do at the same time. It is
// guarded by the session's outlet.mu.
type cohort struct {
	session *session
	sub     *hub.Subscription
	// members are none once it has ended; they are maxNumbers at most.
	members []*member
	// told is the count of what the session was told when it began; see session.silent.
	told uint32
	// paused is true while none of its members may be sent frames. All of them may
	// otherwise.
	paused bool
	// isLive is true while it is among session.live.
	isLive bool
	// queued is true while it takes part in a round. It is not guarded.
	queued atomic.Bool
}

// newCohortLocked has members served by a subscription. It is woken by its caller, who
// knows whether they may be sent frames.
func (s *session) newCohortLocked(sub *hub.Subscription, members ...*member) *cohort {
	c := &cohort{session: s, sub: sub, told: s.told}
	c.add(members)
	sub.SetWake(c.wake)
	return c
}

// wake is the hook of the subscription.
func (c *cohort) wake() {
	c.session.ready.push(c)
	c.session.wake()
}

func (c *cohort) isEmpty() bool { return len(c.members) == 0 }

func (c *cohort) add(members []*member) {
	for _, m := range members {
		m.cohort, m.at = c, int32(len(c.members)) //nolint:gosec // maxNumbers at most
		c.members = append(c.members, m)
	}
}

func (c *cohort) next() (hub.Delivery, bool, error) {
	if c.paused {
		return c.sub.TryNotice()
	}
	return c.sub.TryNext(maxMessageBytes)
}

// numbers encodes the numbers of its members.
func (c *cohort) numbers() *mem.SliceBuffer {
	size := 0
	for _, m := range c.members {
		size += protowire.SizeVarint(uint64(m.number))
	}
	b := make([]byte, 0, sizeField(responseNumbers, size))
	b = appendTag(b, responseNumbers, size)
	for _, m := range c.members {
		b = protowire.AppendVarint(b, uint64(m.number))
	}
	return (*mem.SliceBuffer)(&b)
}

// spend takes what was sent from the credit of the members.
func (c *cohort) spend(bytes int64) {
	for _, m := range c.members {
		if m.limited {
			m.credit -= bytes
		}
	}
}

// settleLocked parts those who may be sent frames from those who may not, if the cohort
// has both.
func (s *session) settleLocked(c *cohort) {
	n := 0
	for _, m := range c.members {
		if m.mayTake() == c.paused {
			n++
		}
	}
	switch n {
	case 0:
		return
	case len(c.members):
		s.pauseLocked(c, !c.paused)
		return
	}
	var stay, apart []*member
	for _, m := range c.members {
		if m.mayTake() == c.paused {
			apart = append(apart, m)
		} else {
			stay = append(stay, m)
		}
	}
	c.members = nil
	c.add(stay)
	other := s.newCohortLocked(c.sub.Split(n), apart...)
	other.told = c.told
	s.pauseLocked(other, !c.paused)
}

// pauseLocked has the members of a cohort be sent frames no longer, or again.
func (s *session) pauseLocked(c *cohort, paused bool) {
	c.paused = paused
	if paused {
		s.unlistLocked(c)
	} else {
		s.joinLocked(c, false)
	}
	if !c.isEmpty() {
		c.wake()
	}
}

// joinLocked has the members of a cohort join others that stand at the same place. If
// there are none others may join it, if it is at the end of what there is: there they
// all get to.
func (s *session) joinLocked(c *cohort, atEnd bool) {
	if c.isLive || c.paused || c.isEmpty() || len(c.members) == maxNumbers {
		return
	}
	name := c.sub.Stream()
	other := s.live.all[name]
	if other != nil && other != s.taken.cohort && len(other.members)+len(c.members) <= maxNumbers && other.sub.Join(c.sub) {
		other.told = max(other.told, c.told) // some may have to be told
		other.add(c.members)
		c.members = nil
		return
	}
	if other == nil || atEnd {
		if other != nil {
			other.isLive = false
		}
		c.isLive = true
		s.live.set(name, c)
	}
}

func (s *session) unlistLocked(c *cohort) {
	if c.isLive {
		c.isLive = false
		s.live.remove(c.sub.Stream())
	}
}

// removeLocked ends a subscription.
func (s *session) removeLocked(m *member) {
	c := m.cohort
	if len(c.members) == 1 {
		s.dropCohortLocked(c)
		return
	}
	s.forgetMemberLocked(m)
	last := len(c.members) - 1
	c.members[m.at] = c.members[last]
	c.members[m.at].at = m.at
	c.members[last] = nil
	c.members = c.members[:last]
	c.sub.Leave()
}

// dropCohortLocked ends the subscriptions of a cohort.
func (s *session) dropCohortLocked(c *cohort) {
	for _, m := range c.members {
		s.forgetMemberLocked(m)
	}
	s.unlistLocked(c)
	c.members = nil
	c.sub.Close()
	if s.taken.cohort == c && !s.taken.toAll { // what is for all is owed to the others
		s.taken = taken{}
	}
}

func (s *session) forgetMemberLocked(m *member) {
	s.members.remove(m.number)
	s.server.calls.Add(-1)
}

// endCohortLocked has the clients told why the subscriptions of a cohort have ended.
func (s *session) endCohortLocked(c *cohort, err error) {
	f := endingOf(c.sub, err)
	numbers := make([]uint32, len(c.members))
	for i, m := range c.members {
		numbers[i] = m.number
	}
	s.dropCohortLocked(c)
	s.endedLocked(f, numbers...)
}
