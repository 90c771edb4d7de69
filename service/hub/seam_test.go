package hub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// S02: the start of a live subscription is fixed before it is confirmed. A lazy
// one, computed at the first read, would take the frame published right after
// the ack for one already seen.
func TestLiveStartIsFixedAtTheAck(t *testing.T) {
	for i := range 300 {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			if i%2 == 0 {
				r.publishMany(orders, 0, 3)
			}
			s := r.subscribe(orders, Live())
			r.bus.publish(orders, "after the ack")
			expect(t, s.frames(1), []string{"after the ack"})
			s.caughtUpOrSilent()
		})
	}
}

// caughtUpOrSilent reads a CaughtUp that has not come yet, and nothing else.
func (r *reader) caughtUpOrSilent() {
	r.t.Helper()
	if len(r.notices) == 0 {
		r.caughtUp()
	}
	r.silent()
}

// The seam under silence: one frame at a random moment of a subscribe, then
// nothing more. Steady traffic would hide a lost wake-up or a lost frame,
// because the next frame repairs it.
func TestSeamUnderSilence(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 200
	}
	r := newRig(t, Config{})
	for i := range rounds {
		name := streamName(i % 50)
		before := r.store.head(name)
		start := []Start{Oldest(), Live(), Last(1), After(before)}[i%4]
		published := make(chan struct{})
		payload := fmt.Sprint("round ", i)
		delay := time.Duration(rand.IntN(300)) * time.Microsecond
		go func() {
			defer close(published)
			<-time.After(delay)
			if i%3 == 0 {
				r.bus.publishPointer(name, payload)
			} else {
				r.bus.publish(name, payload)
			}
		}()
		s := r.subscribe(name, start)
		acked := r.store.head(name)
		<-published
		if start.kind == startLive && acked != before {
			// It may have been committed before the subscription began.
			s.sub.Close()
			continue
		}
		s.until("the frame", func() bool { return slices.Contains(s.payloads, payload) })
		if n := len(slices.DeleteFunc(slices.Clone(s.payloads), func(p string) bool { return p != payload })); n != 1 {
			t.Fatalf("the frame came %d times", n)
		}
		s.sub.Close()
	}
}

// S08: a load that takes long and returns nothing still hands over to the
// right place: what commits meanwhile is delivered.
func TestFramesDuringTheLoad(t *testing.T) {
	for _, moment := range []string{"before", "after"} {
		for _, stored := range []int{0, 5} {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.publishMany(orders, 0, stored)
				head := r.store.head(orders)
				publish := func(what string) {
					r.store.setBefore(nil)
					r.store.after = nil
					r.publishMany(orders, stored, 3)
				}
				if moment == "before" {
					r.store.setBefore(publish)
				} else {
					r.store.after = publish
				}
				s := r.subscribe(orders, After(head))
				expect(t, s.frames(3), numbers(stored, 3))
				s.caughtUpOrSilent()
				if n, _ := r.store.reads(); n > 2 {
					t.Errorf("%d loads for one subscription", n)
				}
			})
		}
	}
}

// A listening that ends during the load makes the load worthless: what commits
// after it may never be announced.
func TestListeningEndsDuringTheLoad(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 2)
		r.store.after = func(string) {
			r.store.after = nil
			r.bus.kill()
			r.bus.publish(orders, "2") // announced to nobody
			time.AfterFunc(time.Second, r.bus.listen)
		}
		began := time.Now()
		s := r.subscribe(orders, Oldest())
		if time.Since(began) < time.Second {
			t.Errorf("acked without a listening")
		}
		if got := s.subscribed.Head.Sequence; got != 3 {
			t.Errorf("acked with head %d, want 3", got)
		}
		s.caughtUp()
		expect(t, s.payloads, numbers(0, 3))
	})
}

// A listening that is replaced between a load and its taking in: the refresh
// for the new one has passed a stream that was still loading, so the load must
// not count.
func TestListeningIsReplacedBeforeTheLoadIsTakenIn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1)
		var once sync.Once
		r.hub.encode = func(f backlog.Frame) []byte {
			once.Do(func() {
				r.bus.kill()
				r.bus.publish(orders, "1") // announced to nobody
				r.bus.listen()
				synctest.Wait()
			})
			return encodeForTest(f)
		}
		began := time.Now()
		s := r.subscribe(orders, Oldest())
		expect(t, s.frames(2), numbers(0, 2))
		if d := time.Since(began); d > time.Second {
			t.Errorf("the frame came after %s", d)
		}
	})
}

// A tail that has not been read since the new listening began is behind: nobody
// is answered from it.
func TestTailOfAnOlderListeningAnswersNobody(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 5)
		r.subscribe(orders, Oldest()).caughtUp()
		r.bus.kill()
		r.publishMany(orders, 5, 3)
		r.store.setBefore(func(string) { <-time.After(time.Second) })
		r.bus.listen()
		s := r.subscribe(orders, Live())
		if got := s.subscribed.Head.Sequence; got != 8 {
			t.Errorf("live begins after %d, want 8", got)
		}
	})
}

// A large frame announced during a load is not held; it is read.
func TestLargeFrameDuringTheLoad(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		large := strings.Repeat("x", 200<<10)
		r.bus.publish(orders, "first")
		r.store.after = func(string) {
			r.store.after = nil
			r.bus.publish(orders, "small")
			r.bus.publish(orders, large)
			r.bus.publish(orders, "small too")
		}
		s := r.subscribe(orders, Oldest())
		expect(t, s.frames(4), []string{"first", "small", large, "small too"})
	})
}

