package hub

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/fanfare-io/fanfare/backlog"
)

// Subscriptions at the same place are handed the same from then on, so one may stand
// for both, and be split again; all are counted meanwhile.
func TestJoinAndSplit(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		r.publishMany(name, 0, 10)
		a, b := r.subscribe(name, Oldest()), r.subscribe(name, Oldest())
		if a.sub.Join(a.sub) {
			t.Error("it joined itself")
		}
		a.frames(10)
		if a.sub.Join(b.sub) || b.sub.Join(a.sub) {
			t.Error("one that is behind has joined")
		}
		a.caughtUp()
		b.frames(10)
		if a.sub.Join(b.sub) {
			t.Error("one that does not know that it has caught up has joined")
		}
		b.caughtUp()
		if !a.sub.Join(b.sub) {
			t.Fatal("they are at the same place")
		}
		if _, _, err := b.sub.TryNext(1); !errors.Is(err, ErrSubscriptionClosed) {
			t.Errorf("the one that joined: %v", err)
		}
		if n := r.hub.Subscribers(name); n != 2 {
			t.Errorf("two are counted as %d", n)
		}
		r.publishMany(name, 10, 5)
		a.frames(15)
		apart := &reader{rig: r, name: name, sub: a.sub.Split(1), position: a.position}
		r.publishMany(name, 15, 5)
		a.frames(20)
		apart.frames(5)
		apart.silent()
		if n := r.hub.Subscribers(name); n != 2 {
			t.Errorf("two are counted as %d", n)
		}
		if !apart.sub.Join(a.sub) {
			t.Error("they are at the same place again")
		}
		apart.sub.Leave()
		if n := r.hub.Subscribers(name); n != 1 {
			t.Errorf("one is counted as %d", n)
		}
		r.publishMany(name, 20, 1)
		apart.frames(6)
		apart.sub.Close()
		apart.sub.Close()
		if n := r.hub.Stats().Subscribers; n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// Once it has been announced where the later one began, no ephemeral frame can come that
// is for the earlier one only.
func TestJoinAfterDifferentBeginnings(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1)
		a := r.subscribe(orders, Live())
		a.caughtUp()
		r.publishMany(orders, 1, 1)
		a.frames(1)
		r.ephemeralMany(orders, 0, 1)
		b := r.subscribe(orders, Live())
		b.caughtUp()
		if a.sub.Join(b.sub) {
			t.Error("they joined before the first had what was only for that")
		}
		a.ephemerals(1)
		a.silent()
		if !a.sub.Join(b.sub) {
			t.Fatal("they are at the same place")
		}
		r.publishMany(orders, 2, 1)
		r.ephemeralMany(orders, 1, 1)
		a.frames(2)
		a.ephemerals(2)
	})
}

// Symptom: of two subscriptions of a session one was handed an ephemeral frame from
// before its time, or the other missed one without a word. Cause: an ephemeral frame that
// was committed before one of them began is for the other only, and none was thought to
// come any more once both had been handed a later frame. But that was read, because the
// announcements were late, and the ephemeral frame was still on its way.
func TestJoinWaitsForLateEphemeralFrames(t *testing.T) {
	for _, into := range []string{"the earlier", "the later"} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 1)
			earlier := r.subscribe(orders, Live())
			earlier.caughtUp()
			own := r.store.head(orders).Epoch ^ r.store.origin
			// An announcement of what never was tells nothing.
			r.bus.forge(backlog.Announcement{
				Kind: backlog.AnnouncePointer, Stream: orders, OwnEpoch: own, Origin: r.store.origin,
				Frame: backlog.Frame{Position: backlog.Position{Epoch: own ^ r.store.origin, Sequence: 100}},
			})
			synctest.Wait()
			r.bus.hold()
			r.ephemeralMany(orders, 0, 1)
			r.publishMany(orders, 1, 1)
			r.bus.sinkHint()
			earlier.frames(1)
			later := r.subscribe(orders, Live())
			later.caughtUp()
			joins := func() bool {
				earlier.silent()
				later.silent()
				if into == "the later" {
					return later.sub.Join(earlier.sub)
				}
				return earlier.sub.Join(later.sub)
			}
			if joins() {
				t.Fatalf("%s stands for both at once", into)
			}
			r.publishMany(orders, 2, 1)
			r.bus.sinkHint()
			earlier.frames(2)
			later.frames(1)
			if joins() {
				t.Fatalf("%s stands for both after a frame that was read", into)
			}
			r.bus.release(false)
			expect(t, earlier.ephemerals(1), ephemeralNumbers(0, 1))
			if !joins() {
				t.Errorf("%s does not stand for both after everything was announced", into)
			}
		})
	}
}

