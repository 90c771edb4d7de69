package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// calls plays Subscribe: the nth call by the nth function, and the last by all further
// ones. It keeps when they came and what they asked for.
type calls struct {
	plays []func(*fanfarev1.SubscribeRequest, fanfarev1.FanfareService_SubscribeServer) error

	mu       sync.Mutex
	requests []*fanfarev1.SubscribeRequest
	at       []time.Time
}

func (c *calls) serve(r *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
	c.mu.Lock()
	n := len(c.requests)
	c.requests, c.at = append(c.requests, r), append(c.at, time.Now())
	c.mu.Unlock()
	return c.plays[min(n, len(c.plays)-1)](r, s)
}

func (c *calls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requests)
}

// deliver sends Subscribed where the request asks for it, and the frames with sequences.
func deliver(r *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer, sequences ...uint64) error {
	after := r.GetAfter()
	if after == nil {
		after = &fanfarev1.Position{Epoch: 7}
	}
	err := s.Send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{
		Subscribed: &fanfarev1.Subscribed{ResumeAfter: after, Resumed: r.GetAfter() != nil},
	}})
	if err != nil {
		return err
	}
	frames := &fanfarev1.SubscribeResponse{}
	for _, n := range sequences {
		frames.Frames = append(frames.Frames, &fanfarev1.Frame{Position: &fanfarev1.Position{Epoch: 7, Sequence: n}, Payload: []byte(fmt.Sprint(n))})
	}
	return s.Send(frames)
}

// idles delivers frames and waits for the end of the call.
func idles(sequences ...uint64) func(*fanfarev1.SubscribeRequest, fanfarev1.FanfareService_SubscribeServer) error {
	return func(r *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
		if err := deliver(r, s, sequences...); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}
}

// fails delivers frames and fails.
func fails(err error, sequences ...uint64) func(*fanfarev1.SubscribeRequest, fanfarev1.FanfareService_SubscribeServer) error {
	return func(r *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
		if err := deliver(r, s, sequences...); err != nil {
			return err
		}
		return err
	}
}

// Scenario S63, symptom: a client read on from a call that had ended with an error, which
// never ended. Each error is followed by one new call, and pauses; a server that ends a
// call of its own accord without saying why is no exception.
func TestEachEndIsFollowedByOneCall(t *testing.T) {
	t.Parallel()
	const asked = 100 * time.Millisecond
	c := &calls{}
	for _, err := range []error{
		refusal(codes.Unavailable, "", 0), refusal(codes.Internal, "INTERNAL", 0), refusal(codes.ResourceExhausted, "SLOW_SUBSCRIBER", asked),
		refusal(codes.Unknown, "", 0), refusal(codes.Unavailable, "MAX_STREAM_AGE", asked), refusal(codes.OutOfRange, "", 0), nil,
	} {
		c.plays = append(c.plays, fails(err))
	}
	failing := len(c.plays)
	c.plays = append(c.plays, idles(1))
	r := read(t, newClient(t, []string{(&fakeServer{subscribe: c.serve}).start(t)}).Subscribe(t.Context(), stream(""), clientlib.Oldest()))
	for range failing {
		interrupted := until[*clientlib.Interrupted](r)
		var e *clientlib.Error
		if !errors.As(interrupted.Err, &e) || interrupted.RetryIn < e.RetryIn {
			t.Errorf("got %+v", interrupted)
		}
	}
	r.expect("subscribed after 0, resumed true", "1 1")
	if got := c.count(); got != failing+1 {
		t.Errorf("%d calls", got)
	}
	for i := range failing {
		if pause := c.at[i+1].Sub(c.at[i]); pause < 4*time.Millisecond || (i == 2 || i == 4) && pause < asked {
			t.Errorf("call %d came after %s", i+1, pause)
		}
	}
}

