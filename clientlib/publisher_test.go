package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Frames of a publisher whose connection breaks again and again are stored once, in the
// order of the calls, where their answers say, and Close waits for all answers.
func TestPublisherOverBrokenConnections(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL)
		proxy := pgtest.Proxy(t, r.Addr)
		c := newClient(t, []string{proxy.Addr()})
		direct := newClient(t, []string{r.Addr})
		const streams, frames, cuts = 3, 100, 5
		p := c.NewPublisher(t.Context(), clientlib.WithWindow(40, 0))
		var pending [streams][]*clientlib.Pending
		for i := range frames {
			if i%(frames/cuts) == 0 {
				proxy.Reset()
			}
			for n := range streams {
				sent, err := p.Publish(t.Context(), frame(stream(fmt.Sprint("broken ", n)), fmt.Sprint(i)))
				if err != nil {
					t.Fatal(err)
				}
				pending[n] = append(pending[n], sent)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		for n := range streams {
			s := stream(fmt.Sprint("broken ", n))
			publish(t, direct, frame(s, "marker"))
			stored := map[clientlib.Position]string{}
			for r := read(t, direct.Subscribe(t.Context(), s, clientlib.Oldest())); ; {
				f := until[*clientlib.Frame](r)
				if string(f.Payload) == "marker" {
					break
				}
				stored[f.Position] = string(f.Payload)
			}
			if len(stored) != frames {
				t.Errorf("%d frames are stored of %d", len(stored), frames)
			}
			for i, sent := range pending[n] {
				got, err := sent.Wait(t.Context())
				if err != nil || got.Duplicate || stored[got.Position] != fmt.Sprint(i) || got.Position.Sequence != uint64(i+1) {
					t.Fatalf("frame %d: %+v, %v; there is %q", i, got, err, stored[got.Position])
				}
			}
		}
	})
}

// answers plays a PublishStream: how to answer the nth request of all calls, 0 ending the
// call.
type answers struct {
	mu   sync.Mutex
	seen []string
	// each is called with the payload and how often it has come.
	each func(payload string, times int) *fanfarev1.Error
}

func (a *answers) serve(call fanfarev1.FanfareService_PublishStreamServer) error {
	for {
		r, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		payload := string(r.GetFrame().GetPayload())
		a.mu.Lock()
		a.seen = append(a.seen, payload)
		times, sequence := 0, uint64(len(a.seen))
		for _, p := range a.seen {
			if p == payload {
				times++
			}
		}
		a.mu.Unlock()
		answer := &fanfarev1.PublishStreamResponse{Number: r.GetNumber()}
		if e := a.each(payload, times); e != nil {
			answer.Outcome = &fanfarev1.PublishStreamResponse_Error{Error: e}
		} else {
			answer.Outcome = &fanfarev1.PublishStreamResponse_Published{Published: &fanfarev1.PublishResponse{
				Position: &fanfarev1.Position{Epoch: 7, Sequence: sequence},
			}}
		}
		if err := call.Send(answer); err != nil {
			return err
		}
	}
}

var queueFull = &fanfarev1.Error{
	Code: int32(codes.ResourceExhausted), Reason: fanfarev1.ErrorReason_ERROR_REASON_PUBLISH_QUEUE_FULL,
	RetryIn: durationpb.New(10 * time.Millisecond),
}

// Frames that the server refuses for a moment are tried again, in order, if all that came
// after them were refused, too. If a later one was stored they are not: they would come
// after it.
func TestPublisherTriesAgainWhatNothingOvertook(t *testing.T) {
	for name, test := range map[string]struct {
		refused []string
		stored  []string // in order
	}{
		"the last":       {[]string{"3"}, []string{"1", "2", "3"}},
		"the last two":   {[]string{"2", "3"}, []string{"1", "2", "3"}},
		"all":            {[]string{"1", "2", "3"}, []string{"1", "2", "3"}},
		"the first":      {[]string{"1"}, []string{"2", "3"}},
		"first and last": {[]string{"1", "3"}, []string{"2", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &answers{}
			var stored []string
			gate := make(chan struct{})
			a.each = func(payload string, times int) *fanfarev1.Error {
				<-gate // all are on their way before the first is answered
				if times == 1 && slices.Contains(test.refused, payload) {
					return queueFull
				}
				stored = append(stored, payload)
				return nil
			}
			c := newClient(t, []string{(&fakeServer{publishStream: a.serve}).start(t)})
			p := c.NewPublisher(t.Context())
			var pending []*clientlib.Pending
			for _, payload := range []string{"1", "2", "3"} {
				sent, err := p.Publish(t.Context(), frame(stream(""), payload))
				if err != nil {
					t.Fatal(err)
				}
				pending = append(pending, sent)
			}
			close(gate)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(stored, test.stored) {
				t.Errorf("stored are %q, want %q", stored, test.stored)
			}
			for i, sent := range pending {
				_, err := sent.Wait(t.Context())
				if want := slices.Contains(test.stored, fmt.Sprint(i+1)); (err == nil) != want {
					t.Errorf("frame %d: %v", i+1, err)
				}
				var e *clientlib.Error
				if err != nil && (!errors.As(err, &e) || e.Reason != clientlib.ReasonPublishQueueFull) {
					t.Errorf("frame %d: %v", i+1, err)
				}
			}
		})
	}
}

