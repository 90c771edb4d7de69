package service

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Symptom: when the database broke off, frames without an idempotency key, ephemeral ones
// among them, were told to retry "with the same idempotency key".
func TestUnknownOutcomesOfFramesWithoutAKey(t *testing.T) {
	store := &fakeStore{err: backlog.ErrOutcomeUnknown}
	store.answer = func(_ context.Context, _ backlog.Publication, done func(backlog.Outcome, error)) {
		done(backlog.Outcome{}, backlog.ErrOutcomeUnknown)
	}
	s := testServer(t, store)
	stream := openPublishStream(t, store)
	for name, c := range map[string]struct {
		frame *fanfarev1.NewFrame
		want  string
	}{
		"with a key":    {&fanfarev1.NewFrame{Channel: "a", IdempotencyKey: "k"}, "retry with the same idempotency key"},
		"without a key": {&fanfarev1.NewFrame{Channel: "a"}, "without an idempotency key"},
		"ephemeral":     {&fanfarev1.NewFrame{Channel: "a", Ephemeral: true}, "without an idempotency key"},
	} {
		_, single := s.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: c.frame})
		_, batch := s.PublishBatch(t.Context(), &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{{Channel: "a", IdempotencyKey: "other"}, c.frame}})
		mustSend(t, stream, &fanfarev1.PublishStreamRequest{Frame: c.frame})
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for way, message := range map[string]string{
			"Publish": status.Convert(single).Message(), "PublishBatch": status.Convert(batch).Message(), "PublishStream": answer.GetError().GetMessage(),
		} {
			if !strings.Contains(message, c.want) {
				t.Errorf("%s, by %s: %q", name, way, message)
			}
		}
	}
}
