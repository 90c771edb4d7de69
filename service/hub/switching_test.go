package hub

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// S92: subscriptions that stall, fall off the tail, page, and are live again, time
// after time, hold up nobody. Pages take a second here, and whoever is live gets each
// frame at the moment it is published.
func TestSwitchingDoesNotBlockOthers(t *testing.T) {
	bubble(t, Config{TailFrames: 50, PageFrames: 20, ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		const fast, alternating, rounds, perRound = 10, 10, 10, 120
		r.store.backlog = rounds * perRound
		var live, others []*reader
		for range fast {
			s := r.subscribe(orders, Live())
			s.caughtUp()
			live = append(live, s)
		}
		for range alternating {
			others = append(others, r.subscribe(orders, Live()))
		}
		r.publishMany(orders, 0, 1) // read, not announced next in line
		for _, s := range live {
			s.frames(1)
		}
		r.store.setBefore(func(what string) {
			if what == "page" {
				<-time.After(time.Second)
			}
		})
		published := 1
		for round := range rounds {
			var reading errgroup.Group
			for i, s := range others {
				// Half of them at full speed, the others stalled; then the other way round.
				if (round+i)%2 == 0 {
					n := published
					reading.Go(func() error {
						for len(s.payloads) < n {
							if _, err := s.next(t.Context()); err != nil {
								return err
							}
						}
						return nil
					})
				}
			}
			for range perRound {
				began := time.Now()
				r.publishMany(orders, published, 1)
				published++
				for _, s := range live {
					s.frames(published)
				}
				if d := time.Since(began); d > 0 {
					t.Fatalf("a live subscription got a frame after %s", d)
				}
				advance(t, 10*time.Millisecond)
			}
			if err := reading.Wait(); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range append(live, others...) {
			expect(t, s.frames(published), numbers(0, published))
		}
		if _, pages := r.store.reads(); pages < rounds {
			t.Errorf("%d pages: nobody switched", pages)
		}
	})
}

// S90 and S91: a subscription that is closed while it is woken, read or placed. Others
// get everything, nothing is left of it, and nothing blocks.
func TestCloseDuringWake(t *testing.T) {
	const rounds, closing = 100, 10
	r := newRig(t, Config{TailFrames: 64, Linger: time.Millisecond})
	r.store.backlog = 1 << 20
	witness := r.subscribe(orders, Live())
	published, seen := 0, 0
	for range rounds {
		var group errgroup.Group
		var wakes atomic.Int64
		var subs []*Subscription
		for i := range closing {
			sub := r.subscribe(orders, []Start{Live(), Last(10), Last(200)}[i%3]).sub
			sub.SetWake(func() { wakes.Add(1) })
			subs = append(subs, sub)
		}
		for i, sub := range subs {
			group.Go(func() error {
				for {
					_, ok, err := sub.TryNext(messageBytes)
					if errors.Is(err, ErrSubscriptionClosed) {
						return nil
					}
					if err != nil {
						return fmt.Errorf("subscription %d: %w", i, err)
					}
					if !ok {
						<-time.After(10 * time.Microsecond)
					}
				}
			})
			group.Go(func() error {
				<-time.After(time.Duration(i*20) * time.Microsecond)
				sub.Close()
				sub.Close()
				return nil
			})
		}
		for i := range 20 {
			if i%5 == 4 {
				r.bus.publishEphemeral(orders, "e")
				continue
			}
			r.publishMany(orders, published, 1)
			published++
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		expect(t, witness.frames(published)[seen:], numbers(seen, published-seen))
		seen = published
	}
	if n := r.hub.Subscribers(orders); n != 1 {
		t.Errorf("%d subscribers are left", n)
	}
	s := r.hub.resident(orders)
	// The last page may be being read.
	eventually(t, "nothing is left but the witness", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.current.parked.list) <= 1 && s.current.readers == 1 && len(s.current.pages) == 0 && len(s.pending)+len(s.placements) == 0
	})
}

// A row that is announced by a pointer may be trimmed before it is read. Whoever
// needs it is told, gets what is left, and goes on; nothing is repeated for ever.
func TestPointerToATrimmedRow(t *testing.T) {
	for _, marked := range []bool{false, true} {
		for _, left := range []int{0, 2} {
			t.Run(fmt.Sprint(marked, left), func(t *testing.T) {
				bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
					r.publishMany(orders, 0, 5)
					if marked {
						r.ephemeralMany(orders, 0, 1)
					}
					s := r.subscribe(orders, Oldest())
					s.caughtUp()
					r.bus.hold()
					for i := range 4 {
						r.bus.publishPointer(orders, fmt.Sprint(5+i))
					}
					r.store.trim(orders, left)
					loads, pages := r.store.reads()
					r.bus.release(false)
					g := s.gap(GapTrimmed)
					if want := uint64(9 - left); g.ResumeAfter.Sequence != want || g.Oldest != want+1 {
						t.Errorf("gap %+v", g)
					}
					s.caughtUp()
					r.publishMany(orders, 9, 1)
					want := append(numbers(0, 5), numbers(9-left, left+1)...)
					expect(t, s.frames(len(want)), want)
					s.silent()
					if l, p := r.store.reads(); l-loads+p-pages > 6 {
						t.Errorf("%d loads, %d pages", l-loads, p-pages)
					}
				})
			})
		}
	}
}

// Rows are trimmed while subscriptions page through them: what each gets is without
// a hole but where a Gap says so, and ends at the head.
func TestTrimWhilePaging(t *testing.T) {
	for _, marked := range []bool{false, true} {
		bubble(t, Config{TailFrames: 20, PageFrames: 7}, func(t *testing.T, r *rig) {
			const n = 2000
			r.store.backlog = n
			r.publishMany(orders, 0, n)
			if marked {
				r.ephemeralMany(orders, 0, 1)
			}
			var all []*reader
			for i := range 10 {
				all = append(all, r.subscribe(orders, Last(uint64(n-50*i))))
			}
			var keep atomic.Int64
			keep.Store(n)
			r.store.setBefore(func(what string) {
				if what == "page" {
					r.store.trim(orders, int(max(100, keep.Add(-5))))
				}
			})
			for step := 0; step < 100*n && slices.ContainsFunc(all, func(s *reader) bool { return s.position.Sequence < n }); step++ {
				for i, s := range all {
					if step%(i+1) != 0 {
						continue // some are slower
					}
					d, ok, err := s.sub.TryNext(200)
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						advance(t, time.Millisecond) // for the pagers
						continue
					}
					// A frame that does not follow is an error of take.
					if err := s.take(d); err != nil {
						t.Fatal(err)
					}
				}
			}
			told := 0
			r.store.setBefore(nil)
			r.publishMany(orders, n, 1)
			for i, s := range all {
				s.until("the next", func() bool { return s.payloads[len(s.payloads)-1] == fmt.Sprint(n) })
				for _, notice := range s.notices {
					if g, ok := notice.(Gap); ok && g.Reason != GapTrimmed {
						t.Errorf("subscription %d was told %+v", i, g)
					}
				}
				told += s.gaps()
				if got := len(s.payloads); got == n-50*i+1 != (s.gaps() == 0) {
					t.Errorf("subscription %d: %d frames, %d gaps", i, got, s.gaps())
				}
			}
			if told == 0 {
				t.Error("nothing was trimmed before it was read")
			}
		})
	}
}
