package hub

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Closed comes after every ephemeral frame announced before it, wherever the
// subscription is and whether the close is announced next in line or read first.
func TestCloseAfterEphemeralFrames(t *testing.T) {
	for _, what := range []string{"announced", "unread frames", "read before it is announced", "read by a new subscription"} {
		for _, parked := range []bool{true, false} {
			t.Run(fmt.Sprint(what, parked), func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, r *rig) {
					r.publishMany(orders, 0, 3)
					s := r.subscribe(orders, Oldest())
					if parked {
						s.caughtUp()
						s.silent()
					}
					r.ephemeralMany(orders, 0, 1)
					if what != "announced" {
						r.bus.hold()
					}
					want := append(numbers(0, 3), "e0")
					want = append(want, r.mixedMany(orders, 3, 20)...)
					last := r.bus.close(orders)
					switch what {
					case "read before it is announced":
						r.bus.sinkHint()
						synctest.Wait()
					case "read by a new subscription":
						// It waits for the announcements of what its load showed.
						time.AfterFunc(announceGrace/2, func() { r.bus.release(false) })
						r.subscribe(orders, After(backlog.Position{Epoch: last.Epoch, Sequence: 77})).gap(GapAhead)
					}
					r.bus.release(false)
					s.caughtUpThenClosed(last)
					if got := sorted(s.all); fmt.Sprint(got) != fmt.Sprint(sorted(want)) {
						t.Errorf("got %v, want %v", got, want)
					}
				})
			})
		}
	}
}

func sorted(list []string) map[string]bool {
	set := make(map[string]bool)
	for _, s := range list {
		set[s] = true
	}
	return set
}

// A close that was read is believed without its announcement, in the end: that was
// lost, and with it maybe ephemeral frames before it.
func TestCloseThatIsNeverAnnounced(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		bubble(t, Config{ReReadInterval: 10 * time.Second}, func(t *testing.T, r *rig) {
			r.ephemeralMany(orders, 0, 1)
			r.publishMany(orders, 0, 3)
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			r.bus.lose(true)
			r.publishMany(orders, 3, 1)
			last := r.bus.close(orders)
			r.bus.lose(false)
			r.bus.sinkHint()
			synctest.Wait()
			s.silent()
			if reopened {
				r.publishMany(orders, 100, 2)
			}
			began := time.Now()
			s.gap(GapEphemeralMaybeMissed)
			expect(t, s.frames(4), numbers(0, 4))
			if got := s.closed(); got != last {
				t.Errorf("closed after %s, want %s", got, last)
			}
			if d := time.Since(began); !reopened && d < announceGrace || d > announceGrace+500*time.Millisecond {
				t.Errorf("closed after %s", d)
			}
		})
	}
}

// Where the close was in an outage, the subscriptions have been told of that, and
// the end does not wait.
func TestCloseInAnOutage(t *testing.T) {
	for _, marked := range []bool{false, true} {
		bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
			if marked {
				r.ephemeralMany(orders, 0, 1)
			}
			r.publishMany(orders, 0, 3)
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			r.bus.kill()
			r.publishMany(orders, 3, 2)
			last := r.bus.close(orders)
			r.bus.listen()
			began := time.Now()
			if marked {
				s.gap(GapEphemeralMaybeMissed)
			}
			if got := s.closed(); got != last {
				t.Errorf("closed after %s, want %s", got, last)
			}
			expect(t, s.payloads, numbers(0, 5))
			if d := time.Since(began); d > 0 {
				t.Errorf("closed after %s", d)
			}
		})
	}
}

// A close that is next in line does not overtake what must be told of an outage
// before it, even if the ephemeral frame that was missed was the stream's first.
func TestCloseRightAfterAnOutage(t *testing.T) {
	for _, marked := range []bool{false, true} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 3)
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			if marked {
				r.store.publishEphemeral(orders, "missed")
			}
			a, _ := r.store.close(orders)
			r.bus.missedBefore(a)
			began := time.Now()
			if marked {
				s.gap(GapEphemeralMaybeMissed)
			}
			if got := s.closed(); got != a.Frame.Position {
				t.Errorf("closed after %s, want %s", got, a.Frame.Position)
			}
			if d := time.Since(began); d > 0 {
				t.Errorf("closed after %s", d)
			}
		})
	}
}