// What follows refused frames of its stream waits for them; other streams go on.
func TestPublisherHoldsOnlyTheStream(t *testing.T) {
	t.Parallel()
	other := make(chan struct{})
	a := &answers{each: func(payload string, times int) *fanfarev1.Error {
		switch payload {
		case "1":
			if times == 1 {
				return queueFull
			}
			<-other // it is tried again only after the other stream went on
		case "other":
			close(other)
		}
		return nil
	}}
	c := newClient(t, []string{(&fakeServer{publishStream: a.serve}).start(t)}, clientlib.WithBackoff(200*time.Millisecond, 200*time.Millisecond))
	p := c.NewPublisher(t.Context())
	send := func(s, payload string) *clientlib.Pending {
		sent, err := p.Publish(t.Context(), frame(stream(s), payload))
		if err != nil {
			t.Fatal(err)
		}
		return sent
	}
	send("s", "1")
	if _, err := send("t", "marker").Wait(t.Context()); err != nil { // the refusal came before
		t.Fatal(err)
	}
	send("s", "2")
	if _, err := send("t", "other").Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"1", "marker", "other", "1", "2"}; !slices.Equal(a.seen, want) {
		t.Errorf("the server saw %q, want %q", a.seen, want)
	}
}

// The end of a call that may have stored what was not answered: frames with a key are sent
// again, the others' outcome is unknown, and Pending.Frame has the key.
func TestPublisherAfterACallThatBroke(t *testing.T) {
	t.Parallel()
	var calls sync.WaitGroup
	first := true
	a := &answers{each: func(string, int) *fanfarev1.Error { return nil }}
	address := (&fakeServer{publishStream: func(call fanfarev1.FanfareService_PublishStreamServer) error {
		calls.Add(1)
		defer calls.Done()
		if first {
			first = false
			for range 2 {
				if _, err := call.Recv(); err != nil {
					return err
				}
			}
			return refusal(codes.Unavailable, "", 0)
		}
		return a.serve(call)
	}}).start(t)
	c := newClient(t, []string{address})
	p := c.NewPublisher(t.Context())
	ephemeral := frame(stream("broken"), "ephemeral")
	ephemeral.Ephemeral = true
	lost, err := p.Publish(t.Context(), ephemeral)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := p.Publish(t.Context(), frame(stream("broken"), "durable"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lost.Wait(t.Context()); !errors.Is(err, clientlib.ErrOutcomeUnknown) {
		t.Errorf("without a key: %v", err)
	}
	if _, err := kept.Wait(t.Context()); err != nil {
		t.Errorf("with a key: %v", err)
	}
	if kept.Frame().IdempotencyKey == "" || lost.Frame().IdempotencyKey != "" {
		t.Errorf("the keys are %q and %q", kept.Frame().IdempotencyKey, lost.Frame().IdempotencyKey)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	calls.Wait()
}

// Each call goes on with the first frame that has no answer, in order, whatever was sent
// before it broke.
func TestPublisherSendsAgainInOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sent [][]string
	address := (&fakeServer{publishStream: func(call fanfarev1.FanfareService_PublishStreamServer) error {
		mu.Lock()
		n := len(sent)
		sent = append(sent, nil)
		mu.Unlock()
		for i := 0; ; i++ {
			r, err := call.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			sent[n] = append(sent[n], string(r.GetFrame().GetPayload()))
			mu.Unlock()
			if i >= 10 { // ten are answered, some more were read
				if i == 15 && n < 5 {
					return refusal(codes.Unavailable, "", 0)
				}
				if n < 5 {
					continue
				}
			}
			answer := &fanfarev1.PublishStreamResponse{Number: r.GetNumber(), Outcome: &fanfarev1.PublishStreamResponse_Published{
				Published: &fanfarev1.PublishResponse{Position: &fanfarev1.Position{Epoch: 7, Sequence: 1}},
			}}
			if err := call.Send(answer); err != nil {
				return err
			}
		}
	}}).start(t)
	p := newClient(t, []string{address}).NewPublisher(t.Context())
	for i := range 100 {
		if _, err := p.Publish(t.Context(), frame(stream(fmt.Sprint(i%2)), fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for n, payloads := range sent {
		for i, payload := range payloads {
			if want := fmt.Sprint(10*n + i); payload != want {
				t.Fatalf("call %d sent %q", n, payloads)
			}
		}
	}
	if len(sent) != 6 {
		t.Errorf("%d calls", len(sent))
	}
}

// A full window blocks Publish until there is an answer, or the caller's context ends.
func TestPublisherWindow(t *testing.T) {
	for name, window := range map[string]clientlib.PublisherOption{
		"frames": clientlib.WithWindow(2, 0), "bytes": clientlib.WithWindow(0, 20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := make(chan struct{})
			a := &answers{each: func(string, int) *fanfarev1.Error { <-gate; return nil }}
			c := newClient(t, []string{(&fakeServer{publishStream: a.serve}).start(t)})
			p := c.NewPublisher(t.Context(), window)
			f := frame(stream("window"), "ten bytes.")
			for range 2 {
				if _, err := p.Publish(t.Context(), f); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if _, err := p.Publish(ctx, f); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a third frame: %v", err)
			}
			gate <- struct{}{}
			if _, err := p.Publish(t.Context(), f); err != nil {
				t.Errorf("after an answer: %v", err)
			}
			close(gate)
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What ends a publisher, and what its frames are told then.
func TestPublisherEnds(t *testing.T) {
	refuses := func(err error) *fakeServer {
		return &fakeServer{publishStream: func(fanfarev1.FanfareService_PublishStreamServer) error { return err }}
	}
	t.Run("by an error that is final", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, []string{refuses(refusal(codes.PermissionDenied, "", 0)).start(t)})
		p := c.NewPublisher(t.Context())
		sent, err := p.Publish(t.Context(), frame(stream("ends"), ""))
		if err != nil {
			t.Fatal(err)
		}
		var e *clientlib.Error
		if _, err := sent.Wait(t.Context()); !errors.As(err, &e) {
			t.Errorf("its frame: %v", err)
		}
		if err := p.Close(); !errors.As(err, &e) || e.Code != codes.PermissionDenied {
			t.Errorf("Close: %v", err)
		}
		if _, err := p.Publish(t.Context(), frame(stream("ends"), "")); !errors.As(err, &e) {
			t.Errorf("another frame: %v", err)
		}
	})
	t.Run("by its context", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, []string{refuses(refusal(codes.Unavailable, "DRAINING", 0)).start(t)})
		ctx, cancel := context.WithCancel(t.Context())
		p := c.NewPublisher(ctx)
		sent, err := p.Publish(t.Context(), frame(stream("ends"), ""))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := sent.Wait(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("its frame: %v", err)
		}
		if err := p.Close(); !errors.Is(err, context.Canceled) {
			t.Errorf("Close: %v", err)
		}
	})
	t.Run("by the client", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, []string{refuses(refusal(codes.Unavailable, "DRAINING", 0)).start(t)})
		p := c.NewPublisher(t.Context())
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Publish(t.Context(), frame(stream("ends"), "")); !errors.Is(err, clientlib.ErrClosed) {
			t.Errorf("a frame: %v", err)
		}
		if err := c.NewPublisher(t.Context()).Close(); !errors.Is(err, clientlib.ErrClosed) {
			t.Errorf("another publisher: %v", err)
		}
	})
	t.Run("by Close", func(t *testing.T) {
		t.Parallel()
		a := &answers{each: func(string, int) *fanfarev1.Error { return nil }}
		c := newClient(t, []string{(&fakeServer{publishStream: a.serve}).start(t)})
		p := c.NewPublisher(t.Context())
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := p.Publish(t.Context(), frame(stream("ends"), "")); !errors.Is(err, clientlib.ErrClosed) {
			t.Errorf("a frame: %v", err)
		}
	})
}