// Of those that want no frames nothing is kept back but these.
func TestTryNotice(t *testing.T) {
	bubble(t, Config{TailFrames: 4}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		r.publishMany(name, 0, 3)
		var wakes atomic.Int64
		woken := func() int64 { return wakes.Load() }
		sub := r.hub.Subscribe(name, Live())
		defer sub.Close()
		sub.SetWake(func() { wakes.Add(1) })
		notice := func() (n Notice) {
			t.Helper()
			eventually(t, "there is a notice", func() bool {
				d, ok, err := sub.TryNotice()
				if err != nil {
					t.Fatal(err)
				}
				n = d.Notice
				return ok
			})
			return n
		}
		rests := func() {
			t.Helper()
			if d, ok, err := sub.TryNotice(); ok || err != nil {
				t.Fatalf("handed %+v, %v", d, err)
			}
		}
		if _, ok := notice().(Subscribed); !ok {
			t.Error("Subscribed is not first")
		}
		if _, ok := notice().(CaughtUp); !ok {
			t.Error("there is no CaughtUp")
		}
		rests()
		r.bus.publish(name, "3")
		rests()
		before := woken()
		for i := range 10 { // more than the tail holds, which the store has
			r.bus.publish(name, fmt.Sprint(4+i))
			rests()
		}
		if woken() != before {
			t.Errorf("it was woken %d times for frames that it does not want", woken()-before)
		}
		// It still gets all of them.
		rd := &reader{rig: r, name: name, sub: sub, position: sub.Position()}
		for len(rd.payloads) < 11 {
			if d, ok, err := sub.TryNext(messageBytes); err != nil {
				t.Fatal(err)
			} else if ok {
				if err := rd.take(d); err != nil {
					t.Fatal(err)
				}
			}
		}
		rests()
		r.bus.publishEphemeral(name, "e")
		rests()
		before = woken()
		for i := range 3 {
			r.bus.publishEphemeral(name, fmt.Sprint("e", i))
			rests()
		}
		if woken() != before {
			t.Error("it was woken although everything is kept")
		}
		r.bus.publishEphemeral(name, "too many")
		r.bus.publishEphemeral(name, "too many")
		if woken() != before+1 {
			t.Errorf("it was woken %d times when a frame was dropped that it needed", woken()-before)
		}
		if _, _, err := sub.TryNotice(); !errors.Is(err, ErrSlowSubscriber) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Whatever comes and whenever subscriptions join and part, each is handed what it would
// have been alone.
func TestJoinModel(t *testing.T) {
	joined := 0
	for seed := range uint64(20) {
		bubble(t, Config{TailFrames: 8, PageFrames: 4}, func(t *testing.T, r *rig) {
			random := rand.New(rand.NewPCG(seed, 0))
			name := backlog.StreamName{Channel: "c"}
			published := random.IntN(10)
			r.publishMany(name, 0, published)
			// Readers by the subscription that they share.
			var groups [][]*reader
			all := 0
			for range 600 {
				switch random.IntN(8) {
				case 0:
					if all < 12 {
						all++
						groups = append(groups, []*reader{r.subscribe(name, Oldest())})
					}
				case 1:
					r.publishMany(name, published, 1)
					published++
				case 2:
					if len(groups) > 1 {
						i, j := random.IntN(len(groups)), random.IntN(len(groups))
						if groups[i][0].sub.Join(groups[j][0].sub) {
							joined++
							for _, rd := range groups[j] {
								rd.sub = groups[i][0].sub
							}
							groups[i] = append(groups[i], groups[j]...)
							groups = append(groups[:j], groups[j+1:]...)
						}
					}
				case 3:
					if len(groups) > 0 {
						i := random.IntN(len(groups))
						if n := len(groups[i]); n > 1 {
							k := 1 + random.IntN(n-1)
							apart := groups[i][k:]
							sub := apart[0].sub.Split(len(apart))
							r.t.Cleanup(sub.Close)
							for _, rd := range apart {
								rd.sub = sub
							}
							groups[i] = groups[i][:k:k]
							groups = append(groups, apart)
						}
					}
				default:
					if len(groups) > 0 {
						readGroup(t, groups[random.IntN(len(groups))], 1+random.IntN(100))
					}
				}
			}
			if n := r.hub.Subscribers(name); n != all {
				t.Errorf("seed %d: %d are counted as %d", seed, all, n)
			}
			for _, g := range groups {
				for len(g[0].payloads) < published {
					readGroup(t, g, 100)
				}
				for _, rd := range g {
					if len(rd.payloads) != published {
						t.Errorf("seed %d: one has %d of %d frames", seed, len(rd.payloads), published)
					}
				}
			}
		})
	}
	if joined == 0 {
		t.Error("none joined")
	}
}

// Symptom: a client that subscribed and thought better of it, again and again, filled
// the memory while the store was slow. Cause: what waits for a load was kept until the
// load, closed or not.
func TestAbandonedSubscriptionsDoNotPileUp(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		name := backlog.StreamName{Channel: "c"}
		r.publishMany(name, 0, 3)
		r.bus.kill() // nobody is placed
		h := r.hub
		s := h.acquire(name)
		defer h.release(s, 1)
		for range 10_000 {
			sub := &Subscription{hub: h, stream: h.acquire(name)}
			s.mu.Lock()
			s.pending = append(s.pending, &pending{start: Oldest(), sub: sub, first: true})
			s.mu.Unlock()
			sub.Close()
		}
		s.mu.Lock()
		waiting := len(s.pending)
		s.mu.Unlock()
		if waiting > 100 {
			t.Errorf("%d subscriptions that were closed are kept", waiting)
		}
	})
}

// readGroup reads once for all who share a subscription.
func readGroup(t *testing.T, group []*reader, maxBytes int) {
	t.Helper()
	d, ok, err := group[0].sub.TryNext(maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, rd := range group {
		if ok {
			if err := rd.take(d); err != nil {
				t.Fatal(err)
			}
		}
	}
}
