package service_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S153, symptom: rows were skipped when the clock of a replica differed
// from another's, or was set. Cause: positions taken from the clock. Here the
// store's clock is stepped by an hour between two halves of a stream: order,
// replay and resume follow the sequence alone.
func TestClockIsStepped(t *testing.T) {
	for name, step := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
				w := newWorld(t, db)
				s := stream("clock", "")
				keyed := newFrame(s, "keyed")
				keyed.IdempotencyKey = "key"
				positions := append(publishMany(t, w.a, s, 9, numbered), publish(t, w.a, keyed))
				w.stop()
				db.StepClock(t, step)
				w.start()
				for i := range 10 {
					positions = append(positions, publish(t, []*servicetest.Replica{w.a, w.b}[i%2], newFrame(s, fmt.Sprint("after ", i))))
				}
				for i, p := range positions {
					r := subscribe(t, w.b, after(s, p))
					if !r.subscribed.GetResumed() {
						t.Errorf("after %v: %v", p, r.subscribed)
					}
					contiguous(t, r.take(19-i), uint64(i)+2)
					r.cancel()
				}
				again, err := w.b.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: keyed})
				if err != nil || !again.GetDuplicate() || again.GetPosition().GetSequence() != 10 {
					t.Errorf("the key again: %v, %v", again, err)
				}

				// By their age, frames from before a step forward are an hour old; those
				// from before a step back are not older than they were.
				setPolicy(t, w.a, &fanfarev1.Policy{Channel: s.Channel, RetentionAge: durationpb.New(30 * time.Minute)})
				oldest := uint64(1)
				if step > 0 {
					oldest = 11
				}
				oldestIs(t, w.b, fromOldest(s), oldest)
				r := subscribe(t, w.b, fromOldest(s))
				contiguous(t, r.take(20-int(oldest)+1), oldest)
				r.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
			})
		})
	}
}
