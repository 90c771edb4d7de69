package clientlib_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// publishes answers Publish with errors first, and keeps the requests.
type publishes struct {
	errs []error

	mu   sync.Mutex
	seen []*fanfarev1.NewFrame
	at   []time.Time
}

func (p *publishes) answer(_ context.Context, r *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen, p.at = append(p.seen, r.GetFrame()), append(p.at, time.Now())
	if len(p.seen) <= len(p.errs) {
		return nil, p.errs[len(p.seen)-1]
	}
	answer := &fanfarev1.PublishResponse{Duplicate: len(p.seen) > 1}
	if !r.GetFrame().GetEphemeral() {
		answer.Position = &fanfarev1.Position{Epoch: 7, Sequence: 5}
	}
	return answer, nil
}

// Scenario S34, symptom: a publish was tried again that may have been stored, and was
// stored twice. Cause: a policy that went by the code alone. What is tried again is what
// stored nothing, and with a key what may have.
func TestPublishIsTriedAgainOnlyWhereThatIsSafe(t *testing.T) {
	ephemeral := func(f *clientlib.NewFrame) { f.Ephemeral = true }
	own := func(f *clientlib.NewFrame) { f.IdempotencyKey = "own" }
	for name, test := range map[string]struct {
		err    error
		frame  func(*clientlib.NewFrame)
		noKeys bool
		again  bool
		// unknown is true if the caller must be told that the outcome is.
		unknown bool
	}{
		"nothing was stored":                   {err: refusal(codes.Unavailable, "STORE_UNAVAILABLE", time.Millisecond), again: true},
		"nothing was stored, ephemeral":        {err: refusal(codes.Unavailable, "STORE_UNAVAILABLE", time.Millisecond), frame: ephemeral, again: true},
		"nothing was stored, no key":           {err: refusal(codes.Unavailable, "DRAINING", 0), noKeys: true, again: true},
		"queue full":                           {err: refusal(codes.ResourceExhausted, "PUBLISH_QUEUE_FULL", time.Millisecond), noKeys: true, again: true},
		"a limit that waiting does not change": {err: refusal(codes.ResourceExhausted, "LIMIT_REACHED", 0)},
		"outcome unknown":                      {err: refusal(codes.Unknown, "OUTCOME_UNKNOWN", time.Millisecond), again: true},
		"outcome unknown, own key":             {err: refusal(codes.Unknown, "OUTCOME_UNKNOWN", time.Millisecond), frame: own, noKeys: true, again: true},
		"outcome unknown, no key":              {err: refusal(codes.Unknown, "OUTCOME_UNKNOWN", time.Millisecond), noKeys: true, unknown: true},
		"outcome unknown, ephemeral":           {err: refusal(codes.Unknown, "OUTCOME_UNKNOWN", time.Millisecond), frame: ephemeral, unknown: true},
		"the connection's UNAVAILABLE":         {err: refusal(codes.Unavailable, "", 0), again: true},
		"the connection's UNAVAILABLE, no key": {err: refusal(codes.Unavailable, "", 0), noKeys: true, unknown: true},
		"the connection's, ephemeral":          {err: refusal(codes.Unavailable, "", 0), frame: ephemeral, unknown: true},
		"a fault of the server":                {err: refusal(codes.Internal, "INTERNAL", 0), again: true},
		"a fault of the server, no key":        {err: refusal(codes.Internal, "INTERNAL", 0), noKeys: true, unknown: true},
		"a field outside its limit":            {err: refusal(codes.InvalidArgument, "INVALID_FIELD", 0)},
		"another head than expected":           {err: refusal(codes.Aborted, "EXPECTATION_FAILED", 0)},
		"a key of another content":             {err: refusal(codes.AlreadyExists, "KEY_CONFLICT", 0), frame: own},
		"no permission":                        {err: refusal(codes.PermissionDenied, "", 0)},
		"no token":                             {err: refusal(codes.Unauthenticated, "", 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &publishes{errs: []error{test.err}}
			options := []clientlib.Option{clientlib.WithBackoff(time.Millisecond, 5*time.Millisecond)}
			if test.noKeys {
				options = append(options, clientlib.WithoutIdempotencyKeys())
			}
			c := newClient(t, []string{(&fakeServer{publish: server.answer}).start(t)}, options...)
			f := frame(stream("retries"), "payload")
			if test.frame != nil {
				test.frame(&f)
			}
			got, err := c.Publish(t.Context(), f)
			if again := len(server.seen) == 2; again != test.again || len(server.seen) > 2 || again != (err == nil) {
				t.Fatalf("%d requests, %v; want another %t", len(server.seen), err, test.again)
			}
			if unknown := errors.Is(err, clientlib.ErrOutcomeUnknown); unknown != test.unknown {
				t.Errorf("the outcome of %v is unknown: %t", err, unknown)
			}
			if test.again {
				first, second := server.seen[0], server.seen[1]
				if first.GetIdempotencyKey() != second.GetIdempotencyKey() {
					t.Errorf("the keys are %q and %q", first.GetIdempotencyKey(), second.GetIdempotencyKey())
				}
				if made := first.GetIdempotencyKey() != "" && f.IdempotencyKey == ""; got.Duplicate == made {
					t.Errorf("made key %t, duplicate %t", made, got.Duplicate)
				}
				return
			}
			var e *clientlib.Error
			if !errors.As(err, &e) || e.Code == codes.OK || status.Code(err) != e.Code {
				t.Errorf("got %#v", err)
			}
		})
	}
}

