package clientlib

import (
	"context"
	"slices"
	"sync"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	// maxAsked is how many subscriptions of a session wait for Subscribed at a time, so
	// that a client that comes back with all of its own does not ask for them at once.
	maxAsked = 1000
	// creditShare is the part of a subscription's limit that is taken before it is
	// credited: fewer requests, and the server never waits for the last byte.
	creditShare = 4
)

// session carries subscriptions over one call, which it makes again when it ends.
type session struct {
	client *Client
	// joined has a token when there may be a member to make a call for.
	joined chan struct{}
	// work has a token when there may be something to send.
	work chan struct{}

	// mu guards what follows, and the tracks of the members. A queue's mutex may be
	// locked under it.
	mu      sync.Mutex
	members map[*member]struct{}
	running bool
	// refused is true once a server said that it has no Session.
	refused bool

	// What follows is of the current call.

	// connected is true while there is one.
	connected bool
	// numbers are those in use. nil is a subscription that was left and is not over yet:
	// its number must not be used again.
	numbers map[uint32]*member
	last    uint32
	// asked is how many members wait for Subscribed.
	asked int
	// Requests to send; subscribes come last.
	unsubscribes []uint32
	credits      []*member
	subscribes   []*member
	// retryIn is what Closing asked for.
	retryIn time.Duration
	// token is to be sent; empty: none is. authenticated gets when the one that was sent
	// expires.
	token         string
	authenticated chan time.Time
	// denied has a token when the source may have another one, which allows what the
	// session's does not.
	denied chan struct{}
}

// phase is where a member stands in the current call.
type phase uint8

const (
	// resting: there is no call, or a pause goes on.
	resting phase = iota
	// queued: it is among subscribes.
	queued
	// asking: it has a number, and the server has not answered.
	asking
	// active: Subscribed has come.
	active
)

// member is a subscription in a session. The session's mutex guards it.
type member struct {
	*Subscription
	// alone gives it a call of its own, unless the client is closed.
	alone func() bool
	// stop undoes that the end of its context has it leave; false if it does already.
	stop     func() bool
	recovery recovery
	phase    phase
	number   uint32
	// pause runs while it rests by itself; nil otherwise.
	pause *time.Timer
	// credited is true while it is among credits.
	credited bool
}

func newSession(c *Client) *session {
	return &session{client: c, joined: make(chan struct{}, 1), work: make(chan struct{}, 1), denied: make(chan struct{}, 1), members: map[*member]struct{}{}}
}

// join takes a subscription in until ctx ends, unless a server has no Session.
func (s *session) join(ctx context.Context, sub *Subscription) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused || s.client.isClosed() {
		return false
	}
	if !s.running {
		if s.running = s.client.run(context.Background(), s.run); !s.running {
			return false
		}
	}
	m := &member{Subscription: sub, recovery: s.client.newRecovery()}
	m.alone = func() bool { return s.client.run(ctx, m.run) }
	sub.consumed = func() { s.credit(m) }
	s.members[m] = struct{}{}
	m.stop = context.AfterFunc(ctx, func() { s.leave(m, context.Cause(ctx)) })
	s.enqueueLocked(m)
	signal(s.joined)
	return true
}

// leave takes a member out whose context has ended for a cause.
func (s *session) leave(m *member, cause error) {
	s.mu.Lock()
	if _, in := s.members[m]; !in {
		s.mu.Unlock()
		return
	}
	s.abandonLocked(m)
	s.removeLocked(m)
	s.mu.Unlock()
	m.queue.drop(cause)
	close(m.left)
}

// enqueueLocked has a member subscribe, if there is a call and no pause.
func (s *session) enqueueLocked(m *member) {
	if s.connected && m.phase == resting && m.pause == nil {
		m.phase = queued
		s.subscribes = append(s.subscribes, m)
		signal(s.work)
	}
}

// abandonLocked has the server end a member's subscription, if it has one.
func (s *session) abandonLocked(m *member) {
	if m.number != 0 {
		s.numbers[m.number] = nil
		s.unsubscribes = append(s.unsubscribes, m.number)
		signal(s.work)
	}
	s.restLocked(m)
}

// endedLocked notes that a member's subscription is over, and its number free.
func (s *session) endedLocked(m *member) {
	delete(s.numbers, m.number)
	s.restLocked(m)
}

