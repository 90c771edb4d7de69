package hub

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// missedAfter announces something and then tells the sink that it missed something,
// before anybody can use the bus; missedBefore does so the other way round.
func (b *fakeBus) missedAfter(a backlog.Announcement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sink.Announce([]backlog.Announcement{a})
	b.sink.Missed()
}

func (b *fakeBus) missedBefore(a backlog.Announcement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sink.Missed()
	b.sink.Announce([]backlog.Announcement{a})
}

// lose has all announcements lost, in silence, or none any more.
func (b *fakeBus) lose(all bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter, b.lossy = nil, all
	if all {
		b.filter = func() int { return 0 }
	}
}

func (b *fakeBus) sinkMissed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sink.Missed()
}

// After an outage the subscriptions of a stream that carries ephemeral frames are
// told, once: after what was in the tail, before ephemeral frames that came later.
// Those of other streams are told nothing, nor are those that began after it.
func TestOutageIsToldOnce(t *testing.T) {
	outages := map[string]func(r *rig){
		"new listening": func(r *rig) {
			r.bus.kill()
			r.publishMany(orders, 5, 2)
			r.bus.publishEphemeral(orders, "missed")
			r.bus.listen()
		},
		"restarted server": func(r *rig) {
			r.bus.kill()
			r.publishMany(orders, 5, 2)
			r.store.restart()
			r.bus.publishEphemeral(orders, "missed")
			r.bus.listen()
		},
		"missed announcements": func(r *rig) {
			r.bus.lose(true)
			r.publishMany(orders, 5, 2)
			r.bus.publishEphemeral(orders, "missed")
			r.bus.lose(false)
			r.bus.sinkMissed()
		},
	}
	for what, outage := range outages {
		for _, first := range []bool{false, true} { // ephemeral frame of the stream is the one missed
			for _, quick := range []bool{false, true} { // with an ephemeral frame before the refresh
				t.Run(fmt.Sprint(what, first, quick), func(t *testing.T) {
					bubble(t, Config{}, func(t *testing.T, r *rig) {
						other := streamName(7)
						r.publishMany(other, 0, 1)
						never := r.subscribe(other, Oldest())
						never.frames(1)
						s, unread := r.subscribe(orders, Live()), r.subscribe(orders, Live())
						if !first {
							r.ephemeralMany(orders, 0, 1)
						}
						r.publishMany(orders, 0, 5)
						s.frames(5)
						s.caughtUpOrSilent()
						for i := range 3 {
							outage(r)
							if !quick {
								<-time.After(hintPause)
								synctest.Wait()
							}
							r.ephemeralMany(orders, 1+i, 1)
							g := s.lastGapOf(1 + i)
							if g.Reason != GapEphemeralMaybeMissed || g.Requested != g.ResumeAfter || g.Oldest != 1 || g.Head.Sequence < 5 {
								t.Errorf("gap %+v", g)
							}
							if n := len(s.ephemeral); first && n != i || !first && n != i+1 {
								t.Errorf("%d ephemeral frames before the gap", n)
							}
							s.until("the next", func() bool { return slices.Contains(s.ephemeral, fmt.Sprint("e", 1+i)) })
							<-time.After(hintPause)
							synctest.Wait()
							s.until("the durable frames", func() bool { return s.position == r.store.head(orders) })
							s.silent()
							later := r.subscribe(orders, Live())
							later.caughtUp()
							later.silent()
							later.sub.Close()
							never.silentOr(CaughtUp{})
						}
						unread.until("all", func() bool { return len(unread.all) == len(s.all) })
						expect(t, unread.all, s.all)
						if gaps := unread.gaps(); gaps != 3 {
							t.Errorf("an unread subscription was told %d times", gaps)
						}
					})
				})
			}
		}
	}
}

// lastGapOf reads up to the nth Gap.
func (r *reader) lastGapOf(n int) (g Gap) {
	r.t.Helper()
	r.until(fmt.Sprintf("gap %d", n), func() bool { return r.gaps() == n })
	return r.notices[len(r.notices)-1].(Gap)
}

