package bench

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
)

// seated returns an audience without connections, as if it had subscribed: rows of so
// many seats.
func seated(g *gate, shared bool, seats ...int) *audience {
	a := &audience{gate: g, shared: shared, ready: make(chan struct{}), failed: make(chan error, 1)}
	for _, n := range seats {
		w := &row{audience: a, seats: make([]seat, n)}
		for i := range w.seats {
			w.seats[i].row = w
			w.seats[i].Subscribed(0, time.Now())
		}
		a.rows = append(a.rows, w)
	}
	return a
}

// failureOf returns what an audience has failed with, or nil.
func failureOf(a *audience) error {
	select {
	case err := <-a.failed:
		return err
	default:
		return nil
	}
}

func (s *seat) gets(first, last uint64) { s.Frames(int(last-first+1), first, last, 100, time.Now()) }

// A publisher goes on when everybody has a frame: neither the fastest subscriber nor
// the fastest connection counts.
func TestFramesCountWhenEverybodyHasThem(t *testing.T) {
	a := seated(newGate(10, 1), true, 2, 1)
	for range 3 {
		<-a.gate.tokens
	}
	for _, step := range []struct {
		row, seat int
		first     uint64
		last      uint64
		delivered uint64
	}{
		{0, 0, 1, 3, 0},
		{1, 0, 1, 2, 0},
		{0, 1, 1, 1, 1},
		{0, 1, 2, 3, 2},
		{1, 0, 3, 3, 3},
	} {
		a.rows[step.row].seats[step.seat].gets(step.first, step.last)
		if got := a.gate.delivered.Load(); got != step.delivered {
			t.Fatalf("after %+v everybody has %d frames", step, got)
		}
	}
	if len(a.gate.tokens) != 10 {
		t.Errorf("%d of 10 tokens are back", len(a.gate.tokens))
	}
	if got := a.messages(); got != 5 {
		t.Errorf("%d messages were counted of 5", got)
	}
}

func TestFramesCountByThemselvesWhereStreamsAreMany(t *testing.T) {
	a := seated(newGate(4, 1), false, 2, 1)
	<-a.gate.tokens
	<-a.gate.tokens
	a.rows[0].seats[1].gets(1, 1)
	a.rows[1].seats[0].gets(1, 1)
	if got := a.gate.delivered.Load(); got != 2 || len(a.gate.tokens) != 4 {
		t.Errorf("%d frames are delivered, %d tokens are back", got, len(a.gate.tokens))
	}
}

func TestAudienceChecksWhatArrives(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*seat)
		want string // "" if all is well
	}{
		{"in order", func(s *seat) { s.gets(1, 2); s.gets(3, 3) }, ""},
		{"one left out", func(s *seat) { s.gets(1, 1); s.gets(3, 3) }, "frame 3 came after frame 1"},
		{"one twice", func(s *seat) { s.gets(1, 1); s.gets(1, 1) }, "frame 1 came after frame 1"},
		{"a gap", func(s *seat) { s.Notice(load.Gap, time.Now()) }, "a gap"},
		{"a status", func(s *seat) { s.End(errors.New("slow")) }, "a subscription ended: slow"},
		{"an end", func(s *seat) { s.End(nil) }, "the status is OK"},
		{"an end of our own", func(s *seat) { s.End(load.ErrClosed) }, ""},
	} {
		a := seated(newGate(100, 1), false, 1)
		for range 10 {
			<-a.gate.tokens
		}
		c.do(&a.rows[0].seats[0])
		switch err := failureOf(a); {
		case err == nil && c.want != "", err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A stalled subscription may end, for the server's reasons, but what it gets is
// checked, and that it stalled.
func TestHeldSubscriptionsAreChecked(t *testing.T) {
	a := seated(newGate(100, 1), true, 1)
	w := a.rows[0]
	w.held = make([]heldSeat, 1)
	held := &w.held[0]
	held.row = w
	held.Subscribed(0, time.Now())
	for range 3 {
		<-a.gate.tokens
	}
	w.seats[0].gets(1, 3)
	held.Frames(2, 1, 2, 200, time.Now())
	held.End(errors.New("it took nothing"))
	if err := firstOf(a.stalled(), failureOf(a)); err != nil {
		t.Errorf("a subscription that stalled after 2 of 3 frames: %v", err)
	}
	held.Frames(1, 3, 3, 100, time.Now())
	if err := a.stalled(); err == nil {
		t.Error("one that got everything passes as stalled")
	}
	held.Frames(1, 5, 5, 100, time.Now())
	if err := failureOf(a); err == nil || !strings.Contains(err.Error(), "frame 5 came after frame 3") {
		t.Errorf("one that missed a frame: %v", err)
	}
}

func TestSharesAddUp(t *testing.T) {
	for n := range 20 {
		for of := 1; of < 8; of++ {
			sum := 0
			for i := range of {
				sum += share(n, of, i)
			}
			if sum != n || share(n, of, 0)-share(n, of, of-1) > 1 {
				t.Errorf("of %d each of %d gets %d to %d, in all %d", n, of, share(n, of, of-1), share(n, of, 0), sum)
			}
		}
	}
}
