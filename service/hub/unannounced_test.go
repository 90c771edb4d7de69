package hub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// silentBus has the hub over a bus that announces nothing.
func silentBus(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	bubble(t, Config{AnnouncesNothing: true, ReReadInterval: time.Second}, func(t *testing.T, r *rig) {
		r.bus.lose(true)
		test(t, r)
	})
}

// Where nothing is announced, durable frames come with the re-reads, none later than
// the interval after its commit, and a close does not wait for its announcement.
func TestNothingAnnounced(t *testing.T) {
	for _, marked := range []bool{false, true} {
		silentBus(t, func(t *testing.T, r *rig) {
			if marked {
				r.ephemeralMany(orders, 0, 1)
			}
			r.publishMany(orders, 0, 3)
			s := r.subscribe(orders, Oldest())
			if marked {
				s.gap(GapEphemeralMaybeMissed)
			}
			s.caughtUp()
			expect(t, s.payloads, numbers(0, 3))
			for i := range 20 {
				began := time.Now()
				r.publishMany(orders, 3+i, 1)
				s.frames(4 + i)
				if d := time.Since(began); d > time.Second {
					t.Errorf("a frame came after %s", d)
				}
				advance(t, time.Duration(i)*77*time.Millisecond)
			}
			began := time.Now()
			last := r.bus.close(orders)
			if got := s.closed(); got != last {
				t.Errorf("closed after %s, want %s", got, last)
			}
			if d := time.Since(began); d > time.Second {
				t.Errorf("closed after %s", d)
			}
		})
	}
}

// A subscription of a stream that carries ephemeral frames is told that it may miss
// them, once, before anything else, wherever it begins and whatever answers it. Those
// of other streams are not.
func TestNothingAnnouncedIsTold(t *testing.T) {
	silentBus(t, func(t *testing.T, r *rig) {
		other := streamName(7)
		r.publishMany(other, 0, 3)
		r.publishMany(orders, 0, 3)
		r.ephemeralMany(orders, 0, 1)
		head := r.store.head(orders)
		var all []*reader
		for range 2 { // loaded, and from the tail
			for _, start := range []Start{Oldest(), Live(), Last(1), After(head)} {
				s := r.subscribe(orders, start)
				g := s.gap(GapEphemeralMaybeMissed)
				if p := s.subscribed.ResumeAfter; g.ResumeAfter != p || g.Requested != p || g.Head != head || len(s.all) != 0 {
					t.Errorf("gap %+v after %v, subscribed after %s", g, s.all, p)
				}
				s.caughtUp()
				all = append(all, s)
			}
			ahead := r.subscribe(orders, After(backlog.Position{Epoch: head.Epoch, Sequence: head.Sequence + 1}))
			ahead.gap(GapEphemeralMaybeMissed)
			ahead.gap(GapAhead)
			ahead.caughtUp()
			all = append(all, ahead)
		}
		durable := r.subscribe(other, Oldest())
		durable.caughtUp()
		r.publishMany(orders, 3, 2)
		r.publishMany(other, 3, 2)
		advance(t, 5*time.Second)
		for _, s := range append(all, durable) {
			s.until("the frames", func() bool { return len(s.payloads) >= 2 && s.payloads[len(s.payloads)-1] == "4" })
			s.silent()
		}
	})
}

// A stream may carry its first ephemeral frame later, or begin with one.
func TestNothingAnnouncedIsToldLater(t *testing.T) {
	for _, begun := range []bool{true, false} {
		silentBus(t, func(t *testing.T, r *rig) {
			if begun {
				r.publishMany(orders, 0, 1)
			}
			s := r.subscribe(orders, Live())
			s.caughtUp()
			advance(t, 3*time.Second)
			s.silent()
			r.ephemeralMany(orders, 0, 1)
			r.publishMany(orders, 1, 1)
			s.gap(GapEphemeralMaybeMissed)
			expect(t, s.frames(1), numbers(1, 1))
			r.ephemeralMany(orders, 1, 1)
			advance(t, 5*time.Second)
			s.silent()
			later := r.subscribe(orders, Live())
			later.gap(GapEphemeralMaybeMissed)
			later.caughtUp()
			later.silent()
			s.silent()
		})
	}
}

// Who subscribes for the read that finds the mark is told once, too.
func TestNothingAnnouncedIsToldOnceByTheLoad(t *testing.T) {
	silentBus(t, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		running := r.subscribe(orders, Live())
		running.caughtUp()
		r.ephemeralMany(orders, 0, 1)
		s := r.subscribe(orders, After(backlog.Position{Epoch: 1, Sequence: 77}))
		running.gap(GapEphemeralMaybeMissed)
		s.gap(GapEphemeralMaybeMissed)
		s.gap(GapAhead)
		s.caughtUp()
		advance(t, 5*time.Second)
		synctest.Wait()
		running.silent()
		s.silent()
	})
}