func TestErrorsCarryWhatTheServerSaid(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL)
		c := newClient(t, []string{r.Addr})
		s := stream("errors")
		head := publish(t, c, frame(s, "1"))
		f := frame(s, "2")
		f.Expected = &clientlib.Expected{Sequence: 7}
		_, err := c.Publish(t.Context(), f)
		var e *clientlib.Error
		if !errors.As(err, &e) || e.Code != codes.Aborted || e.Reason != clientlib.ReasonExpectationFailed || e.Position != head {
			t.Errorf("another head: %#v", err)
		}
		f.Expected = &clientlib.Expected{Sequence: head.Sequence, Epoch: head.Epoch}
		f.IdempotencyKey = "key"
		published, err := c.Publish(t.Context(), f)
		if err != nil || published.Position.Sequence != 2 || published.Duplicate {
			t.Errorf("the expected head: %+v, %v", published, err)
		}
		if again, err := c.Publish(t.Context(), f); err != nil || again.Position != published.Position || !again.Duplicate {
			t.Errorf("the same key, whose expectation is no longer met: %+v, %v", again, err)
		}
		f.Payload = []byte("other")
		if _, err = c.Publish(t.Context(), f); !errors.As(err, &e) || e.Reason != clientlib.ReasonKeyConflict || e.Position != published.Position {
			t.Errorf("another content: %#v", err)
		}
		if _, err = c.Publish(t.Context(), frame(clientlib.Stream{}, "")); !errors.As(err, &e) || e.Code != codes.InvalidArgument || e.Field != "frame.channel" {
			t.Errorf("no channel: %#v", err)
		}
	})
}

// Scenario S34. The answer to a publish is lost with the connection, after it was stored:
// with a key of the library's the frame is there once, and no duplicate to the caller.
// Without one the caller is told that the outcome is unknown, and the server has seen one
// request.
func TestLostAnswers(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL)
		direct := newClient(t, []string{r.Addr})
		s := stream("lost answers")
		watched := read(t, direct.Subscribe(t.Context(), s, clientlib.Oldest()))
		until[*clientlib.CaughtUp](watched)
		for i, noKeys := range []bool{false, true} {
			options := []clientlib.Option{quick()}
			if noKeys {
				options = append(options, clientlib.WithoutIdempotencyKeys())
			}
			proxy := pgtest.Proxy(t, r.Addr)
			c := newClient(t, []string{proxy.Addr()}, options...)
			if _, err := c.PublishBatch(t.Context(), []clientlib.NewFrame{frame(stream("warm"), "")}); err != nil {
				t.Fatal(err)
			}
			proxy.Blackhole(pgtest.ToClient)
			type outcome struct {
				clientlib.Published
				err error
			}
			done := make(chan outcome, 1)
			go func() {
				p, err := c.Publish(t.Context(), frame(s, "payload"))
				done <- outcome{p, err}
			}()
			stored := until[*clientlib.Frame](watched) // it is stored; the answer waits in the proxy
			proxy.Reset()
			proxy.Restore()
			got := <-done
			switch {
			case noKeys && !errors.Is(got.err, clientlib.ErrOutcomeUnknown):
				t.Errorf("without a key: %+v, %v", got.Published, got.err)
			case !noKeys && (got.err != nil || got.Position != stored.Position || got.Duplicate):
				t.Errorf("with a key: %+v, %v; stored at %s", got.Published, got.err, stored.Position)
			}
			if marker := publish(t, direct, frame(s, "marker")); marker.Sequence != uint64(2*i+2) {
				t.Errorf("no keys %t: the frame after is %s, so it was stored more than once", noKeys, marker)
			}
			until[*clientlib.Frame](watched)
		}
	})
}

// A server that is away is waited for; nothing was sent, so no key is needed.
func TestPublishWaitsForAServer(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, "sqlite::memory:")
	proxy := pgtest.Proxy(t, r.Addr)
	proxy.Refuse()
	c := newClient(t, []string{proxy.Addr()}, clientlib.WithoutIdempotencyKeys())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := c.Publish(ctx, frame(stream("away"), "never"))
	var e *clientlib.Error
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, clientlib.ErrOutcomeUnknown) || !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	time.AfterFunc(50*time.Millisecond, proxy.Restore)
	if p := publish(t, c, frame(stream("away"), "payload")); p.Sequence != 1 {
		t.Errorf("stored at %s", p)
	}
}

