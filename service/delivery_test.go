package service

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Whatever sizes frames have, and however slowly and irregularly the client takes
// them, no send blocks, and everything arrives, in order, once.
func TestNoTurnBlocks(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			const frames = 80
			random := rand.New(rand.NewPCG(seed, 0))
			w := newDeliveryWorld(t, func(c *Config) { c.WriteTimeout = time.Hour })
			for sequence := range uint64(frames) {
				w.store.sizes[sequence+1] = randomSize(random)
			}
			s := backlog.StreamName{Channel: "sizes"}
			w.publish(s, random.IntN(frames/2)) // to be replayed
			call := w.subscribe(s, newConnection(noConn{}))
			for tries := 0; call.count < frames; tries++ {
				if tries == 100_000 {
					t.Fatalf("seed %d: %d of %d frames have arrived", seed, call.count, frames)
				}
				w.publish(s, min(random.IntN(4), frames-int(w.head(s))))
				call.take(random.IntN(5))
				if random.IntN(3) > 0 {
					synctest.Wait()
				}
				if random.IntN(20) == 0 {
					elapse(w.server.cfg.Heartbeat) // Progress between the frames
				}
			}
			call.isWhole(frames)
			call.cancel()
			if code := failureOf(call.end()).code; code != codes.Canceled {
				t.Errorf("seed %d: it ended with %s", seed, code)
			}
		})
	}
}

// randomSize is from 1 byte to 1 MiB, each order of magnitude as often.
func randomSize(random *rand.Rand) int {
	return min(maxTestPayload, 1<<random.IntN(21)+random.IntN(1<<random.IntN(15)))
}

// Symptom: all deliveries of a server stood still because of one client. Cause: a
// small message was sent while one of 1 MiB was in flight, of which grpc admits one at
// a time. SendMsg blocked, and with it who sends for all.
func TestSmallFrameBehindALargeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		w.store.sizes[2] = maxTestPayload
		s := backlog.StreamName{Channel: "large"}
		stalled, other := w.subscribe(s, newConnection(noConn{})), w.subscribe(s, newConnection(noConn{}))
		stalled.takeAll()
		w.publish(s, 4)
		other.takeAll()
		other.isWhole(4)
		for _, want := range []int{1, 1, 1} { // the first, the large one alone, those after it
			synctest.Wait()
			if got := stalled.inFlight(); got != want {
				t.Errorf("%d messages are in flight, want %d", got, want)
			}
			stalled.take(want)
		}
		stalled.isWhole(4)
		w.publishEach(s, 2*maxInFlight) // as before
		if got := stalled.inFlight(); got != maxInFlight {
			t.Errorf("%d small messages are in flight", got)
		}
	})
}

// A client that takes nothing has four messages at most in flight, and delays no
// other: of its connection or of another.
func TestStalledCallDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frames = 500
		w := newDeliveryWorld(t, nil)
		w.store.size = 4000
		s := backlog.StreamName{Channel: "stalled"}
		c := newConnection(noConn{})
		stalled := w.subscribe(s, c)
		others := []*fakeCall{w.subscribe(s, c), w.subscribe(s, c), w.subscribe(s, newConnection(noConn{}))}
		began := time.Now()
		for sent := 1; sent <= frames; sent++ {
			w.publish(s, 1)
			for i, other := range others {
				if other.takeAll(); other.count != sent {
					t.Fatalf("call %d has %d of %d frames", i, other.count, sent)
				}
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("others waited for %s", waited)
		}
		for _, other := range others {
			other.isWhole(frames)
		}
		if got := stalled.inFlight(); got != maxInFlight {
			t.Errorf("%d messages are in flight to the stalled one", got)
		}
		stalled.takeAll()
		stalled.isWhole(frames)
	})
}

