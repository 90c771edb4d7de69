package hub

import (
	"fmt"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Symptom: on a replica that polls, a subscription to a closed stream was told of the
// head and the oldest sequence by Subscribed, and right after it, by the Gap that says
// that it gets no ephemeral frames, that the stream had never had a frame: the place
// where it waits has no head of its own. The two tell the same, also where the outage
// comes later.
func TestOutageOfAClosedStream(t *testing.T) {
	check := func(t *testing.T, s *reader, g Gap) {
		t.Helper()
		told := s.subscribed
		if g.Head != told.Head || g.Oldest != told.Oldest || g.Requested != told.ResumeAfter || g.ResumeAfter != told.ResumeAfter {
			t.Errorf("gap %+v after %+v", g, told)
		}
	}
	publish := func(r *rig) (last backlog.Position) {
		r.publishMany(orders, 0, 5)
		r.ephemeralMany(orders, 0, 2)
		last = r.bus.close(orders)
		return last
	}
	starts := map[string]func(last backlog.Position) Start{
		"oldest":   func(backlog.Position) Start { return Oldest() },
		"live":     func(backlog.Position) Start { return Live() },
		"last":     func(backlog.Position) Start { return Last(2) },
		"position": func(last backlog.Position) Start { return After(last) },
	}
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			silentBus(t, func(t *testing.T, r *rig) {
				last := publish(r)
				for range 2 { // loaded, and from the tail
					s := r.subscribe(orders, start(last))
					check(t, s, s.gap(GapEphemeralMaybeMissed))
					if told := s.subscribed; told.Head != last {
						t.Errorf("subscribed %+v, closed after %s", told, last)
					}
					s.caughtUp()
					if name == "position" {
						s.closed()
					}
				}
			})
		})
	}
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprint("listening lost ", known), func(t *testing.T) {
			bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
				if known { // the tail, not the load, knows how the numbering ended
					r.publishMany(orders, 100, 1)
					r.ephemeralMany(orders, 100, 1)
					r.subscribe(orders, Oldest()).caughtUp()
				}
				last := publish(r)
				s := r.subscribe(orders, Oldest())
				s.caughtUp()
				r.bus.kill()
				r.bus.listen()
				g := s.gap(GapEphemeralMaybeMissed)
				check(t, s, g)
				if g.Head != last {
					t.Errorf("gap %+v, closed after %s", g, last)
				}
				// Once there is a new numbering it is that one's.
				r.publishMany(orders, 10, 3)
				s.frames(3)
				r.bus.kill()
				r.bus.listen()
				if g := s.gap(GapEphemeralMaybeMissed); g.Head != r.store.head(orders) || g.Oldest != 1 {
					t.Errorf("gap %+v, head is %s", g, r.store.head(orders))
				}
			})
		})
	}
}
