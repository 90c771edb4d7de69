package service

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Whatever sizes frames have, however slowly and irregularly the client takes them,
// and whatever it asks for meanwhile, no send blocks, and everything that is subscribed
// to arrives, in order, once.
func TestNoTurnOfASessionBlocks(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			const frames, streams = 60, 3
			random := rand.New(rand.NewPCG(seed, 0))
			w := newDeliveryWorld(t, func(c *Config) { c.WriteTimeout = time.Hour })
			for sequence := range uint64(frames) {
				w.store.sizes[sequence+1] = randomSize(random)
			}
			var names []backlog.StreamName
			for i := range streams {
				names = append(names, backlog.StreamName{Channel: fmt.Sprint("sizes ", i)})
				w.publish(names[i], random.IntN(frames/2)) // to be replayed
			}
			s := w.session(newConnection(noConn{}))
			var used uint32
			for tries := 0; tries < 3000; tries++ {
				name := names[random.IntN(streams)]
				w.publish(name, min(random.IntN(3), frames-int(w.head(name))))
				switch number := 1 + random.Uint32N(used+1); random.IntN(12) {
				case 0:
					if used < 40 {
						used++
						s.subscribe(used, name)
					}
				case 1:
					if used < 40 {
						used++
						credit := random.Uint64N(100_000)
						s.subscribeWith(used, name, &credit)
					}
				case 2:
					s.unsubscribe(number)
				case 3, 4, 5:
					s.give(number, random.Uint64N(200_000))
				}
				s.take(random.IntN(5))
				if random.IntN(3) > 0 {
					synctest.Wait()
				}
				if random.IntN(50) == 0 {
					elapse(w.server.cfg.Heartbeat)
				}
			}
			for _, name := range names {
				w.publish(name, frames-int(w.head(name)))
			}
			s.subscribe(used+1, names[0])
			s.takeAll()
			for number := range s.subs {
				s.give(number, 1<<40)
			}
			s.takeAll()
			for number := range s.subs {
				s.isWhole(number, frames)
			}
			s.cancel()
			if f := failureOf(s.end()); f.code != codes.Canceled {
				t.Errorf("seed %d: it ended with %+v", seed, f)
			}
			synctest.Wait()
			if n := w.server.calls.Load(); n != 0 {
				t.Errorf("seed %d: %d places are taken", seed, n)
			}
			if n := w.hub.Stats().Subscribers; n != 0 {
				t.Errorf("seed %d: the hub has %d subscribers", seed, n)
			}
		})
	}
}

// A frame that all subscriptions of a stream get is sent once, with all numbers, also
// if they began at different times and places, and however they are woken.
func TestSharedFramesAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const members = 100
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "shared"}
		s := w.session(newConnection(noConn{}))
		for number := range uint32(members) {
			s.subscribe(number+1, name)
			if number%10 == 0 {
				s.takeAll()
				w.publish(name, 1)
			}
		}
		s.takeAll()
		w.publish(name, 1) // after which all have been handed the same
		s.takeAll()
		for range 20 {
			w.publish(name, 1)
			if got := s.takeAll(); len(got) != 1 || len(got[0].GetNumbers()) != members {
				t.Fatalf("a frame for %d was sent as %d messages", members, len(got))
			}
		}
		if n := w.hub.Subscribers(name); n != members {
			t.Errorf("%d subscriptions are counted as %d", members, n)
		}
		for number := range uint32(members / 2) {
			s.unsubscribe(number + 1)
		}
		s.takeAll()
		w.publish(name, 1)
		if got := s.takeAll(); len(got) != 1 || len(got[0].GetNumbers()) != members/2 {
			t.Errorf("after half have left there are %d messages", len(got))
		}
		if n := w.hub.Subscribers(name); n != members/2 {
			t.Errorf("%d subscriptions are counted as %d", members/2, n)
		}
		for number := range uint32(members / 2) {
			s.isWhole(number+1+members/2, int(w.head(name)))
		}
	})
}