// Symptom: a publish went on after its client was closed, for ever if its context let it,
// and a closed client still published; and while it paused, which servers may ask for as
// long as they like, it did not see that.
func TestCloseEndsPublishes(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	tried := make(chan struct{}, 1)
	away := refusal(codes.Unavailable, "STORE_UNAVAILABLE", time.Hour)
	c := newClient(t, []string{(&fakeServer{publish: func(context.Context, *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
		tries.Add(1)
		select {
		case tried <- struct{}{}:
		default:
		}
		return nil, away
	}}).start(t)})
	failed := make(chan error)
	go func() {
		_, err := c.Publish(context.Background(), frame(stream(""), ""))
		failed <- err
	}()
	<-tried
	_ = c.Close()
	select {
	case err := <-failed:
		var e *clientlib.Error
		if !errors.Is(err, clientlib.ErrClosed) || !errors.As(err, &e) || e.Reason != "STORE_UNAVAILABLE" {
			t.Errorf("under way: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the publish goes on")
	}
	before := tries.Load()
	if _, err := c.Publish(t.Context(), frame(stream(""), "")); !errors.Is(err, clientlib.ErrClosed) {
		t.Errorf("Publish afterwards: %v", err)
	}
	if _, err := c.PublishBatch(t.Context(), []clientlib.NewFrame{frame(stream(""), "")}); !errors.Is(err, clientlib.ErrClosed) {
		t.Errorf("PublishBatch afterwards: %v", err)
	}
	if tries.Load() != before {
		t.Error("a closed client published")
	}
}

// One attempt that hangs does not use up the time of all.
func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	var server publishes
	hang := make(chan struct{})
	defer close(hang)
	first := true
	address := (&fakeServer{publish: func(ctx context.Context, r *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
		if first {
			first = false
			select {
			case <-ctx.Done():
			case <-hang:
			}
			return nil, ctx.Err()
		}
		return server.answer(ctx, r)
	}}).start(t)
	c := newClient(t, []string{address}, clientlib.WithAttemptTimeout(50*time.Millisecond))
	publish(t, c, frame(stream("hangs"), ""))
}

func TestRetryInIsHonoured(t *testing.T) {
	t.Parallel()
	const asked = 150 * time.Millisecond
	server := &publishes{errs: slices.Repeat([]error{refusal(codes.ResourceExhausted, "PUBLISH_QUEUE_FULL", asked)}, 3)}
	c := newClient(t, []string{(&fakeServer{publish: server.answer}).start(t)})
	publish(t, c, frame(stream("asked"), ""))
	for i, at := range server.at[1:] {
		if pause := at.Sub(server.at[i]); pause < asked {
			t.Errorf("pause %d is %s", i, pause)
		}
	}
}

func TestPublishBatch(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, "sqlite::memory:")
	c := newClient(t, []string{r.Addr})
	a, b := stream("a"), stream("b")
	results, err := c.PublishBatch(t.Context(), []clientlib.NewFrame{frame(a, "1"), frame(b, "2"), frame(a, "3")})
	if err != nil || len(results) != 3 || results[0].Position.Sequence != 1 || results[1].Position.Sequence != 1 || results[2].Position.Sequence != 2 {
		t.Fatalf("got %v, %v", results, err)
	}
	bad := frame(a, "")
	bad.EventType = "fanfare.reserved"
	var e *clientlib.Error
	if _, err := c.PublishBatch(t.Context(), []clientlib.NewFrame{frame(a, "4"), bad}); !errors.As(err, &e) || e.Field != "frames[1].event_type" {
		t.Errorf("got %v", err)
	}
	if p := publish(t, c, frame(a, "4")); p.Sequence != 3 {
		t.Errorf("after a batch that was refused, a frame is stored at %s", p)
	}
}

// A batch is tried again if all its durable frames have keys; its ephemeral frames are
// then not announced twice. Ephemeral frames alone are not tried again.
func TestBatchesAreTriedAgainOnlyWhereThatIsSafe(t *testing.T) {
	ephemeral := frame(stream("b"), "e")
	ephemeral.Ephemeral = true
	for name, test := range map[string]struct {
		frames []clientlib.NewFrame
		again  bool
	}{
		"durable":   {[]clientlib.NewFrame{frame(stream("a"), "1"), frame(stream("b"), "2")}, true},
		"mixed":     {[]clientlib.NewFrame{frame(stream("a"), "1"), ephemeral}, true},
		"ephemeral": {[]clientlib.NewFrame{ephemeral, ephemeral}, false},
	} {
		calls := 0
		address := (&fakeServer{publishBatch: func(_ context.Context, r *fanfarev1.PublishBatchRequest) (*fanfarev1.PublishBatchResponse, error) {
			if calls++; calls == 1 {
				return nil, refusal(codes.Unknown, "OUTCOME_UNKNOWN", 0)
			}
			return &fanfarev1.PublishBatchResponse{Results: make([]*fanfarev1.PublishResponse, len(r.GetFrames()))}, nil
		}}).start(t)
		_, err := newClient(t, []string{address}).PublishBatch(t.Context(), test.frames)
		if (calls == 2) != test.again || (err == nil) != test.again {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
	}
}