// The write timeout counts from when something waits that cannot be sent, anew each
// time, and says where to resume: after what was handed over.
func TestWriteTimeoutOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		timeout := w.server.cfg.WriteTimeout
		s := backlog.StreamName{Channel: "slow"}
		call := w.subscribe(s, newConnection(noConn{}))
		for range 3 { // long idle, then almost too slow
			elapse(w.server.cfg.Heartbeat * 7 / 2)
			call.takeAll()
			w.publishEach(s, maxInFlight+1)
			elapse(timeout - time.Nanosecond)
			call.takeAll()
			synctest.Wait()
		}
		elapse(w.server.cfg.Heartbeat / 3)
		w.publishEach(s, maxInFlight)
		elapse(w.server.cfg.Heartbeat / 3)
		w.publishEach(s, 3) // the first of them waits
		blocked, handedOver := time.Now(), w.head(s)-3
		err := call.end()
		if took := time.Since(blocked); took != timeout {
			t.Errorf("it ended %s after it was blocked, the write timeout is %s", took, timeout)
		}
		f := failureOf(err)
		if f.reason != fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER || f.position.Sequence != handedOver {
			t.Errorf("it ended with %+v, after %d was handed over", f, handedOver)
		}
		call.takeAll()
		call.isWhole(int(handedOver))
	})
}

// A frame that is large waits for what is small. It was not handed over, though the
// subscription gave it away.
func TestWriteTimeoutBeforeALargeFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		w.store.sizes[2] = maxTestPayload
		s := backlog.StreamName{Channel: "slow"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, 2)
		if f := failureOf(call.end()); f.reason != fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER || f.position.Sequence != 1 {
			t.Errorf("it ended with %+v", f)
		}
		call.takeAll()
		call.isWhole(1)
	})
}

// Progress comes when nothing else did for the time of a heartbeat, and never while
// frames flow.
func TestHeartbeatOfAnIdleDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		beat := w.server.cfg.Heartbeat
		s := backlog.StreamName{Channel: "beats"}
		call := w.subscribe(s, newConnection(noConn{}))
		random := rand.New(rand.NewPCG(1, 0))
		const frames = 100
		for range frames {
			elapse(time.Duration(random.Int64N(int64(beat))))
			w.publish(s, 1)
			call.takeAll()
		}
		if got := call.beats(); len(got) != 0 {
			t.Fatalf("while frames came: %v", got)
		}
		for n := 1; n <= 3; n++ {
			elapse(beat - time.Nanosecond)
			if call.takeAll(); len(call.beats()) != n-1 {
				t.Errorf("heartbeat %d is early: %v", n, call.beats())
			}
			elapse(time.Nanosecond)
			call.takeAll()
			if got := call.beats(); len(got) != n || got[n-1].GetSequence() != frames {
				t.Errorf("%d times %s after the last frame: %v", n, beat, got)
			}
		}
		call.isWhole(frames)
	})
}

// A client with as much in flight as there may be, for which nothing waits, is not
// slow until the next heartbeat cannot be sent.
func TestHeartbeatOfAStalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "beats"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight)
		idle := time.Now()
		f := failureOf(call.end())
		if took, want := time.Since(idle), w.server.cfg.Heartbeat+w.server.cfg.WriteTimeout; took != want {
			t.Errorf("it ended after %s, want %s", took, want)
		}
		if f.reason != fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER || f.position.Sequence != maxInFlight {
			t.Errorf("it ended with %+v", f)
		}
	})
}

// At a drain a call is served until it is told to go, which is when GOAWAY has gone
// out, and told where it stands.
func TestDrainOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "drain"}
		call := w.subscribe(s, newConnection(noConn{}))
		w.publishEach(s, 2)
		call.takeAll()
		began := time.Now()
		close(w.server.ending)
		elapse(10 * time.Millisecond)
		w.publish(s, 1)
		f := failureOf(call.end())
		if took := time.Since(began); took < 50*time.Millisecond || took > 51*time.Millisecond {
			t.Errorf("it was told to go after %s", took)
		}
		if f.code != codes.Unavailable || f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING || f.retryIn <= 0 {
			t.Errorf("it ended with %+v", f)
		}
		call.takeAll()
		call.isWhole(3)
		call.saysGoodBye(3, f.retryIn)
	})
}

// A client that takes nothing has a moment at a drain, from when it should have been
// told to go, whenever it became blocked.
func TestDrainOfAStalledDelivery(t *testing.T) {
	for name, blockedFirst := range map[string]bool{"blocked before": true, "blocked by the good-bye": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDeliveryWorld(t, nil)
				s := backlog.StreamName{Channel: "drain"}
				call := w.subscribe(s, newConnection(noConn{}))
				call.takeAll()
				w.publishEach(s, maxInFlight)
				if blockedFirst {
					w.publishEach(s, 1)
					elapse(w.server.cfg.WriteTimeout / 3)
				}
				began := time.Now()
				close(w.server.ending)
				f := failureOf(call.end())
				if took := time.Since(began) - lastWords; took < 50*time.Millisecond || took > 51*time.Millisecond {
					t.Errorf("it ended %s and %s after the drain began", took, lastWords)
				}
				if f.code != codes.Unavailable || f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
					t.Errorf("it ended with %+v", f)
				}
				call.takeAll()
				call.isWhole(maxInFlight)
			})
		})
	}
}

