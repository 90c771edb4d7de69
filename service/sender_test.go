package service

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// However many calls there are, and however they share connections, each has its
// turns, without any waiting.
func TestEveryDeliveryHasItsTurn(t *testing.T) {
	for _, tt := range []struct{ connections, calls int }{{1, 1000}, {2000, 1}, {30, 30}} {
		t.Run(fmt.Sprintf("%d of %d", tt.connections, tt.calls), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const frames = 3
				w := newDeliveryWorld(t, nil)
				s := backlog.StreamName{Channel: "crowd"}
				began := time.Now()
				var calls []*fakeCall
				for range tt.connections {
					c := newConnection(noConn{})
					for range tt.calls {
						calls = append(calls, w.subscribe(s, c))
					}
				}
				for range frames {
					w.publishEach(s, 1)
					for _, call := range calls {
						call.take(maxInFlight)
					}
				}
				for _, call := range calls {
					call.takeAll()
					call.isWhole(frames)
				}
				if waited := time.Since(began); waited != 0 {
					t.Errorf("some waited for %s", waited)
				}
			})
		})
	}
}

// A connection with many calls that have something to send holds up those of others
// for a chunk of them, and not for all.
func TestConnectionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const crowd, others = 10_000, 3
		w := newDeliveryWorld(t, nil)
		many, few := backlog.StreamName{Channel: "many"}, backlog.StreamName{Channel: "few"}
		w.publish(many, 1)
		w.publish(few, 1)
		var calls, late []*fakeCall
		c := newConnection(noConn{})
		for range crowd {
			calls = append(calls, w.subscribe(many, c))
		}
		for range others {
			late = append(late, w.subscribe(few, newConnection(noConn{})))
		}
		calls = append(calls, late...)
		synctest.Wait()
		for _, call := range calls {
			call.take(maxInFlight)
		}
		synctest.Wait()

		// Nobody sends until all have been woken, and then one goroutine does.
		var runs []func()
		w.server.sender.setSpawn(func(run func()) { runs = append(runs, run) })
		w.publish(many, 1) // the hub knows the streams, so it wakes their calls at once
		w.publish(few, 1)
		var order []*fakeCall
		for _, call := range calls {
			call.stream.eachSend(func() { order = append(order, call) })
		}
		for _, run := range runs {
			run()
		}
		w.server.sender.setSpawn(func(run func()) { go run() })

		if len(order) != len(calls) {
			t.Fatalf("%d sends for %d calls", len(order), len(calls))
		}
		for _, call := range late {
			if at := slices.Index(order, call); at >= crowd/10 {
				t.Errorf("%d sends went before that of another connection", at)
			}
		}
		for _, call := range calls {
			call.take(maxInFlight)
			call.isWhole(2)
		}
	})
}

func (s *sender) setSpawn(spawn func(func())) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spawn = spawn
}

// The sender has no more goroutines than there are processors, whatever there is to
// do, and none when there is nothing.
func TestSenderGoroutinesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections = 100
		w := newDeliveryWorld(t, nil)
		var alive, sending, most atomic.Int64
		w.server.sender.setSpawn(func(run func()) {
			w.server.loops.Go(func() {
				alive.Add(1)
				run()
				alive.Add(-1)
			})
		})
		s := backlog.StreamName{Channel: "crowd"}
		var calls []*fakeCall
		for range connections {
			calls = append(calls, w.subscribe(s, newConnection(noConn{})))
		}
		synctest.Wait()
		for _, call := range calls {
			call.stream.eachSend(func() {
				for n := sending.Add(1); ; {
					if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
						break
					}
				}
				runtime.Gosched()
				sending.Add(-1)
			})
		}
		for range 50 {
			w.publishEach(s, 1)
			if n := alive.Load(); n != 0 {
				t.Fatalf("%d goroutines run when there is nothing to send", n)
			}
			for _, call := range calls {
				call.take(maxInFlight)
			}
		}
		if n := most.Load(); n < 1 || n > int64(runtime.GOMAXPROCS(0)) {
			t.Errorf("%d goroutines sent at a time on %d processors", n, runtime.GOMAXPROCS(0))
		}
	})
}

