package service

import (
	"runtime"
	"sync"
	"time"
)

// maxTurn is how many deliveries of one connection have a turn before those of the
// next connection.
const maxTurn = 256

// sender gives deliveries their turns to send, with a few goroutines for all: a turn
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

// outbox has the deliveries of a connection that may have something to send.
type outbox struct {
	mu    sync.Mutex // guards what follows
	woken []*delivery
	// queued is true while the connection is in the sender's queue, or has its turn.
	queued bool

	// turn are those whose turn it is, from the first that has not had it. It belongs
	// to whoever took the connection from the queue.
	turn  []*delivery
	first int
}

// wake has a delivery looked at soon. It does not block.
func (s *sender) wake(d *delivery) {
	if d.woken.Swap(true) {
		return
	}
	if c := d.flight.connection; c.outbox.add(d) {
		s.push(c)
	}
}

// add reports whether the connection has to be queued.
func (o *outbox) add(d *delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.woken = append(o.woken, d)
	queued := o.queued
	o.queued = true
	return !queued
}

// next returns whose turn it is, none if there is nobody any more.
func (o *outbox) next() []*delivery {
	if o.first == len(o.turn) && !o.swap() {
		return nil
	}
	turn := o.turn[o.first:min(o.first+maxTurn, len(o.turn))]
	o.first += len(turn)
	return turn
}

// swap begins with those who have been woken, unless there is nobody.
func (o *outbox) swap() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.woken) == 0 {
		o.queued = false
		return false
	}
	o.turn, o.woken, o.first = o.woken, o.turn[:0], 0
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

// wait waits until there is no goroutine. Turns of deliveries that have ended may
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
		turn := c.outbox.next()
		if turn == nil {
			c = s.pop(nil)
			continue
		}
		now := time.Now()
		for i, d := range turn {
			turn[i] = nil
			d.woken.Store(false)
			d.turn(now)
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
