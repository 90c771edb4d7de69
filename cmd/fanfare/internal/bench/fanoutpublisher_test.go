package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A token is a call's: it comes back when everybody has all frames of a call.
func TestTokensComeBackByTheCall(t *testing.T) {
	g := newGate(512, 64)
	if cap(g.tokens) != 8 {
		t.Fatalf("512 frames in calls of 64 are %d calls", cap(g.tokens))
	}
	for range 8 {
		<-g.tokens
	}
	for _, step := range []struct {
		frames uint64
		tokens int
	}{{63, 0}, {1, 1}, {130, 3}, {61, 3}, {1, 4}, {256, 8}} {
		g.advance(step.frames)
		if len(g.tokens) != step.tokens {
			t.Fatalf("after %d frames %d calls are over, want %d", g.delivered.Load(), len(g.tokens), step.tokens)
		}
	}
}

func TestGateSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(4, 1)
		<-g.tokens
		<-g.tokens
		began := time.Now()
		time.AfterFunc(time.Second, func() { g.advance(1) })
		time.AfterFunc(2*time.Second, func() { g.advance(1) })
		if err := g.settle(t.Context()); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("settled after %s: %v", time.Since(began), err)
		}
		if len(g.tokens) != 4 {
			t.Errorf("%d of 4 tokens are there for the next calls", len(g.tokens))
		}
		<-g.tokens
		if err := g.settle(t.Context()); err == nil || !strings.Contains(err.Error(), "2 frames have reached all subscribers, and the others have not") {
			t.Errorf("a frame that does not reach everybody: %v", err)
		}
	})
}

// Nobody publishes to subscribers of which one has failed.
func TestPublishingEndsWithTheAudience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("frame 3 came after frame 1")
		p := &publisher{audience: seated(newGate(1, 1), true, 1)}
		time.AfterFunc(time.Second, func() { p.audience.fail(failed) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := p.watched(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, failed) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// A publish that commits after the streams were closed would open one again, so a
// call that was made is awaited for a while.
func TestCallsOutlastAnInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		interrupted := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		longer, stop := outlasting(ctx, time.Second)
		defer stop()
		cancel(interrupted)
		began := time.Now()
		<-longer.Done()
		if took := time.Since(began); took != time.Second || !errors.Is(context.Cause(longer), interrupted) {
			t.Errorf("it ended after %s with %v", took, context.Cause(longer))
		}
	})
}

func TestLatenciesAreFromTheCallToTheArrival(t *testing.T) {
	began := time.Now()
	p := &publisher{called: []calledAt{{8, began.Add(20 * time.Millisecond)}, {7, began.Add(10 * time.Millisecond)}}}
	recorded := []*arrivals{
		{all: []arrival{{7, 15 * time.Millisecond}, {8, 21 * time.Millisecond}}},
		{all: []arrival{{7, 12 * time.Millisecond}}},
	}
	took, err := p.latencies(began, recorded)
	if want := []time.Duration{time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond}; err != nil || !slices.Equal(took, want) {
		t.Errorf("got %v, %v, want %v", took, err, want)
	}
	if _, err := p.latencies(began, recorded); err == nil {
		t.Error("arrivals of frames that nobody published have a latency")
	}
}
