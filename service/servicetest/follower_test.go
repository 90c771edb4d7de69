package servicetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// followerWorld is a replica on an embedded store, who publishes to it, and a way to
// follow.
type followerWorld struct {
	t         *testing.T
	recorder  *Recorder
	replica   *Replica
	publisher Publisher
}

func newFollowerWorld(t *testing.T) *followerWorld {
	w := &followerWorld{t: t, recorder: NewRecorder(), replica: Start(t, "sqlite::memory:", holdEverything)}
	client := func() fanfarev1.FanfareServiceClient { return w.replica.Client }
	w.publisher = Publisher{Name: "p", Recorder: w.recorder, Client: client, Timeout: readyTimeout}
	return w
}

func (w *followerWorld) publish(payload string) Content {
	w.t.Helper()
	f := &fanfarev1.NewFrame{Channel: testStream.Channel, Scope: testStream.Scope, Payload: []byte(payload)}
	if _, err := w.publisher.Publish(w.t.Context(), f); err != nil {
		w.t.Fatal(err)
	}
	return ContentOf(f)
}

func (w *followerWorld) follow(name string, cfg FollowerConfig) *Follower {
	cfg.Pick = w.publisher.Client
	f := w.recorder.Follower(name, testStream, cfg)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	return f
}

func (w *followerWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// One who stalls takes at most one response more, which may have several frames, and
// the rest when it goes on.
func TestFollowerStalls(t *testing.T) {
	w := newFollowerWorld(t)
	stalled, other := w.follow("stalled", FollowerConfig{}), w.follow("other", FollowerConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	w.must(stalled.AwaitSubscribed(ctx))
	taken := func() int {
		stalled.mu.Lock()
		defer stalled.mu.Unlock()
		return stalled.responses
	}
	goOn, goOnToo := stalled.Stall(), stalled.Stall()
	before := taken()
	w.must(other.AwaitFrame(ctx, w.publish("lets the stall begin")))
	var last Content
	for i := range 10 {
		last = w.publish(fmt.Sprint(i))
		w.must(other.AwaitFrame(ctx, last))
	}
	goOn()
	goOn() // does nothing
	if n := taken() - before; n > 1 {
		t.Errorf("one who stalls has taken %d responses more", n)
	}
	goOnToo()
	w.must(stalled.AwaitLastFrame(ctx, last))
	Check(t, w.recorder.Run(), Unbroken)
}

// One who returns after a close asks with its position and is told of the next
// numbering.
func TestFollowerReturnsAfterAClose(t *testing.T) {
	w := newFollowerWorld(t)
	f := w.follow("returns", FollowerConfig{Returns: 10 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	w.must(f.AwaitFrame(ctx, w.publish("of the first numbering")))
	closed := f.Expect("the close", func(e Event) bool { return e.Kind == SawClosed })
	_, err := w.replica.Client.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: testStream.Channel, Scope: testStream.Scope})
	w.must(err)
	w.must(closed(ctx))
	w.must(f.AwaitLastFrame(ctx, w.publish("of the second numbering")))
	for _, s := range []func(backlog.StreamName) bool{nil, func(s backlog.StreamName) bool { return s == testStream }} {
		if broken := len(UnbrokenExcept(s).Validate(w.recorder.Run())) > 0; broken != (s == nil) {
			t.Errorf("a gap between numberings breaks Unbroken: %t", broken)
		}
	}
	Check(t, w.recorder.Run())
}
