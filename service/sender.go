package service

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// maxTurn is how many outlets of one connection have a turn before those of the
// next connection.
const maxTurn = 256

// sender gives outlets their turns to send, with a few goroutines for all: a turn
// never blocks. One goroutine for each subscription would cost more to wake than
// there is to do, so whoever is woken meanwhile joins the turn of its connection,
// whose messages grpc then writes together.
type sender struct {
	mu    sync.Mutex // guards what follows
	spawn func(run func())
	queue []*connection
	// running is how many goroutines there are, and stopped, once somebody waits for
	// that, is told when there is none.
	running int
	stopped *sync.Cond
}

// outbox has the outlets of a connection that may have something to send.
type outbox struct {
	mu    sync.Mutex // guards what follows
	woken []*outlet
	// queued is true while the connection is in the sender's queue, or has its turn.
	queued bool
	// all are the outlets that have not ended. While there are any, lookTimer has looked
	// set, and all of them are then asked whether they have been idle. One timer for
	// all: heartbeats of thousands of calls, each at its own moment, cost as much as
	// thousands of frames, and together little.
	all       []*outlet
	lookTimer *time.Timer
	looked    bool

	// turn are those whose turn it is, from the first that has not had it. It belongs
	// to whoever took the connection from the queue.
	turn  []*outlet
	first int
}

// wake has an outlet looked at soon. It does not block.
func (s *sender) wake(o *outlet) {
	if o.woken.Swap(true) {
		return
	}
	if c := o.flight.connection; c.outbox.add(o) {
		s.push(c)
	}
}

// join makes o one of the outlets of its connection, until it leaves.
func (s *sender) join(o *outlet) {
	c := o.flight.connection
	b := &c.outbox
	b.mu.Lock()
	defer b.mu.Unlock()
	o.seat = len(b.all)
	b.all = append(b.all, o)
	switch {
	case len(b.all) > 1: // looked at before this one is due
	case b.lookTimer == nil:
		b.lookTimer = time.AfterFunc(o.server.cfg.Heartbeat, func() { s.look(c) })
	default:
		b.lookTimer.Reset(o.server.cfg.Heartbeat)
	}
}

func (b *outbox) leave(o *outlet) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.all) - 1
	b.all[o.seat] = b.all[last]
	b.all[o.seat].seat = o.seat
	b.all[last] = nil
	if b.all = b.all[:last]; last == 0 {
		b.all = nil
		b.lookTimer.Stop()
	}
}

// look has all outlets of a connection looked at soon.
func (s *sender) look(c *connection) {
	b := &c.outbox
	b.mu.Lock()
	b.looked = true
	queued := b.queued
	b.queued = true
	b.mu.Unlock()
	if !queued {
		s.push(c)
	}
}

// lookAtAll adds the outlets that have been idle to those whose turn comes, and sets
// when to look again, if it is time to. An outlet cannot be asked under the lock,
// which it takes under its own.
func (b *outbox) lookAtAll(now time.Time) {
	all := b.toLookAt()
	if len(all) == 0 {
		return
	}
	var next time.Time
	due := all[:0]
	for _, o := range all {
		idle, at := o.look(now)
		if idle && !o.woken.Swap(true) {
			due = append(due, o)
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken = append(b.woken, due...)
	if len(b.all) > 0 {
		b.lookTimer.Reset(next.Sub(now))
	}
}

// toLookAt returns all outlets if they are to be looked at.
func (b *outbox) toLookAt() []*outlet {
	b.mu.Lock()
	defer b.mu.Unlock()
	looked := b.looked
	b.looked = false
	if !looked {
		return nil
	}
	return slices.Clone(b.all)
}

// add reports whether the connection has to be queued.
func (b *outbox) add(o *outlet) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken = append(b.woken, o)
	queued := b.queued
	b.queued = true
	return !queued
}

// next returns whose turn it is: nobody's, maybe, as long as ok is true, since those who
// were asked to be looked at may have nothing to do. Then the connection still counts as
// queued, and must go back into the queue; if ok is false it must not.
func (b *outbox) next(now time.Time) (turn []*outlet, ok bool) {
	if b.first == len(b.turn) {
		b.lookAtAll(now)
		if !b.swap() {
			return nil, false
		}
	}
	turn = b.turn[b.first:min(b.first+maxTurn, len(b.turn))]
	b.first += len(turn)
	return turn, true
}

// swap begins with those who have been woken. It reports false, and takes the connection
// as no longer queued, if there is nobody, and nobody to look at either.
func (b *outbox) swap() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.woken) == 0 && !b.looked {
		b.queued = false
		return false
	}
	b.turn, b.woken, b.first = b.woken, b.turn[:0], 0
	return true
}

func (s *sender) push(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, c)
	if s.running < runtime.GOMAXPROCS(0) {
		s.running++
		s.spawn(s.run)
	}
}

// wait waits until there is no goroutine. Turns of outlets that have ended may
// come later; they do nothing.
func (s *sender) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped == nil {
		s.stopped = sync.NewCond(&s.mu)
	}
	for s.running > 0 {
		s.stopped.Wait()
	}
}

// run gives connections their turns until there is none in the queue.
func (s *sender) run() {
	for c := s.pop(nil); c != nil; {
		now := time.Now()
		turn, ok := c.outbox.next(now)
		if !ok {
			c = s.pop(nil)
			continue
		}
		for i, o := range turn {
			turn[i] = nil
			o.woken.Store(false)
			o.turn(now)
		}
		c = s.pop(c)
	}
}

// pop returns the next connection; again, if not nil, goes to the end of the queue.
func (s *sender) pop(again *connection) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if again != nil {
		s.queue = append(s.queue, again)
	}
	if len(s.queue) == 0 {
		s.queue = nil
		if s.running--; s.running == 0 && s.stopped != nil {
			s.stopped.Broadcast()
		}
		return nil
	}
	c := s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	return c
}
