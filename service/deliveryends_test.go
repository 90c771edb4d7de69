package service

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Symptom: a client that took everything was ended as slow. Cause: a turn with nothing
// to send and four messages in flight counted as blocked, and went on counting when
// they had been taken, since only a send ended that.
func TestAClientThatTookEverythingIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, func(c *Config) { c.Heartbeat, c.WriteTimeout = time.Minute, 20*time.Second })
		s := backlog.StreamName{Channel: "quick"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		elapse(w.server.cfg.Heartbeat - time.Millisecond)
		call.takeAll()
		w.publishEach(s, maxInFlight)
		elapse(time.Millisecond) // the timer ticks, and finds nothing to do
		call.takeAll()
		elapse(w.server.cfg.WriteTimeout * 2)
		call.goesOn()
	})
}

// The same with a Progress as the last message in flight.
func TestAClientThatTookProgressIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, func(c *Config) { c.Heartbeat, c.WriteTimeout = time.Minute, 20*time.Second })
		s := backlog.StreamName{Channel: "quick"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight-1)
		elapse(w.server.cfg.Heartbeat)
		call.takeAll()
		elapse(w.server.cfg.WriteTimeout * 2)
		call.goesOn()
	})
}

// A client is slow that has taken nothing for the write timeout, and not one that
// takes a message now and then.
func TestAClientThatTakesLittleIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, func(c *Config) { c.Heartbeat = time.Hour })
		s := backlog.StreamName{Channel: "little"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, 20)
		for call.count < 20 {
			elapse(w.server.cfg.WriteTimeout / 3)
			select {
			case err := <-call.ended:
				t.Fatalf("it took %d, and ended with %+v", call.count, failureOf(err))
			default:
			}
			call.take(1)
		}
	})
}

// Nothing waits behind Closed, so nothing is slow: the call ends at once, though it
// may be long until the client knows.
func TestClosedEndsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "closed"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight-1)
		w.hub.Announce([]backlog.Announcement{{
			Kind: backlog.AnnounceClosed, Stream: s, OwnEpoch: fakeEpoch,
			Frame: backlog.Frame{Position: backlog.Position{Epoch: fakeEpoch, Sequence: maxInFlight - 1}},
		}})
		synctest.Wait()
		if n := call.inFlight(); n != maxInFlight {
			t.Fatalf("%d in flight", n)
		}
		began := time.Now()
		err := <-call.ended
		if took := time.Since(began); err != nil || took != 0 {
			t.Errorf("it ended after %s with %+v", took, err)
		}
	})
}

// The age of a blocked call gives its client no more time.
func TestAgeDoesNotProlongTheWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, func(c *Config) { c.MaxStreamAge = 20 * time.Second })
		s := backlog.StreamName{Channel: "age"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight+1)
		blocked := time.Now()
		f := failureOf(<-call.ended)
		if took := time.Since(blocked); took != w.server.cfg.WriteTimeout || f.reason != fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER {
			t.Errorf("it ended after %s with %+v", took, f)
		}
	})
}

// GOAWAY goes first at a drain, also for a call that was told to go before because of
// its age and is blocked.
func TestDrainOfAnOldBlockedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, func(c *Config) { c.MaxStreamAge = 10 * time.Second; c.Heartbeat = time.Hour })
		s := backlog.StreamName{Channel: "age"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight+1)
		elapse(15 * time.Second) // it is old, and has not been told yet
		began := time.Now()
		close(w.server.ending)
		f := failureOf(<-call.ended)
		if took := time.Since(began); took < 50*time.Millisecond || f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
			t.Errorf("it ended %s after the drain began with %+v", took, f)
		}
	})
}

// Symptom to avoid: all clients of a replica that is drained arrive at the others in the
// same moment.
func TestCallsOfADrainEndApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, parts = 1000, 10
		w := newDeliveryWorld(t, func(c *Config) { c.DrainGrace = time.Minute })
		var calls []*fakeCall
		for i := range n {
			call := w.subscribe(backlog.StreamName{Channel: "c", Scope: fmt.Sprint(i)}, newConnection(noConn{}))
			call.stream.takeEverything()
			calls = append(calls, call)
		}
		synctest.Wait()
		began := time.Now()
		close(w.server.ending)
		moments := make([]time.Duration, n)
		var ends sync.WaitGroup
		for i, call := range calls {
			ends.Go(func() {
				if f := failureOf(call.end()); f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
					t.Errorf("it ended with %+v", f)
				}
				moments[i] = time.Since(began)
			})
		}
		ends.Wait()
		// 500 a second.
		const spread = n * 2 * time.Millisecond
		first, last := slices.Min(moments), slices.Max(moments)
		if first < 50*time.Millisecond || last > spread+lastWords {
			t.Errorf("the first call ended after %s, the last after %s", first, last)
		}
		var histogram [parts]int
		for _, m := range moments {
			histogram[min(parts-1, int(m*parts/spread))]++
		}
		for part, count := range histogram {
			if count < n/parts/4 || count > n/parts*2 {
				t.Errorf("of %d calls %d ended in part %d: %v", n, count, part, histogram)
			}
		}
	})
}

