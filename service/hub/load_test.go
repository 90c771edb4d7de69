package hub

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
)

// Five thousand clients of 200 streams that come back at once cost a few
// queries, whether the replica knows the streams or not.
func TestReconnectingHerd(t *testing.T) {
	const streams, clients = 200, 5000
	for _, tt := range []struct {
		name  string
		start func(i int, head backlog.Position) Start
		// pages is how many there may be: after a gap the backlog is read in pages,
		// which the subscriptions of a stream share.
		pages int
	}{
		{"oldest", func(int, backlog.Position) Start { return Oldest() }, 0},
		{"positions", func(i int, head backlog.Position) Start {
			return After(backlog.Position{Epoch: head.Epoch, Sequence: uint64(20 + i%30)})
		}, 0},
		{"positions that cannot be resumed", func(_ int, head backlog.Position) Start {
			return After(backlog.Position{Epoch: head.Epoch, Sequence: 1000})
		}, 2 * streams},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				for i := range streams {
					r.publishMany(streamName(i), 0, 50)
				}
				// The time that a query takes, by a clock that no busy machine holds up.
				r.store.setBefore(func(string) { <-time.After(2 * time.Millisecond) })
				var group errgroup.Group
				for i := range clients {
					group.Go(func() error {
						name := streamName(i % streams)
						sub, subscribed, err := subscribe(t.Context(), r.hub, name, tt.start(i, r.store.head(name)))
						if err != nil {
							return err
						}
						defer sub.Close()
						reader := &reader{rig: r, name: name, sub: sub, subscribed: subscribed, position: subscribed.ResumeAfter}
						for reader.position.Sequence != 50 || len(reader.notices) == 0 {
							if _, err := reader.next(t.Context()); err != nil {
								return err
							}
						}
						return nil
					})
				}
				if err := group.Wait(); err != nil {
					t.Fatal(err)
				}
				if loads, pages := r.store.reads(); loads > 10 || pages > tt.pages {
					t.Errorf("%d loads and %d pages", loads, pages)
				}
			})
		})
	}
}

// Ten thousand subscriptions of one stream share one load and every frame.
func TestManySubscriptionsOfOneStream(t *testing.T) {
	const clients, frames = 10000, 20
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 10)
		var mu sync.Mutex
		encoded := make(map[string]int)
		encode := r.hub.encode
		r.hub.encode = func(f backlog.Frame) []byte {
			mu.Lock()
			defer mu.Unlock()
			encoded[f.Position.String()]++
			return encode(f)
		}
		all := make([]*reader, clients)
		for i := range all {
			all[i] = r.subscribe(orders, Oldest())
		}
		for _, s := range all {
			s.caughtUp()
			s.silent()
		}
		r.publishMany(orders, 10, frames)
		for _, s := range all {
			expect(t, s.frames(10+frames), numbers(0, 10+frames))
		}
		if loads, _ := r.store.reads(); loads != 1 {
			t.Errorf("%d loads", loads)
		}
		for p, n := range encoded {
			if n != 1 {
				t.Errorf("frame %s was encoded %d times", p, n)
			}
		}
		if n := r.hub.Subscribers(orders); n != clients {
			t.Errorf("%d subscribers", n)
		}
	})
}

// An append wakes those who are parked, each once, and nobody who is behind.
func TestOnlyParkedSubscriptionsAreWoken(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		parked := r.subscribe(orders, Live())
		behind := r.subscribe(orders, Live())
		wakes := map[string]int{}
		parked.sub.SetWake(func() { wakes["parked"]++ })
		behind.sub.SetWake(func() { wakes["behind"]++ })
		if _, ok, _ := parked.sub.TryNext(1); !ok {
			t.Fatal("no CaughtUp")
		}
		parked.silent()
		r.bus.hold()
		r.publishMany(orders, 0, 10)
		r.bus.release(false)
		synctest.Wait()
		if wakes["parked"] != 1 || wakes["behind"] != 0 {
			t.Errorf("woken: %v", wakes)
		}
		r.publishMany(orders, 10, 10)
		synctest.Wait()
		if wakes["parked"] != 1 {
			t.Errorf("woken although not parked: %v", wakes)
		}
	})
}