func (s *session) restLocked(m *member) {
	if m.phase == asking {
		s.asked--
		signal(s.work)
	}
	m.phase, m.number = resting, 0
}

func (s *session) removeLocked(m *member) {
	delete(s.members, m)
	if m.pause != nil {
		m.pause.Stop()
	}
}

// finishLocked takes a member out that has come to its end, after what is queued.
func (s *session) finishLocked(m *member, err error) {
	s.removeLocked(m)
	m.stop()
	m.cancel(nil)
	m.queue.finish(err)
	close(m.left)
}

// pauseLocked has a member subscribe again after a pause.
func (s *session) pauseLocked(m *member, d time.Duration) {
	m.pause = time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, in := s.members[m]; in {
			m.pause = nil
			s.enqueueLocked(m)
		}
	})
}

// credit has the server told of what a member's consumer took.
func (s *session) credit(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (m.phase == asking || m.phase == active) && !m.credited {
		m.credited = true
		s.credits = append(s.credits, m)
		signal(s.work)
	}
}

// next returns the next request to send; nil if there is none now.
func (s *session) next() *fanfarev1.SessionRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if request := s.authenticateLocked(); request != nil {
		return request
	}
	if len(s.unsubscribes) > 0 {
		number := s.unsubscribes[0]
		s.unsubscribes = s.unsubscribes[1:]
		return &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Unsubscribe{
			Unsubscribe: &fanfarev1.SessionUnsubscribe{Number: number},
		}}
	}
	for len(s.credits) > 0 {
		m := s.credits[0]
		s.credits = s.credits[1:]
		m.credited = false
		if m.phase != asking && m.phase != active {
			continue
		}
		if bytes := m.queue.takenBytes(); bytes > 0 {
			return &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Credit{
				Credit: &fanfarev1.SessionCredit{Number: m.number, Bytes: uint64(bytes)},
			}}
		}
	}
	for len(s.subscribes) > 0 && s.asked < maxAsked {
		m := s.subscribes[0]
		s.subscribes = s.subscribes[1:]
		if m.phase == queued {
			return s.subscribeLocked(m)
		}
	}
	return nil
}

func (s *session) subscribeLocked(m *member) *fanfarev1.SessionRequest {
	for inUse := true; inUse; _, inUse = s.numbers[s.last] {
		if s.last++; s.last == 0 {
			s.last++
		}
	}
	s.numbers[s.last] = m
	s.asked++
	m.phase, m.number = asking, s.last
	credit := uint64(m.queue.restart())
	return &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{
		Subscribe: &fanfarev1.SessionSubscribe{Number: m.number, Request: m.track.begin(), Credit: &credit},
	}}
}

// beginCall has all members subscribe that do not rest.
func (s *session) beginCall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected, s.numbers, s.retryIn = true, map[uint32]*member{}, 0
	s.token, s.authenticated = "", make(chan time.Time, 1)
	for m := range s.members {
		s.enqueueLocked(m)
	}
}

// endCall puts all members to rest and returns those that wait for the next call now.
func (s *session) endCall() (interrupted []*member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members {
		if m.pause == nil {
			interrupted = append(interrupted, m)
		}
		m.phase, m.number, m.credited = resting, 0, false
	}
	s.connected, s.numbers, s.asked = false, nil, 0
	s.unsubscribes, s.credits, s.subscribes = nil, nil, nil
	return interrupted
}

// endAll takes all members out: after what is queued, or at once.
func (s *session) endAll(err error, atOnce bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.members {
		if atOnce {
			m.queue.drop(err)
		}
		s.finishLocked(m, err)
	}
}

// fallBack gives each member a call of its own, for good.
func (s *session) fallBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = true
	for m := range s.members {
		if !m.stop() {
			continue // it is leaving
		}
		s.removeLocked(m)
		if !m.alone() {
			m.end(ErrClosed)
		}
	}
}

func (s *session) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.members) == 0
}

// addressees are the members that a response is for. The mutex is held.
func (s *session) addresseesLocked(numbers []uint32) []*member {
	if len(numbers) == 0 {
		numbers = slices.Collect(func(yield func(uint32) bool) {
			for n := range s.numbers {
				if !yield(n) {
					return
				}
			}
		})
	}
	to := make([]*member, 0, len(numbers))
	for _, n := range numbers {
		if m := s.numbers[n]; m != nil {
			to = append(to, m)
		}
	}
	return to
}