// Symptom: at a drain some calls ended UNAVAILABLE without a reason, when the grace was
// over and their connections were closed; nobody had told them to go. Each had been woken
// by a frame, and its timer ticked while it waited for others of the connection to have
// their turns. Then the time at which all these turns had begun was taken for the present:
// nothing was due yet, and the timer, which had ticked, was taken to be still running.
func TestTimerTicksDuringTheTurnsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "c"}
		c := newConnection(noConn{})
		calls := []*fakeCall{w.subscribe(name, c), w.subscribe(name, c)}
		for _, call := range calls {
			call.takeAll()
		}
		slow := sync.OnceFunc(func() { <-time.After(time.Second) })
		for _, call := range calls {
			call.stream.eachSend(slow) // the turn of whichever comes first takes that long
		}
		close(w.server.ending)
		synctest.Wait()
		w.publish(name, 1) // before they are to be told
		began := time.Now()
		for _, call := range calls {
			f := failureOf(call.end())
			if took := time.Since(began); took > time.Second || f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
				t.Errorf("it ended after %s with %+v", took, f)
			}
			call.takeAll()
			call.saysGoodBye(uint64(call.count), f.retryIn)
		}
	})
}

// What was taken in the last moment, before the timer that is due is looked at, counts.
func TestTakenInTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "late"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight+1)
		elapse(w.server.cfg.WriteTimeout - time.Nanosecond)
		var runs []func()
		w.server.sender.setSpawn(func(run func()) { runs = append(runs, run) })
		call.take(maxInFlight)  // wakes it
		elapse(time.Nanosecond) // so does the timer
		synctest.Wait()
		w.server.sender.setSpawn(func(run func()) { go run() })
		for _, run := range runs {
			run()
		}
		synctest.Wait()
		call.goesOn()
	})
}

// A timer that ticks, or a wake-up of the hub, may come while a drain waits for the
// goroutines of calls, when the handler of the call has returned.
func TestLateTickWhileADrainWaits(t *testing.T) {
	w := newDeliveryWorld(t, nil)
	for range 2000 {
		ctx, cancel := context.WithCancel(context.Background())
		stream := &quotaStream{t: t, ctx: ctx, quota: writeQuota}
		d, err := w.server.begin(&fanfarev1.SubscribeRequest{Channel: "late"}, stream)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = d.serve()
		go d.tick() // as the runtime does, if Stop came too late
		w.server.loops.Wait()
	}
}

// A panic ends the call in whose turn it is, and no other.
func TestPanicInATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "panic"}
		c := newConnection(noConn{})
		before, panics, after := w.subscribe(s, c), w.subscribe(s, c), w.subscribe(s, c)
		w.publish(s, 1)
		for _, call := range []*fakeCall{before, panics, after} {
			call.takeAll()
		}
		panics.stream.eachSend(func() { panic("a bug") })
		w.publish(s, 1)
		if f := failureOf(panics.end()); f.code != codes.Internal || !bytes.Contains([]byte(f.Error()), []byte("a bug")) {
			t.Errorf("it ended with %+v", f)
		}
		w.publish(s, 1)
		for _, call := range []*fakeCall{before, after} {
			call.takeAll()
			call.isWhole(3)
		}
		panics.isWhole(1)
	})
}

// grpc forbids a send that begins, or goes on, after the handler has returned. The
// race detector sees one.
func TestNoSendAfterADeliveryEnded(t *testing.T) {
	w := newDeliveryWorld(t, nil)
	s := backlog.StreamName{Channel: "ends"}
	c := newConnection(noConn{})
	ctx, cancel := context.WithCancel(context.Background())
	published := make(chan struct{})
	go func() {
		defer close(published)
		for ctx.Err() == nil {
			w.publish(s, 1)
		}
	}()
	defer func() { cancel(); <-published }()
	const rounds, calls = 30, 20
	for round := range rounds {
		running := make([]*fakeCall, calls)
		for i := range running {
			running[i] = w.subscribe(s, c)
			running[i].stream.takeEverything()
		}
		eventually(t, "all calls get frames", func() bool {
			for _, call := range running {
				if call.stream.count.Load() < int64(3+round%5) {
					return false
				}
			}
			return true
		})
		for _, call := range running {
			call.cancel()
		}
		for _, call := range running {
			<-call.ended
		}
	}
}
