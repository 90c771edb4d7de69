package clientlib_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// byHand plays a PublishStream of which the test answers each frame.
type byHand struct {
	t       *testing.T
	p       *clientlib.Publisher
	came    chan *fanfarev1.PublishStreamRequest
	answers chan *fanfarev1.PublishStreamResponse
}

func newByHand(t *testing.T, ctx context.Context) *byHand {
	h := &byHand{t: t, came: make(chan *fanfarev1.PublishStreamRequest, 100), answers: make(chan *fanfarev1.PublishStreamResponse, 100)}
	address := (&fakeServer{publishStream: h.serve}).start(t)
	h.p = newClient(t, []string{address}).NewPublisher(ctx)
	return h
}

func (h *byHand) serve(call fanfarev1.FanfareService_PublishStreamServer) error {
	ended := make(chan error, 1)
	go func() {
		for {
			r, err := call.Recv()
			if err != nil {
				ended <- err
				return
			}
			h.came <- r
		}
	}()
	for {
		select {
		case answer := <-h.answers:
			if err := call.Send(answer); err != nil {
				return err
			}
		case <-ended:
			return nil
		}
	}
}

func (h *byHand) publish(scope, payload string) *clientlib.Pending {
	h.t.Helper()
	sent, err := h.p.Publish(h.t.Context(), frame(stream(scope), payload))
	if err != nil {
		h.t.Fatal(err)
	}
	return sent
}

// next returns the number of the frame that comes next, which must be this one.
func (h *byHand) next(payload string) uint64 {
	h.t.Helper()
	select {
	case r := <-h.came:
		if got := string(r.GetFrame().GetPayload()); got != payload {
			h.t.Fatalf("%q came, want %q", got, payload)
		}
		return r.GetNumber()
	case <-time.After(30 * time.Second):
		h.t.Fatalf("%q did not come", payload)
		return 0
	}
}

func (h *byHand) store(number uint64) {
	h.answers <- &fanfarev1.PublishStreamResponse{Number: number, Outcome: &fanfarev1.PublishStreamResponse_Published{
		Published: &fanfarev1.PublishResponse{Position: &fanfarev1.Position{Epoch: 7, Sequence: number}},
	}}
}

func (h *byHand) refuse(number uint64, e *fanfarev1.Error) {
	h.answers <- &fanfarev1.PublishStreamResponse{Number: number, Outcome: &fanfarev1.PublishStreamResponse_Error{Error: e}}
}

// settle returns when the publisher has taken what was published and answered before.
func (h *byHand) settle() {
	h.t.Helper()
	marker := h.publish("another", "marker")
	h.store(h.next("marker"))
	if _, err := marker.Wait(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// A frame was stored after one that was published later. Cause: the publisher held it for
// one that was refused; that was given up since another had overtaken it, and with nothing
// refused any more the next frame of the stream went out at once, while the held one waited
// until none was on its way.
func TestPublisherKeepsTheOrderOfWhatItHeld(t *testing.T) {
	t.Parallel()
	h := newByHand(t, t.Context())
	first, second, third := h.publish("s", "1"), h.publish("s", "2"), h.publish("s", "3")
	one, two, three := h.next("1"), h.next("2"), h.next("3")
	h.refuse(one, queueFull)
	h.settle()
	fourth := h.publish("s", "4") // waits for the first
	h.settle()
	h.store(two) // the first would come after it
	if _, err := first.Wait(t.Context()); err == nil {
		t.Error("the first was stored")
	}
	fifth := h.publish("s", "5")
	for _, payload := range []string{"4", "5"} {
		h.store(h.next(payload))
	}
	h.store(three)
	for i, sent := range []*clientlib.Pending{second, third, fourth, fifth} {
		if _, err := sent.Wait(t.Context()); err != nil {
			t.Errorf("frame %d: %v", i+2, err)
		}
	}
	if err := h.p.Close(); err != nil {
		t.Error(err)
	}
}

// A frame that may have been stored was told to be certainly not. Cause: an answer that
// leaves the outcome open was held as any refusal, and what became of the frame then told
// of the last answer alone.
func TestPublisherRemembersDoubt(t *testing.T) {
	maybe := map[string]*fanfarev1.Error{
		"unknown":  {Code: int32(codes.Unknown), Reason: fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN},
		"internal": {Code: int32(codes.Internal), Reason: fanfarev1.ErrorReason_ERROR_REASON_INTERNAL},
	}
	later := &fanfarev1.Error{
		Code: int32(codes.ResourceExhausted), Reason: fanfarev1.ErrorReason_ERROR_REASON_PUBLISH_QUEUE_FULL,
		RetryIn: durationpb.New(time.Hour),
	}
	for name, answer := range maybe {
		t.Run(name+", and refused later", func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h := newByHand(t, ctx)
			sent := h.publish("s", "1")
			h.refuse(h.next("1"), answer)
			h.refuse(h.next("1"), later)
			h.settle()
			cancel()
			if _, err := sent.Wait(t.Context()); !errors.Is(err, clientlib.ErrOutcomeUnknown) {
				t.Errorf("its outcome: %v", err)
			}
			if err := h.p.Close(); !errors.Is(err, context.Canceled) {
				t.Errorf("Close: %v", err)
			}
		})
		t.Run(name+", and overtaken", func(t *testing.T) {
			t.Parallel()
			h := newByHand(t, t.Context())
			sent := h.publish("s", "1")
			h.publish("s", "2")
			one, two := h.next("1"), h.next("2")
			h.refuse(one, answer)
			h.store(two)
			if _, err := sent.Wait(t.Context()); !errors.Is(err, clientlib.ErrOutcomeUnknown) {
				t.Errorf("its outcome: %v", err)
			}
			if err := h.p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