func (r *reader) gaps() (n int) {
	for _, notice := range r.notices {
		if _, ok := notice.(Gap); ok {
			n++
		}
	}
	return n
}

// silentOr checks that nothing follows but, once, a notice of a type.
func (r *reader) silentOr(CaughtUp) {
	r.t.Helper()
	if d, ok, err := r.sub.TryNext(messageBytes); err != nil {
		r.t.Fatal(err)
	} else if _, caughtUp := d.Notice.(CaughtUp); ok && !caughtUp {
		r.t.Fatalf("unexpected %+v", d)
	}
	r.silent()
}

// What is missed while a stream is being loaded may be of after the ack: who waits
// for the load is told.
func TestOutageDuringTheFirstLoad(t *testing.T) {
	for _, stored := range []int{0, 3} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, stored)
			r.store.after = func(string) {
				r.store.after = nil
				r.bus.lose(true)
				r.ephemeralMany(orders, 0, 1)
				r.bus.lose(false)
				r.bus.sinkMissed()
			}
			s := r.subscribe(orders, Live())
			s.caughtUp()
			s.gap(GapEphemeralMaybeMissed)
			<-time.After(2 * hintPause)
			s.silent()
		})
	}
}

// Outages with nothing between them are one for who has not been told of the first,
// so that a listener that flaps costs no memory; who has is told of each.
func TestFlappingListener(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.ephemeralMany(orders, 0, 1)
		s, unread := r.subscribe(orders, Live()), r.subscribe(orders, Live())
		s.caughtUp()
		for i := range 200 {
			r.bus.kill()
			r.bus.listen()
			synctest.Wait()
			s.lastGapOf(i + 1)
			s.silent()
		}
		if n := len(r.hub.resident(orders).current.ephemerals.list); n != 1 {
			t.Errorf("%d outages are kept", n)
		}
		unread.caughtUp()
		unread.gap(GapEphemeralMaybeMissed)
		unread.silent()
	})
}

// A subscription that waits for its stream's first frame is told if there was an
// ephemeral one in the outage, and only then.
func TestOutageWhileWaiting(t *testing.T) {
	for _, what := range []string{"nothing", "durable", "ephemeral"} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			s := r.subscribe(orders, Live())
			s.caughtUp()
			r.bus.kill()
			switch what {
			case "durable":
				r.publishMany(orders, 0, 1)
			case "ephemeral":
				r.ephemeralMany(orders, 0, 1)
			}
			r.bus.listen()
			synctest.Wait()
			if what == "ephemeral" {
				if g := s.gap(GapEphemeralMaybeMissed); !g.ResumeAfter.IsZero() {
					t.Errorf("gap %+v", g)
				}
			}
			r.publishMany(orders, 1, 1)
			s.until("the frame", func() bool { return len(s.payloads) > 0 && s.payloads[len(s.payloads)-1] == "1" })
			s.silent()
		})
	}
}

// Symptom: after a failover that lost commits a subscription went on without a
// Gap, though the frames before those it then got were others than the ones it had
// had. Cause: a frame announced by the new server before the refresh had the next
// sequence and was appended, so that the refresh verified that frame instead of
// the last one read from the old server.
func TestFramesBetweenTheNewListeningAndItsRefresh(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 7)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.kill()
		r.store.lose(orders, 2)
		r.publishMany(orders, 100, 2)
		// The refresh needs the bus, which is busy until all of these are announced.
		r.bus.listenAnd(func() []backlog.Announcement {
			return []backlog.Announcement{
				r.store.publishEphemeral(orders, "e0"), r.store.publish(orders, "102"), r.store.publishEphemeral(orders, "e1"),
			}
		})
		s.gap(GapEphemeralMaybeMissed)
		s.gap(GapEpochChanged)
		s.caughtUp()
		s.ephemerals(2)
		expect(t, s.all[7:], append(numbers(0, 5), "100", "101", "e0", "102", "e1"))
		s.silent()
	})
}

// listenAnd begins a new listening and announces a change before anybody can be
// told of the listening.
func (b *fakeBus) listenAnd(change func() []backlog.Announcement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listenLocked()
	b.sink.Announce(change())
}