// Subscriptions at the same place share pages, and the pager reads a bounded number at
// once.
func TestPagesAreShared(t *testing.T) {
	bubble(t, Config{TailFrames: 10, PageFrames: 50, Pagers: 2}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1000)
		var mu sync.Mutex
		atOnce, mostAtOnce := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			atOnce += n
			mostAtOnce = max(mostAtOnce, atOnce)
		}
		r.store.setBefore(func(what string) {
			if what == "page" {
				count(1)
				<-time.After(time.Millisecond)
				count(-1)
			}
		})
		var group errgroup.Group
		for i := range 200 {
			frames := 1000 - 200*(i%4) // four places
			s := r.subscribe(orders, Last(uint64(frames)))
			group.Go(func() error {
				for len(s.payloads) < frames {
					if _, err := s.next(t.Context()); err != nil {
						return err
					}
					<-time.After(rand.N(time.Millisecond))
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		// 20, 16, 12 and 8 if those of a place share all of theirs, 2,800 if nobody does.
		if _, pages := r.store.reads(); pages > 100 {
			t.Errorf("%d pages for 200 subscriptions at four places", pages)
		}
		if mostAtOnce != 2 {
			t.Errorf("%d pages at once", mostAtOnce)
		}
		if n := r.hub.Stats().PageBytes; n != 0 {
			t.Errorf("%d bytes of pages are left", n)
		}
	})
}

// A subscription that leaves while its page waits or is read leaves nothing
// behind.
func TestLeavingWhilePaging(t *testing.T) {
	bubble(t, Config{TailFrames: 10, PageFrames: 50, Pagers: 1}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1000)
		a, b := r.subscribe(orders, Oldest()), r.subscribe(orders, Last(500))
		gate := make(chan struct{})
		r.store.setBefore(func(string) { <-gate })
		a.silent()
		b.silent()
		synctest.Wait()
		a.sub.Close()
		b.sub.Close()
		close(gate)
		synctest.Wait()
		if _, pages := r.store.reads(); pages != 1 {
			t.Errorf("%d pages were read for nobody", pages)
		}
		if n := r.hub.Stats().PageBytes; n != 0 {
			t.Errorf("%d bytes of pages are left", n)
		}
	})
}

// Streams take turns at the pager.
func TestPagerTakesTurns(t *testing.T) {
	g := newPager()
	a, b := &stream{}, &stream{}
	for range 5 {
		g.push(&page{stream: a})
	}
	g.push(&page{stream: b})
	var order []*stream
	for range 6 {
		order = append(order, g.take(t.Context()).stream)
	}
	if order[1] != b {
		t.Errorf("the second stream waited for all pages of the first")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p := g.take(ctx); p != nil {
		t.Errorf("got a page from an ended pager")
	}
}

// The re-read goes over all streams once in the interval, a thousand to a
// query, spread.
func TestReReadIsSpread(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		const streams = 2500
		var group errgroup.Group
		for i := range streams {
			group.Go(func() error {
				sub, _, err := subscribe(t.Context(), r.hub, streamName(i), Live())
				if err == nil {
					t.Cleanup(sub.Close)
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		advance(t, 31*time.Second)
		loads, _ := r.store.reads()
		var checks []uint64
		for range 6 {
			checks = append(checks, r.hub.Stats().Checks)
			advance(t, 10*time.Second)
		}
		for i := 1; i < len(checks); i++ {
			if d := checks[i] - checks[i-1]; d != 1 {
				t.Errorf("checks each 10 s: %v, want one more each time", checks)
			}
		}
		if n, _ := r.store.reads(); n != loads {
			t.Errorf("%d loads of streams that are as they were", n-loads)
		}
		if n := r.store.largest(); n > backlog.MaxLoadRequests {
			t.Errorf("a load of %d streams", n)
		}
	})
}
