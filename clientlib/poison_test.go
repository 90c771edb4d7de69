package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Symptom: a publish of a name that is not UTF-8 went on until its context ended, and told
// that the outcome was unknown. One such frame stopped a publisher for good; one such
// subscription was tried again for ever, and interrupted all others of its session each
// time. Cause: protobuf does not send such a text, which grpc tells as INTERNAL of the call.
func TestTextsThatAreNotUTF8(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("sound")
		sibling := w.subscribe(s, clientlib.Oldest())
		sibling.expect("subscribed after 0, resumed false", "caught up at 0")
		for field, bad := range map[string]clientlib.Stream{"channel": {Channel: "a\xff"}, "scope": {Channel: "a", Scope: "\xff"}} {
			mustNameField(t, w.subscribe(bad, clientlib.Oldest()).ends(), field)
		}
		publisher := w.client.NewPublisher(t.Context())
		for field, bad := range map[string]clientlib.NewFrame{
			"channel":         {Stream: clientlib.Stream{Channel: "a\xff"}},
			"scope":           {Stream: clientlib.Stream{Channel: "a", Scope: "\xff"}},
			"content_type":    {Stream: s, ContentType: "\xff"},
			"event_type":      {Stream: s, EventType: "\xff"},
			"idempotency_key": {Stream: s, IdempotencyKey: "\xff"},
			"headers":         {Stream: s, Headers: map[string]string{"name": "\xff"}},
		} {
			_, err := w.client.Publish(t.Context(), bad)
			mustNameField(t, err, "frame."+field)
			_, err = w.client.PublishBatch(t.Context(), []clientlib.NewFrame{frame(s, "good"), bad})
			mustNameField(t, err, "frames[1]."+field)
			_, err = mustTake(t, publisher, bad).Wait(t.Context())
			mustNameField(t, err, "frame."+field)
		}
		if _, err := mustTake(t, publisher, frame(s, "marker")).Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if err := publisher.Close(); err != nil {
			t.Error(err)
		}
		sibling.expect("1 marker")
	})
}

func mustNameField(t *testing.T, err error, field string) {
	t.Helper()
	var e *clientlib.Error
	if !errors.As(err, &e) || e.Code != codes.InvalidArgument || e.Reason != clientlib.ReasonInvalidField || e.Field != field {
		t.Errorf("got %v, want one that names %s", err, field)
	}
}

// mustTake has a publisher take a frame.
func mustTake(t *testing.T, p *clientlib.Publisher, f clientlib.NewFrame) *clientlib.Pending {
	t.Helper()
	sent, err := p.Publish(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// Symptom: after a frame that was larger than a server's grpc takes a publisher published
// nothing any more. Cause: grpc ends the call for it, and the next call began with the
// same frame. It is told alone; the others are published once, in order, also those without
// a key: the server had answered what it took.
func TestPublisherGivesUpTheFrameThatEndsItsCalls(t *testing.T) {
	t.Parallel()
	c := newClient(t, []string{servicetest.Start(t, "sqlite::memory:").Addr})
	ctx := patient(t)
	live := read(t, c.Subscribe(ctx, stream("s"), clientlib.Oldest()))
	until[*clientlib.CaughtUp](live)
	p := c.NewPublisher(ctx)
	tooLarge := make([]byte, 10<<20)
	const rounds = 3
	var good, bad []*clientlib.Pending
	var want []string
	for i := range rounds {
		for n := range 6 {
			f := frame(stream("s"), fmt.Sprint(i, n))
			f.Ephemeral = n%2 == 1
			want = append(want, string(f.Payload))
			good = append(good, mustTake(t, p, f))
		}
		bad = append(bad, mustTake(t, p, clientlib.NewFrame{Stream: stream("s"), Payload: tooLarge}))
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for i, sent := range good {
		if _, err := sent.Wait(ctx); err != nil {
			t.Errorf("frame %d: %v", i, err)
		}
	}
	for _, sent := range bad {
		var e *clientlib.Error
		if _, err := sent.Wait(ctx); !errors.As(err, &e) || e.Code != codes.ResourceExhausted {
			t.Errorf("the frame that is too large: %v", err)
		}
	}
	publish(t, c, frame(stream("s"), "marker"))
	want = append(want, "marker")
	if got := live.frames(len(want)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Symptom: good frames were given up while a proxy refused calls for a moment. Cause: a call
// that ended so was taken for the fault of the one frame that was on its way.
func TestPublisherKeepsItsFramesWhileAProxyRefusesCalls(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	refusals := 5
	a := &answers{each: func(string, int) *fanfarev1.Error { return nil }}
	address := (&fakeServer{publishStream: func(call fanfarev1.FanfareService_PublishStreamServer) error {
		if refusals--; refusals >= 0 {
			return refusal(codes.ResourceExhausted, "", 0)
		}
		return a.serve(call)
	}}).start(t)
	p := newClient(t, []string{address}).NewPublisher(ctx)
	want := []string{"1", "2", "3", "4", "5"}
	var sent []*clientlib.Pending
	for _, payload := range want {
		sent = append(sent, mustTake(t, p, frame(stream("s"), payload)))
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for i, s := range sent {
		if _, err := s.Wait(ctx); err != nil {
			t.Errorf("frame %d: %v", i+1, err)
		}
	}
	if !slices.Equal(a.seen, want) {
		t.Errorf("the server saw %q, want %q", a.seen, want)
	}
}

// Symptom: a publisher waited for ever for a server that stood still behind a proxy that
// answered the pings of the connection. Cause: publishes had a time for each attempt, and
// subscriptions one without heartbeats; frames on their way to a call had none.
func TestPublisherGivesUpASilentCall(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	fake := &fakeServer{publishStream: func(call fanfarev1.FanfareService_PublishStreamServer) error {
		silent := calls.Add(1) == 1
		for {
			r, err := call.Recv()
			if err != nil {
				return err
			}
			if silent {
				continue
			}
			position := &fanfarev1.Position{Epoch: 7, Sequence: r.GetNumber()}
			if err := call.Send(&fanfarev1.PublishStreamResponse{Number: r.GetNumber(), Outcome: &fanfarev1.PublishStreamResponse_Published{
				Published: &fanfarev1.PublishResponse{Position: position},
			}}); err != nil {
				return err
			}
		}
	}}
	c := newClient(t, []string{fake.start(t)}, clientlib.WithIdleTimeout(200*time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := c.NewPublisher(ctx)
	sent := []*clientlib.Pending{mustTake(t, p, frame(stream(""), "1")), mustTake(t, p, frame(stream(""), "2"))}
	for i, s := range sent {
		if got, err := s.Wait(ctx); err != nil || got.Position.Sequence != uint64(i+1) {
			t.Errorf("frame %d: %v, %v", i+1, got, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