// Where the server is the same nothing can be lost, and what is next in line is
// delivered without waiting for the refresh.
func TestFramesBeforeTheRefreshOfTheSameServer(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.store.setBefore(func(string) { <-time.After(time.Second) })
		r.bus.kill()
		r.bus.listen()
		began := time.Now()
		r.mixedMany(orders, 3, 10)
		s.until("all", func() bool { return len(s.all) == 3+10 })
		if d := time.Since(began); d > time.Second { // a pointer is read
			t.Errorf("they came after %s", d)
		}
	})
}

// Symptom: a waiting subscription was told that ephemeral frames may be missing,
// then got the stream's first one and then the third, and nothing said that the
// second was missing. Cause: all of them had been held, and were taken in after the
// outage that was noticed between the first and the second.
func TestOutageAmongHeldFrames(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.store.setBefore(func(string) {
			r.store.setBefore(nil)
			r.ephemeralMany(orders, 1, 1)
			r.bus.lose(true)
			r.ephemeralMany(orders, 2, 1)
			r.bus.lose(false)
			r.bus.sinkMissed()
			r.ephemeralMany(orders, 3, 1)
		})
		r.ephemeralMany(orders, 0, 1)
		s.gap(GapEphemeralMaybeMissed)
		expect(t, s.ephemeral, ephemeralNumbers(0, 2))
		s.ephemerals(3)
		expect(t, s.ephemeral[2:], ephemeralNumbers(3, 1))
		<-time.After(2 * hintPause)
		s.silent()
	})
	// The same where the read was begun after the outage.
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Live())
		s.caughtUp()
		// The refresh needs the bus, which is busy until both are announced.
		r.bus.missedAfter(r.store.publishEphemeral(orders, "e0"))
		r.ephemeralMany(orders, 1, 1)
		s.gap(GapEphemeralMaybeMissed)
		expect(t, s.ephemeral, ephemeralNumbers(0, 1))
		s.ephemerals(2)
		<-time.After(2 * hintPause)
		s.silent()
	})
}

// Ephemeral frames that a subscription has not had when its numbering is cut come
// before the Gap.
func TestEphemeralFramesBeforeTheCut(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		s := r.subscribe(orders, Oldest())
		r.ephemeralMany(orders, 0, 2)
		r.publishMany(orders, 3, 2)
		r.ephemeralMany(orders, 2, 1)
		r.bus.kill()
		r.store.lose(orders, 4)
		r.bus.listen()
		synctest.Wait()
		s.caughtUp()
		s.gap(GapEphemeralMaybeMissed)
		expect(t, s.all, []string{"0", "1", "2", "e0", "e1", "3", "4", "e2"})
		s.gap(GapAhead)
		s.caughtUp()
		r.ephemeralMany(orders, 3, 1)
		expect(t, s.ephemerals(4), ephemeralNumbers(0, 4))
		expect(t, s.payloads[5:], numbers(0, 1))
		s.silent()
	})
}

// So do those in a tail that is left because its next page is gone.
func TestEphemeralFramesBeforeAnUnreadablePage(t *testing.T) {
	bubble(t, Config{TailFrames: 100}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		s.loose = true
		r.publishMany(orders, 3, 60)
		r.ephemeralMany(orders, 0, 3)
		r.hub.shrinkDurable(orders)
		r.store.trim(orders, 0)
		r.bus.close(orders)
		r.store.remove(orders)
		r.publishMany(orders, 100, 2)
		r.ephemeralMany(orders, 3, 1)
		r.subscribe(orders, Live()).caughtUp()
		expect(t, s.ephemerals(3), ephemeralNumbers(0, 3))
		if g, _ := s.lastGap(); g.Reason == GapEphemeralMaybeMissed {
			t.Errorf("gap %+v", g)
		}
		s.until("all", func() bool { return len(s.ephemeral) == 4 && len(s.payloads) == 3+2 })
		expect(t, s.all[6:], []string{"100", "101", "e3"})
		s.silent()
	})
}

// shrinkDurable has the durable frames of a tail read from the store.
func (h *Hub) shrinkDurable(name backlog.StreamName) {
	s := h.resident(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.empty()
	s.settleLocked(s.current)
}