// Subscriptions that replay the same from the same place get it together.
func TestReplayIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frames = 100
		w := newDeliveryWorld(t, nil)
		w.store.size = 5000
		name := backlog.StreamName{Channel: "replay"}
		w.publish(name, frames)
		s := w.session(newConnection(noConn{}))
		// Nobody sends until all are in, as they begin at the same place only then.
		var mu sync.Mutex
		var runs []func()
		w.server.sender.setSpawn(func(run func()) {
			mu.Lock()
			defer mu.Unlock()
			runs = append(runs, run)
		})
		for number := range uint32(10) {
			s.subscribe(number+1, name)
		}
		synctest.Wait()
		w.server.sender.setSpawn(func(run func()) { go run() })
		for _, run := range runs {
			go run()
		}
		got := s.takeAll()
		if n := withFrames(got); n > frames/2 { // three to a message, with some to spare
			t.Errorf("%d frames were sent in %d messages", frames, n)
		}
		for number := range uint32(10) {
			s.isWhole(number+1, frames)
		}
	})
}

// A message has so many numbers at most; who is beyond gets another.
func TestNumbersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const members = 2*maxNumbers + 10
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "many"}
		s := w.session(newConnection(noConn{}))
		for number := range uint32(members) {
			s.subscribe(number+1, name)
		}
		s.takeAll()
		for range 2 {
			w.publish(name, 1)
			got := s.takeAll()
			if len(got) != 3 {
				t.Errorf("a frame for %d subscriptions was sent as %d messages", members, len(got))
			}
			for _, r := range got {
				if n := len(r.GetNumbers()); n > maxNumbers {
					t.Errorf("a message has %d numbers", n)
				}
			}
		}
		for number := range uint32(members) {
			s.isWhole(number+1, 2)
		}
	})
}

// What a client asks for is answered before the data that has not been handed over,
// however much of that there is and however slowly the client takes it.
func TestAnswersGoBeforeData(t *testing.T) {
	for _, size := range []int{10, 5000, maxTestPayload} {
		synctest.Test(t, func(t *testing.T) {
			w := newDeliveryWorld(t, nil)
			w.store.size = size
			name, other := backlog.StreamName{Channel: "replay"}, backlog.StreamName{Channel: "other"}
			w.publish(name, 300)
			s := w.session(newConnection(noConn{}))
			s.subscribe(1, name)
			s.subscribe(2, other)
			for range 20 {
				synctest.Wait()
				s.take(1)
			}
			s.unsubscribe(2)
			s.subscribeWith(3, backlog.StreamName{}, nil) // refused
			before, messages := 0, 0
			for len(s.subs) > 1 {
				synctest.Wait()
				for _, r := range s.take(1) {
					messages++
					for _, f := range r.GetFrames() {
						before += len(f.GetPayload())
					}
				}
			}
			if bound := max(64<<10, size); before > bound || messages > maxInFlight+2 {
				t.Errorf("%d messages with %d bytes came first", messages, before)
			}
			s.unsubscribe(1) // of which something waits
			for len(s.subs) > 0 {
				synctest.Wait()
				if len(s.take(1)) == 0 {
					t.Fatal("it is not answered")
				}
			}
			if got := s.takeAll(); len(got) != 0 {
				t.Errorf("%d messages came after everything had ended", len(got))
			}
		})
	}
}

// One that replays megabytes delays no other: what comes for that is sent with the next
// message.
func TestReplayStarvesNoSibling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		w.store.size = 10_000
		name, other := backlog.StreamName{Channel: "replay"}, backlog.StreamName{Channel: "other"}
		w.publish(name, 1000)
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, other)
		s.takeAll()
		for number := range uint32(3) {
			s.subscribe(number+2, name)
		}
		for sent := 1; sent <= 50; sent++ {
			synctest.Wait()
			s.take(1)
			w.publish(other, 1)
			for taken := 0; s.subs[1].count < sent; taken++ {
				synctest.Wait()
				s.take(1)
				if taken > maxInFlight+3 { // each of the others had one
					t.Fatalf("frame %d came after %d messages", sent, taken)
				}
			}
		}
		if s.subs[2].count == 1000 {
			t.Error("the replay was over: nothing was tested")
		}
		s.takeAll()
		for number := range uint32(3) {
			s.isWhole(number+2, 1000)
		}
	})
}