// Calls that each bring something new are no failure that goes on: the pauses stay short.
func TestProgressKeepsThePausesShort(t *testing.T) {
	t.Parallel()
	const shortest = 2 * time.Millisecond
	c := &calls{}
	for n := range uint64(10) {
		c.plays = append(c.plays, fails(refusal(codes.Unavailable, "", 0), n+1))
	}
	client := newClient(t, []string{(&fakeServer{subscribe: c.serve}).start(t)}, clientlib.WithBackoff(shortest, time.Minute))
	r := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest()))
	for n := range 10 {
		if got := until[*clientlib.Interrupted](r).RetryIn; got > 3*shortest {
			t.Fatalf("after %d calls that brought a frame each the pause is %s", n+1, got)
		}
	}
}

// Scenario S165: errors that trying again cannot help end the subscription after one call.
func TestFinalErrorsEndASubscription(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented, codes.NotFound, codes.FailedPrecondition, codes.Unauthenticated} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			c := &calls{}
			c.plays = append(c.plays, func(*fanfarev1.SubscribeRequest, fanfarev1.FanfareService_SubscribeServer) error {
				return refusal(code, "", 0)
			})
			r := read(t, newClient(t, []string{(&fakeServer{subscribe: c.serve}).start(t)}).Subscribe(t.Context(), stream(""), clientlib.Oldest()))
			var e *clientlib.Error
			if err := r.ends(); !errors.As(err, &e) || e.Code != code || c.count() != 1 || len(r.seen) != 0 {
				t.Errorf("%d calls, %q, %v", c.count(), r.seen, err)
			}
		})
	}
}

// A server that skips a frame once is asked again for what follows the last good one; one
// that does so each time is given up. The frame after the hole is never handed on.
func TestHolesAreNotHandedOn(t *testing.T) {
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		c := &calls{}
		c.plays = append(c.plays, idles(1, 2, 4), idles(3, 4))
		r := read(t, newClient(t, []string{(&fakeServer{subscribe: c.serve}).start(t)}).Subscribe(t.Context(), stream(""), clientlib.Oldest()))
		r.expect("subscribed after 0, resumed false", "1 1", "2 2", "interrupted", "subscribed after 2, resumed true", "3 3", "4 4")
	})
	t.Run("always", func(t *testing.T) {
		t.Parallel()
		c := &calls{}
		c.plays = append(c.plays, idles(1, 3), idles(3))
		r := read(t, newClient(t, []string{(&fakeServer{subscribe: c.serve}).start(t)}).Subscribe(t.Context(), stream(""), clientlib.Oldest()))
		if err := r.ends(); !errors.Is(err, clientlib.ErrNotContiguous) {
			t.Errorf("got %v", err)
		}
		if slices.Contains(r.seen, "3 3") || c.count() != 5 {
			t.Errorf("%d calls, %q", c.count(), r.seen)
		}
	})
}

// tokens is a source that numbers its tokens.
type tokens struct {
	mu      sync.Mutex
	number  int
	fetched int
}

func (s *tokens) token(_ context.Context, refresh bool) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refresh {
		s.number++
		s.fetched++
	}
	return fmt.Sprint("token ", s.number), nil
}

func sentToken(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("authorization"); len(got) == 1 {
		return got[0]
	}
	return ""
}

// Scenario S61, symptom: a subscription whose token had expired began again from the start
// with the new one. It goes on after its position, with one new token.
func TestANewTokenGoesOnAtThePosition(t *testing.T) {
	t.Parallel()
	c := &calls{}
	expired := refusal(codes.Unauthenticated, "", 0)
	c.plays = append(c.plays, fails(expired, 1, 2, 3), fails(expired, 4), idles(5, 6))
	source := &tokens{}
	f := &fakeServer{
		subscribe: func(r *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
			if got, want := sentToken(s.Context()), fmt.Sprint("Bearer token ", c.count()); got != want {
				t.Errorf("the token is %q, want %q", got, want)
			}
			return c.serve(r, s)
		},
		publish: func(ctx context.Context, _ *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
			if sentToken(ctx) != "Bearer token 3" {
				return nil, refusal(codes.Unauthenticated, "", 0)
			}
			return &fanfarev1.PublishResponse{}, nil
		},
	}
	client := newClient(t, []string{f.start(t)}, clientlib.WithTokenSource(source.token))
	r := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest()))
	r.expect("subscribed after 0, resumed false", "1 1", "2 2", "3 3", "interrupted", "subscribed after 3, resumed true", "4 4", "interrupted",
		"subscribed after 4, resumed true", "5 5", "6 6")
	if source.fetched != 2 {
		t.Errorf("%d tokens were fetched", source.fetched)
	}
	publish(t, client, frame(stream(""), "")) // it is refused once, too
	if source.fetched != 3 {
		t.Errorf("%d tokens were fetched", source.fetched)
	}
}

