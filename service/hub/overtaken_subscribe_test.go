package hub

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// New subscriptions of a stream that a read has overtaken begin where they would
// have, once it has been announced. A client that was further on another replica is
// not told that it is ahead; one that is ahead is.
func TestSubscribeAheadOfAnnouncements(t *testing.T) {
	for what, c := range map[string]struct {
		start  func(head backlog.Position) Start
		from   int
		reason GapReason
	}{
		"at the head":     {After, 45, 0},
		"before the head": {func(p backlog.Position) Start { p.Sequence -= 3; return After(p) }, 42, 0},
		"after the head":  {func(p backlog.Position) Start { p.Sequence++; return After(p) }, 0, GapAhead},
		"another epoch":   {func(p backlog.Position) Start { p.Epoch++; return After(p) }, 0, GapEpochChanged},
		"last":            {func(backlog.Position) Start { return Last(30) }, 15, 0},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(what, lost), func(t *testing.T) {
				bubble(t, Config{TailFrames: 10, ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
					r.publishMany(orders, 0, 40)
					r.ephemeralMany(orders, 0, 1)
					running := r.subscribe(orders, Live())
					running.caughtUp()
					r.bus.hold()
					r.ephemeralMany(orders, 1, 1)
					r.publishMany(orders, 40, 5)
					began := time.Now()
					result := make(chan *reader, 1)
					go func() {
						defer close(result)
						result <- r.subscribe(orders, c.start(r.store.head(orders)))
					}()
					synctest.Wait()
					running.silent()
					if len(result) > 0 {
						t.Error("subscribed ahead of the tail")
					}
					if lost {
						r.bus.queued = nil
					}
					r.bus.release(false)
					s, ok := <-result
					if !ok {
						return // it failed
					}
					if d := time.Since(began); lost != (d > 0) || d > announceGrace+2*leftOutStep {
						t.Errorf("it took %s", d)
					}
					if c.reason != 0 {
						s.gap(c.reason)
					} else if got := s.subscribed; got.ResumeAfter.Sequence != uint64(c.from) || got.Head.Sequence != 45 {
						t.Errorf("%+v", got)
					}
					r.bus.publish(orders, "45")
					expect(t, s.frames(46-c.from), numbers(c.from, 46-c.from))
					running.until("all", func() bool { return len(running.payloads) == 6 })
					if !lost {
						expect(t, running.all, append([]string{"e1"}, numbers(40, 6)...))
					}
				})
			})
		}
	}
}

// A numbering that was closed and followed by another, both read before any of it
// was announced, is delivered to its end in the order of commits.
func TestReadOvertakesAReopening(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 2)
			r.ephemeralMany(orders, 0, 1)
			s := r.subscribe(orders, Oldest())
			s.ephemeral, s.all = nil, nil
			s.caughtUp()
			r.bus.hold()
			r.ephemeralMany(orders, 1, 1)
			r.publishMany(orders, 2, 2)
			last := r.bus.close(orders)
			r.publishMany(orders, 100, 2)
			r.bus.sinkHint()
			synctest.Wait()
			s.silent()
			began := time.Now()
			if lost {
				r.bus.queued = nil
				s.gap(GapEphemeralMaybeMissed)
				expect(t, s.frames(4), numbers(0, 4))
				s.gap(GapEpochChanged)
				expect(t, s.frames(6)[4:], numbers(100, 2))
				if d := time.Since(began); d < announceGrace || d > announceGrace+2*leftOutStep {
					t.Errorf("it took %s", d)
				}
				return
			}
			r.bus.release(false)
			if got := s.closed(); got != last {
				t.Errorf("closed after %s, want %s", got, last)
			}
			expect(t, s.all, append(numbers(0, 2), "e1", "2", "3"))
			if d := time.Since(began); d > 0 {
				t.Errorf("it took %s", d)
			}
		})
	}
}
