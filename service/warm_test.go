package service

import (
	"context"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Symptom: a sixth of the processor time of a Publish was the growth of a new
// goroutine's stack. It runs on one that has grown before, and on a new one only
// while streaming calls hold all of those.
func TestPublishesRunOnWarmGoroutines(t *testing.T) {
	store := &fakeStore{}
	warm := make(chan bool, 1)
	store.answer = func(_ context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
		warm <- strings.Contains(string(debug.Stack()), "grpc.(*Server).serverWorker")
		done(store.number(p), nil)
	}
	client, _, _ := serve(t, testServer(t, store))
	onWarm := func() bool {
		if _, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c"}}); err != nil {
			t.Fatal(err)
		}
		return <-warm
	}
	eventually(t, "a publish runs on a warm goroutine", onWarm)

	ctx, cancel := context.WithCancel(t.Context())
	for range warmGoroutines {
		if _, err := client.PublishStream(ctx); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "streaming calls hold all warm goroutines", func() bool { return !onWarm() })
	cancel()
	eventually(t, "they give them back", onWarm)
}