// A token source that fails ends a publish at once, and interrupts a subscription.
func TestTokenSourceFails(t *testing.T) {
	t.Parallel()
	c := &calls{}
	c.plays = append(c.plays, idles(1))
	broken := errors.New("no identity provider")
	fail := true
	var mu sync.Mutex
	client := newClient(t, []string{(&fakeServer{subscribe: c.serve}).start(t)}, clientlib.WithTokenSource(func(context.Context, bool) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if fail {
			return "", broken
		}
		return "token", nil
	}))
	if _, err := client.Publish(t.Context(), frame(stream(""), "")); !errors.Is(err, broken) {
		t.Errorf("Publish: %v", err)
	}
	r := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest()))
	if got := until[*clientlib.Interrupted](r); !errors.Is(got.Err, broken) {
		t.Errorf("Subscribe: %v", got.Err)
	}
	mu.Lock()
	fail = false
	mu.Unlock()
	if got := r.frames(1); got[0] != "1" {
		t.Errorf("got %q", got)
	}
}

// Symptom: a publish whose first try may have stored the frame failed as if nothing was.
// Cause: what the token source said before the second try was all that was told.
func TestTokenSourceFailsBetweenTries(t *testing.T) {
	t.Parallel()
	gone := errors.New("no identity provider")
	var tries atomic.Int64
	fake := &fakeServer{publish: func(context.Context, *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
		tries.Add(1)
		return nil, refusal(codes.Unavailable, "", 0)
	}}
	client := newClient(t, []string{fake.start(t)}, clientlib.WithTokenSource(func(context.Context, bool) (string, error) {
		if tries.Load() > 0 {
			return "", gone
		}
		return "token", nil
	}))
	if _, err := client.Publish(t.Context(), frame(stream(""), "")); !errors.Is(err, clientlib.ErrOutcomeUnknown) || !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

// Symptom: a token with the line break of the file that it was read from had a publish
// tried until its context ended. Cause: grpc sends no such header, and tells it as
// INTERNAL of the call.
func TestTokensThatNoHeaderCarries(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"token\n", "t\xf6ken"} {
		client := newClient(t, []string{(&fakeServer{}).start(t)}, clientlib.WithTokenSource(func(context.Context, bool) (string, error) {
			return token, nil
		}))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := client.Publish(ctx, frame(stream(""), "")); err == nil || !strings.Contains(err.Error(), "of the token") {
			t.Errorf("%q: %v", token, err)
		}
	}
}

// Symptom: a subscription whose context had a deadline now and then told of an
// interruption at it, which nothing followed. Cause: the server was told the deadline,
// and ended the call before the client's own clock did.
func TestADeadlineIsNoInterruption(t *testing.T) {
	told := make(chan bool, 1)
	fake := &fakeServer{subscribe: func(_ *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
		_, ok := s.Context().Deadline()
		told <- ok
		<-s.Context().Done()
		return s.Context().Err()
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // the server is reached in it
	defer cancel()
	r := read(t, newClient(t, []string{fake.start(t)}).Subscribe(ctx, stream(""), clientlib.Oldest()))
	if err := r.ends(); !errors.Is(err, context.DeadlineExceeded) || len(r.seen) != 0 {
		t.Errorf("%q, %v", r.seen, err)
	}
	if <-told {
		t.Error("the server was told the deadline")
	}
}