// A flood during a load is more than is held; the rest is read.
func TestFloodDuringTheLoad(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		r.store.after = func(string) {
			r.store.after = nil
			r.publishMany(orders, 3, 10*maxHeld+1)
		}
		s := r.subscribe(orders, Oldest())
		expect(t, s.frames(10*maxHeld+4), numbers(0, 10*maxHeld+4))
		s.silent()
	})
}

// CaughtUp stands between what was stored when the subscription began and what
// came after, also where both are read at once.
func TestCaughtUpStandsWhereTheSubscriptionBegan(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 100)
		s := r.subscribe(orders, Oldest())
		r.publishMany(orders, 100, 50)
		s.caughtUp()
		expect(t, s.payloads, numbers(0, 100))
		expect(t, s.frames(150), numbers(0, 150))
		s.silent()
	})
}

// S03 and S45: replay of much, a pause in the middle, live frames meanwhile:
// everything once, ascending, and CaughtUp exactly where the subscription
// began.
func TestReplayMeetsLive(t *testing.T) {
	bubble(t, Config{TailFrames: 100, PageFrames: 64}, func(t *testing.T, r *rig) {
		r.store.backlog = 10000
		r.publishMany(orders, 0, 2000)
		s := r.subscribe(orders, Oldest())
		s.frames(100)
		r.publishMany(orders, 2000, 50)
		for i := range 500 {
			r.bus.publish(orders, fmt.Sprint(2050+i))
			s.frames(min(len(s.payloads)+1, 2000))
		}
		s.caughtUp()
		expect(t, s.payloads, numbers(0, 2000))
		expect(t, s.frames(2550), numbers(0, 2550))
		s.silent()
	})
}

// S06: a frame whose transaction commits later has a later sequence, so the
// only disorder there can be is that of announcements.
func TestReorderedAnnouncements(t *testing.T) {
	for range 20 {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			s := r.subscribe(orders, Oldest())
			r.bus.hold()
			r.publishMany(orders, 0, 20)
			r.bus.release(true)
			expect(t, s.frames(20), numbers(0, 20))
			s.caughtUpOrSilent()
		})
	}
}

// S11: a position moves only with the hand-over. A stalled subscription of a
// flood gets everything, and resuming after the last frame seen gives the rest.
func TestStalledSubscription(t *testing.T) {
	bubble(t, Config{TailFrames: 256, PageFrames: 100}, func(t *testing.T, r *rig) {
		const n = 20000
		r.store.backlog = n
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.publishMany(orders, 0, n)
		s.frames(n / 3)
		rest := r.subscribe(orders, After(s.position))
		first := len(s.payloads)
		expect(t, rest.frames(n-first), numbers(first, n-first))
		expect(t, s.frames(n), numbers(0, n))
		s.silent()
	})
}

// S16: 50,000 frames of other streams cost a subscription nothing.
func TestOtherStreamsAreNotExamined(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bus.publish(orders, "0")
		first := r.store.head(orders)
		for i := range 50000 {
			r.bus.publish(streamName(100+i%10), "other")
		}
		r.bus.publish(orders, "1")
		s := r.subscribe(orders, After(first))
		expect(t, s.frames(1), numbers(1, 1))
		r.bus.publish(orders, "2")
		expect(t, s.frames(2), numbers(1, 2))
		if r.store.loadedFrames > 2 {
			t.Errorf("%d frames were read", r.store.loadedFrames)
		}
	})
}

// S20 and S44: every subscription of a stream gets every frame, in the same
// order, live or replayed.
func TestEverySubscriptionGetsEverything(t *testing.T) {
	r := newRig(t, Config{})
	r.store.backlog = 3000
	var live []*reader
	for range 7 {
		live = append(live, r.subscribe(orders, Live()))
	}
	go r.publishMany(orders, 0, 3000)
	for _, s := range live {
		expect(t, s.frames(3000), numbers(0, 3000))
	}
	for range 2 {
		s := r.subscribe(orders, Oldest())
		expect(t, s.frames(3000), numbers(0, 3000))
	}
}

// S28: an announcement that comes again, any number of times, changes nothing.
func TestRepeatedAnnouncements(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		var first backlog.Announcement
		r.bus.commit(func() []backlog.Announcement {
			first = r.store.publish(orders, "0")
			return []backlog.Announcement{first}
		})
		r.publishMany(orders, 1, 4)
		later := r.subscribe(orders, After(r.store.head(orders)))
		for range 5 {
			r.bus.forge(first)
			r.bus.forge(pointerTo(first))
		}
		r.bus.publish(orders, "5")
		expect(t, s.frames(6), numbers(0, 6))
		expect(t, later.frames(1), numbers(5, 1))
		s.silent()
	})
}

// Last, where the tail's bounds keep the load from bringing all of it.
func TestLastBeyondTheLoad(t *testing.T) {
	bubble(t, Config{TailFrames: 10, PageFrames: 7}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 100)
		s := r.subscribe(orders, Last(50))
		s.caughtUp()
		expect(t, s.payloads, numbers(50, 50))
		again := r.subscribe(orders, Last(60))
		again.caughtUp()
		expect(t, again.payloads, numbers(40, 60))
	})
}