// The write timeout counts from when something waits that cannot be sent.
func TestWriteTimeoutOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "slow"}
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, name)
		for range 3 {
			elapse(w.server.cfg.Heartbeat * 7 / 2)
			s.takeAll()
			w.publishEach(name, maxInFlight+1)
			elapse(w.server.cfg.WriteTimeout - time.Nanosecond)
			s.takeAll()
		}
		w.publishEach(name, maxInFlight+1)
		f := s.endsAfter(w.server.cfg.WriteTimeout)
		if f.code != codes.ResourceExhausted || f.reason != fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER {
			t.Errorf("it ended with %+v", f)
		}
		if s.takeAll(); s.subs[1].count != int(w.head(name))-1 {
			t.Errorf("%d of %d frames were handed over", s.subs[1].count, w.head(name))
		}
	})
}

// Progress comes without numbers when nothing else did for the time of a heartbeat.
func TestHeartbeatOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "beats"}
		s := w.session(newConnection(noConn{}))
		for _, subscribes := range []bool{true, false} {
			for range 3 {
				elapse(w.server.cfg.Heartbeat - time.Nanosecond)
				if got := s.takeAll(); len(got) != 0 {
					t.Errorf("early: %v", got)
				}
				elapse(time.Nanosecond)
				if got := s.takeAll(); len(got) != 1 || got[0].GetProgress() == nil || got[0].GetProgress().GetPosition() != nil || len(got[0].GetNumbers()) != 0 {
					t.Errorf("the heartbeat is %v", got)
				}
			}
			if subscribes {
				s.subscribe(1, name)
				w.publish(name, 1)
				s.takeAll()
			}
		}
		s.isWhole(1, 1)
	})
}

// At its age, and at a drain, a session is told to go for all its subscriptions, after
// what it was handed.
func TestSessionIsToldToGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const age = time.Hour
		w := newDeliveryWorld(t, func(c *Config) { c.MaxStreamAge = age })
		name := backlog.StreamName{Channel: "parting"}
		old, young := w.session(newConnection(noConn{})), (*fakeSession)(nil)
		began := time.Now()
		old.subscribe(1, name)
		for time.Since(began) < age*8/10 {
			elapse(time.Second)
			old.takeAll()
		}
		young = w.session(newConnection(noConn{}))
		young.subscribe(1, name)
		young.takeAll()
		for ended := false; !ended; {
			elapse(time.Second)
			old.takeAll()
			young.takeAll()
			select {
			case err := <-old.ended:
				ended = true
				old.ended <- err
			default:
			}
		}
		if lasted := time.Since(began); lasted < age*9/10-time.Second || lasted > age+2*time.Second {
			t.Errorf("it lasted %s", lasted)
		}
		isToldToGo(t, old, fanfarev1.ErrorReason_ERROR_REASON_MAX_STREAM_AGE)
		young.goesOn()
		w.server.endingOnce.Do(func() { close(w.server.ending) })
		elapse(time.Second)
		young.takeAll()
		isToldToGo(t, young, fanfarev1.ErrorReason_ERROR_REASON_DRAINING)
	})
}

func isToldToGo(t *testing.T, s *fakeSession, reason fanfarev1.ErrorReason) {
	t.Helper()
	f := failureOf(s.end())
	if f.code != codes.Unavailable || f.reason != reason || f.retryIn <= 0 {
		t.Errorf("it ended with %+v", f)
	}
	last := s.took[len(s.took)-1]
	if c := last.GetClosing(); c == nil || c.GetResumeAfter() != nil || c.GetRetryIn().AsDuration() != f.retryIn || len(last.GetNumbers()) != 0 {
		t.Errorf("the last message is %v", last)
	}
}