// One that takes what it has in time is told, however late.
func TestLastWordsAtADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "drain"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight)
		close(w.server.ending)
		elapse(lastWords)
		call.takeAll()
		f := failureOf(call.end())
		call.takeAll()
		call.saysGoodBye(maxInFlight, f.retryIn)
	})
}

// A call that has not begun is not told anything but its end.
func TestDrainBeforeSubscribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		w.lose()
		call := w.subscribe(backlog.StreamName{Channel: "drain"}, newConnection(noConn{}))
		synctest.Wait()
		close(w.server.ending)
		if f := failureOf(call.end()); f.code != codes.Unavailable || f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
			t.Errorf("it ended with %+v", f)
		}
		if call.takeAll(); len(call.responses) != 0 {
			t.Errorf("it was sent %v", call.responses)
		}
	})
}

// A call that has lasted long enough is told to go, with its position.
func TestAgeOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = time.Hour
		w := newDeliveryWorld(t, func(c *Config) { c.MaxStreamAge, c.Heartbeat = age, 2*age })
		s := backlog.StreamName{Channel: "age"}
		began := time.Now()
		call := w.subscribe(s, newConnection(noConn{}))
		w.publish(s, 3)
		f := failureOf(call.end())
		if took := time.Since(began); took < age*9/10 || took > age {
			t.Errorf("it ended after %s", took)
		}
		isOld(t, f)
		call.takeAll()
		call.isWhole(3)
		call.saysGoodBye(3, f.retryIn)
	})
}

func isOld(t *testing.T, f *failure) {
	t.Helper()
	if f.code != codes.Unavailable || f.reason != fanfarev1.ErrorReason_ERROR_REASON_MAX_STREAM_AGE || f.retryIn <= 0 {
		t.Errorf("it ended with %+v", f)
	}
}

// A new call could not begin while the bus does not listen, so an old one stays, and
// one that has not begun is not old. Soon after the bus listens again they go.
func TestAgeWhileTheBusDoesNotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = time.Minute
		w := newDeliveryWorld(t, func(c *Config) { c.MaxStreamAge = age })
		s := backlog.StreamName{Channel: "age"}
		begun := w.subscribe(s, newConnection(noConn{}))
		begun.takeAll()
		w.lose()
		waiting := w.subscribe(s, newConnection(noConn{}))
		for range 20 {
			elapse(age / 2)
			begun.takeAll()
		}
		for _, call := range []*fakeCall{begun, waiting} {
			select {
			case err := <-call.ended:
				t.Fatalf("it ended with %v", err)
			default:
			}
		}
		if waiting.takeAll(); len(waiting.responses) != 0 {
			t.Errorf("it was sent %v", waiting.responses)
		}
		w.listen(2)
		listens := time.Now()
		for _, call := range []*fakeCall{begun, waiting} {
			f := failureOf(call.end())
			isOld(t, f)
			if took := time.Since(listens); took > time.Second+age/10 {
				t.Errorf("it stayed for %s after the bus listened", took)
			}
			call.takeAll()
			call.saysGoodBye(0, f.retryIn)
		}
		if first := waiting.responses[0]; first.GetSubscribed() == nil {
			t.Errorf("what had not begun was sent %v first", first)
		}
	})
}

// The same for one that has not begun because the store has not answered.
func TestAgeBeforeSubscribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = time.Minute
		w := newDeliveryWorld(t, func(c *Config) { c.MaxStreamAge = age })
		w.store.held = make(chan struct{})
		call := w.subscribe(backlog.StreamName{Channel: "age"}, newConnection(noConn{}))
		elapse(3 * age)
		select {
		case err := <-call.ended:
			t.Fatalf("it ended with %v", err)
		default:
		}
		close(w.store.held)
		f := failureOf(call.end())
		isOld(t, f)
		call.takeAll()
		call.isWhole(0)
		call.saysGoodBye(0, f.retryIn)
	})
}