// What comes while the frame before it is being sent gets a turn of its own.
func TestWokenDuringItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frames = 10
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "during"}
		w.publish(s, 1)
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		call.stream.takeEverything()
		call.stream.eachSend(func() {
			if w.head(s) < frames {
				w.publish(s, 1)
			}
		})
		before := call.stream.count.Load()
		w.publish(s, 1)
		synctest.Wait()
		if got := call.stream.count.Load() - before; got != frames-1 {
			t.Errorf("%d of %d frames were sent", got, frames-1)
		}
	})
}

// Whoever is woken, for whatever reason and at whatever moment of a turn, has another
// turn after that. In the last one of each call nothing else comes that would mend a
// wake-up which was lost.
func TestNoWakeIsLost(t *testing.T) {
	const connections, perConnection, streams, frames = 4, 5, 5, 200
	w := newDeliveryWorld(t, nil)
	name := func(i int) backlog.StreamName { return backlog.StreamName{Channel: fmt.Sprint("lost", i)} }
	var calls []*fakeCall
	for range connections {
		c := newConnection(noConn{})
		for i := range perConnection {
			calls = append(calls, w.subscribe(name(i%streams), c))
		}
	}
	var g sync.WaitGroup
	for i := range streams {
		g.Go(func() {
			for left := frames; left > 0; {
				n := min(left, 1+rand.IntN(3))
				w.publish(name(i), n)
				left -= n
				runtime.Gosched()
			}
		})
	}
	for i, call := range calls {
		g.Go(func() {
			deadline := time.Now().Add(time.Minute)
			for call.count < frames {
				if time.Now().After(deadline) {
					t.Errorf("call %d has %d of %d frames, and %d messages in flight", i, call.count, frames, call.inFlight())
					return
				}
				call.take(1 + rand.IntN(maxInFlight))
				runtime.Gosched()
			}
			call.isWhole(frames)
		})
	}
	g.Wait()
}

// Symptom: a connection fell silent for ever, frames and heartbeats, while its client and
// the server were well. Its timer had it looked at twice in quick succession, the second
// time while the outlets were being asked for the first. None of them had anything to do,
// so their turn was empty, and that was taken for the connection having nothing left:
// nobody had it in a queue any more, and nobody put it there, since it counted as queued.
func TestLookDuringALookEndsNoTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		c := newConnection(noConn{})
		s := w.session(c)
		elapse(time.Second)
		o := c.outbox.outlets()[0]
		o.mu.Lock() // nobody can ask it
		w.server.sender.look(c)
		for c.outbox.isLooked() {
			runtime.Gosched() // until it is being asked
		}
		w.server.sender.look(c)
		o.mu.Unlock()
		synctest.Wait()

		name := backlog.StreamName{Channel: "after"}
		s.subscribe(1, name)
		w.publish(name, 1)
		s.takeAll()
		s.isWhole(1, 1)
		elapse(w.server.cfg.Heartbeat * 9 / 8)
		if got := s.takeAll(); len(got) != 1 || got[0].GetProgress() == nil {
			t.Errorf("the heartbeat is %v", got)
		}
	})
}

func (b *outbox) isLooked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.looked
}

// What is in flight may land at the moment at which a turn finds that there is no room
// for more. Either the turn goes on or there is another.
func TestLandingWhileATurnFindsNoRoom(t *testing.T) {
	const rounds = 100_000
	w := newDeliveryWorld(t, nil)
	w.server.sender.setSpawn(func(func()) {}) // wake-ups are noted, and lead to nothing
	d, err := w.server.begin(&fanfarev1.SubscribeRequest{Channel: "landing"}, &quotaStream{t: t, ctx: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	var begun, landed atomic.Int64
	reaches := func(n *atomic.Int64, round int64) {
		for n.Load() < round {
			runtime.Gosched()
		}
	}
	var g sync.WaitGroup
	g.Go(func() {
		for round := range int64(rounds) {
			reaches(&begun, round+1)
			d.flight.Free()
			landed.Store(round + 1)
		}
	})
	now, lost := time.Now(), 0
	for round := range int64(rounds) {
		d.flight.Ref()
		d.woken.Store(false)
		begun.Store(round + 1)
		for range rand.IntN(30) { // a moment
			runtime.KeepAlive(d.woken.Load())
		}
		d.mu.Lock()
		d.large = true
		room := d.roomLocked(now)
		d.mu.Unlock()
		reaches(&landed, round+1)
		if !room && !d.woken.Load() {
			lost++
		}
	}
	g.Wait()
	if lost != 0 {
		t.Errorf("%d times of %d there would have been no other turn", lost, rounds)
	}
}
