package sqlitebacklog

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/service/hub"
)

// TestClockJumpsUnderTheHub: a stream whose tail is in memory is replayed by the
// same rule as one that is read from the file. Symptom of the contrary: after a
// jump of the clock subscribers that begin at the oldest frame were sent nothing
// of a stream of which the store still gave everything.
func TestClockJumpsUnderTheHub(t *testing.T) {
	for name, jump := range map[string]time.Duration{"forward": 2 * time.Hour, "back": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			hand := newHandClock()
			s := openRunningAt(t, newFile(t), &hand.clock)
			age := time.Hour
			if err := s.SetPolicy(t.Context(), backlog.Policy{Prefix: true, RetentionAge: &age}); err != nil {
				t.Fatal(err)
			}
			h := runHub(t, s.Store)
			for range 5 {
				put(t, s, "a", "before")
			}
			expectReplay(t, h, "a", 5)
			hand.step(jump)
			expectReplay(t, h, "another", 0) // a read, by which the hub could learn the time
			for range 5 {
				put(t, s, "a", "after")
			}
			expectReplay(t, h, "a", 10)
		})
	}
}

// runHub runs a hub on a store and its bus until the test ends.
func runHub(t *testing.T, s *Store) *hub.Hub {
	t.Helper()
	h := hub.New(s.Bus(), s, func(f backlog.Frame) []byte { return f.Payload }, hub.Config{ReReadInterval: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	running.Go(func() error { return h.Run(ctx) })
	running.Go(func() error { return s.Bus().Run(ctx, h) })
	t.Cleanup(func() {
		cancel()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// expectReplay checks how many frames a new subscription from the oldest frame is
// sent.
func expectReplay(t *testing.T, h *hub.Hub, channel string, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sub := h.Subscribe(backlog.StreamName{Channel: channel}, hub.Oldest())
	defer sub.Close()
	// The newest frame may still be on its way to the hub; then it follows CaughtUp.
	for got, caughtUp := 0, false; got < want || !caughtUp; {
		d, err := sub.Next(ctx, 1<<20)
		if err != nil {
			t.Fatalf("%s: %d frames, want %d: %v", channel, got, want, err)
		}
		if d.Notice != nil {
			_, is := d.Notice.(hub.CaughtUp)
			caughtUp = caughtUp || is
		}
		if got += len(d.Frames); got > want {
			t.Fatalf("%s: %d frames, want %d", channel, got, want)
		}
	}
}