// What is announced between a new listening and its refresh comes after the Gap,
// and the end after that, also where the refresh sees the close already.
func TestEphemeralFrameAndCloseBeforeTheRefresh(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		for _, waiting := range []bool{false, true} {
			bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
				if !waiting {
					r.publishMany(orders, 0, 3)
				}
				s := r.subscribe(orders, Oldest())
				s.caughtUp()
				r.bus.kill()
				if restarted {
					r.store.restart()
				}
				// The refresh needs the bus, which is busy until all of these are announced.
				r.bus.listenAnd(func() []backlog.Announcement {
					list := []backlog.Announcement{r.store.publishEphemeral(orders, "e0")}
					a, _ := r.store.close(orders)
					return append(list, a)
				})
				began := time.Now()
				s.gap(GapEphemeralMaybeMissed)
				expect(t, s.ephemeral, nil)
				s.closed()
				expect(t, s.ephemeral, ephemeralNumbers(0, 1))
				if d := time.Since(began); d > 0 {
					t.Errorf("closed after %s", d)
				}
			})
		}
	}
}

// A subscription that waits for a stream to exist, or to be opened again, gets the
// ephemeral frame that does that, and what follows it.
func TestEphemeralFrameOpensAStream(t *testing.T) {
	for _, closed := range []bool{false, true} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			if closed {
				r.publishMany(orders, 0, 3)
				r.bus.close(orders)
			}
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			s.silent()
			follows := r.bus.publishEphemeral(orders, "e0")
			if follows.Sequence != 0 || follows.Epoch == 0 {
				t.Fatalf("it follows %s", follows)
			}
			expect(t, s.ephemerals(1), ephemeralNumbers(0, 1))
			if got := s.sub.Position(); !got.IsZero() {
				t.Errorf("position %s", got)
			}
			r.ephemeralMany(orders, 1, 1)
			r.publishMany(orders, 10, 2)
			r.ephemeralMany(orders, 2, 1)
			s.ephemerals(3)
			expect(t, s.all, []string{"e0", "e1", "10", "11", "e2"})
			last := r.bus.close(orders)
			if got := s.closed(); got != last {
				t.Errorf("closed after %s, want %s", got, last)
			}
		})
	}
}

// Announcements of a whole numbering that come together, or after another has
// begun: a subscription that waited gets all of it.
func TestEphemeralNumberingAnnouncedLate(t *testing.T) {
	for _, durable := range []int{0, 2} {
		for _, reopened := range []bool{false, true} {
			t.Run(fmt.Sprint(durable, reopened), func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, r *rig) {
					s := r.subscribe(orders, Oldest())
					s.caughtUp()
					r.bus.hold()
					r.ephemeralMany(orders, 0, 2)
					r.publishMany(orders, 0, durable)
					r.ephemeralMany(orders, 2, 2)
					last := r.bus.close(orders)
					if reopened {
						r.ephemeralMany(orders, 100, 2)
						r.publishMany(orders, 100, 2)
					}
					r.bus.release(false)
					expect(t, s.ephemerals(4), ephemeralNumbers(0, 4))
					expect(t, s.payloads, numbers(0, durable))
					if got := s.closed(); got != last {
						t.Errorf("closed after %s, want %s", got, last)
					}
					if got := s.sub.Position(); got != last {
						t.Errorf("position %s, want %s", got, last)
					}
					again := r.subscribe(orders, After(last))
					if reopened {
						again.gap(GapEpochChanged)
						expect(t, again.frames(2), numbers(100, 2))
						expect(t, again.ephemeral, nil)
					} else {
						again.caughtUpThenClosed(last)
					}
				})
			})
		}
	}
}

// Numbering after numbering, each with frames of both kinds, seen whole.
func TestReopeningWithEphemeralFrames(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		for i := range 50 {
			s.caughtUp()
			if i%2 == 0 {
				r.ephemeralMany(orders, 3*i, 3)
				r.publishMany(orders, i, 1)
			} else {
				r.publishMany(orders, i, 1)
				r.ephemeralMany(orders, 3*i, 3)
			}
			r.bus.close(orders)
			expect(t, s.ephemerals(3), ephemeralNumbers(3*i, 3))
			expect(t, s.frames(1), numbers(i, 1))
			s.closed()
			s.sub.Close()
			s = r.subscribe(orders, Oldest())
		}
	})
}
