package service_test

import (
	"testing"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S36 with a restart, symptom: after it every client was sent everything
// again. Cause: positions counted by the process that served them. A position got
// from a replica that is gone is good at its successor and at any other.
func TestPositionsOutliveTheirReplica(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("restarted", "")
		publishMany(t, w.a, s, 10, numbered)
		read := subscribe(t, w.a, fromOldest(s)).take(10)
		w.restart()
		for name, replica := range map[string]*servicetest.Replica{"successor": w.a, "other": w.b} {
			page, err := replica.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope})
			if err != nil || len(page.GetFrames()) != 10 {
				t.Fatalf("%s: ReadFrames returns %d frames, %v", name, len(page.GetFrames()), err)
			}
			for i, f := range read {
				if got := page.GetFrames()[i].GetPosition(); position(got) != position(f.GetPosition()) {
					t.Errorf("%s: frame %d stands at %v, and stood at %v", name, i, got, f.GetPosition())
				}
				r := subscribe(t, replica, after(s, f.GetPosition()))
				if !r.subscribed.GetResumed() {
					t.Errorf("%s: after %v: %v", name, f.GetPosition(), r.subscribed)
				}
				r.untilCaughtUp()
				if len(r.frames) != 9-i {
					t.Errorf("%s: %d frames follow frame %d", name, len(r.frames), i)
				}
				contiguous(t, r.frames, uint64(i)+2)
				r.cancel()
			}
		}
	})
}
