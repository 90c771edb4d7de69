package service

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// stalledStream is a stream whose client reads nothing: SendMsg blocks until
// released, as grpc does when the handler has returned.
type stalledStream struct {
	grpc.ServerStream
	ctx      context.Context
	released chan struct{}
}

func (s *stalledStream) Context() context.Context { return s.ctx }

func (s *stalledStream) SendMsg(any) error {
	select {
	case <-s.released:
	case <-s.ctx.Done():
	}
	return status.Error(codes.Canceled, "the stream is done")
}

func sendOnce(_ context.Context, w *writer, _ context.Context) error {
	return w.send(&fanfarev1.PublishStreamResponse{})
}

func stalledCall(_ *writer, draining bool) error {
	if draining {
		return drainingFailure(time.Second)
	}
	return slowSubscriber(time.Second, backlog.Position{})
}

func TestBlockedSendIsEndedByTheWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		stream := &stalledStream{ctx: t.Context(), released: make(chan struct{})}
		began := time.Now()
		err := s.run(stream, sendOnce, stalledCall)
		close(stream.released)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("it ended with %v", err)
		}
		if took := time.Since(began); took < s.cfg.WriteTimeout || took > 2*s.cfg.WriteTimeout {
			t.Errorf("it took %s, the write timeout is %s", took, s.cfg.WriteTimeout)
		}
		s.loops.Wait()
	})
}

// An idle subscription is not a slow one.
func TestIdleCallOutlivesTheWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := s.run(&stalledStream{ctx: ctx}, func(ctx context.Context, _ *writer, _ context.Context) error {
			<-ctx.Done()
			return failureOf(ctx.Err())
		}, stalledCall)
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Scenario S143, symptom: a shutdown hung until it was killed. Cause: a handler
// was blocked in Send by a client that did not read.
func TestBlockedSendDoesNotHoldUpADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		stream := &stalledStream{ctx: t.Context(), released: make(chan struct{})}
		ended := make(chan error, 1)
		go func() { ended <- s.run(stream, sendOnce, stalledCall) }()
		synctest.Wait()
		close(s.ending)
		err := <-ended
		close(stream.released)
		if status.Code(err) != codes.Unavailable {
			t.Errorf("it ended with %v", err)
		}
		s.loops.Wait()
	})
}

// A call whose client reads is waited for: what it still has to say may be the
// outcome of a publish.
func TestDrainWaitsForLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		answered := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- s.run(&stalledStream{ctx: t.Context()}, func(context.Context, *writer, context.Context) error {
				<-answered
				return nil
			}, stalledCall)
		}()
		synctest.Wait()
		close(s.ending)
		elapse(s.cfg.DrainGrace + 10*lastWords)
		close(answered)
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestSendAfterTheHandlerReturned(t *testing.T) {
	w := &writer{stream: &stalledStream{ctx: t.Context()}}
	w.end()
	if err := w.send(&fanfarev1.PublishStreamResponse{}); !errors.Is(err, errCallEnded) {
		t.Errorf("got %v", err)
	}
}

func TestPanicInALoopIsAnError(t *testing.T) {
	s := testServer(t, nil)
	err := s.run(&stalledStream{ctx: t.Context()}, func(context.Context, *writer, context.Context) error {
		panic("a bug")
	}, stalledCall)
	if status.Code(err) != codes.Internal {
		t.Errorf("it ended with %v", err)
	}
}

func TestCallsThatArriveWhileEndingAreRefused(t *testing.T) {
	s := testServer(t, nil)
	close(s.ending)
	if err := s.run(&stalledStream{ctx: t.Context()}, sendOnce, stalledCall); status.Code(err) != codes.Unavailable {
		t.Errorf("it ended with %v", err)
	}
}

// Partings are spread, come after GOAWAY, and leave time for last words.
func TestPartingsAreSpread(t *testing.T) {
	s := testServer(t, nil)
	if d := s.partingDelay(); d < 50*time.Millisecond || d > 51*time.Millisecond {
		t.Errorf("the only call parts after %s", d)
	}
	s.calls.Store(1e6)
	var early, late int
	for range 1000 {
		d := s.partingDelay()
		if d < 50*time.Millisecond || d > s.cfg.DrainGrace*2/3 {
			t.Fatalf("a parting after %s of %s", d, s.cfg.DrainGrace)
		}
		if d < s.cfg.DrainGrace/3 {
			early++
		} else {
			late++
		}
	}
	if early < 300 || late < 300 {
		t.Errorf("%d partings in the first half, %d in the second", early, late)
	}
}

// waitForClosing is a loop that says nothing, and goes when it is told to.
func waitForClosing(_ context.Context, _ *writer, closing context.Context) error {
	<-closing.Done()
	return parting(closing)
}

// Symptom to avoid: all clients of a server that was started an hour ago come back
// in the same second, every hour. Calls that began together end apart, in the last
// tenth of the age.
func TestCallsThatBeganTogetherEndApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, age = 1000, time.Hour
		s := testServer(t, nil)
		s.cfg.MaxStreamAge = age
		began := time.Now()
		ended := make(chan time.Duration, n)
		for range n {
			go func() {
				err := s.run(&stalledStream{ctx: t.Context()}, waitForClosing, stalledCall)
				if f := failureOf(err); f.reason != fanfarev1.ErrorReason_ERROR_REASON_MAX_STREAM_AGE || f.code != codes.Unavailable || f.retryIn <= 0 {
					t.Errorf("it ended with %+v", f)
				}
				ended <- time.Since(began)
			}()
		}
		const parts = 10
		var histogram [parts]int
		for range n {
			took := <-ended
			if took < age*9/10 || took > age {
				t.Fatalf("a call ended after %s", took)
			}
			histogram[min(parts-1, int((took-age*9/10)*parts/(age/10)))]++
		}
		for part, count := range histogram {
			if count < n/parts/2 || count > n/parts*2 {
				t.Errorf("of %d calls %d ended in part %d of the last tenth of the age: %v", n, count, part, histogram)
			}
		}
	})
}

// The age ends what goes on, and nothing is cut off: a client that takes nothing
// at that moment has the write timeout, as ever.
func TestAgeOfABlockedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		s.cfg.MaxStreamAge = s.cfg.WriteTimeout / 2
		stream := &stalledStream{ctx: t.Context(), released: make(chan struct{})}
		began := time.Now()
		err := s.run(stream, sendOnce, stalledCall)
		close(stream.released)
		if took := time.Since(began); status.Code(err) != codes.ResourceExhausted || took < s.cfg.WriteTimeout {
			t.Errorf("it ended with %v after %s", err, took)
		}
		s.loops.Wait()
	})
}

// At a drain GOAWAY goes first; the age of a call must not send its client
// straight back before.
func TestAgeAndDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		s.cfg.MaxStreamAge = time.Hour
		ended := make(chan error, 1)
		go func() { ended <- s.run(&stalledStream{ctx: t.Context()}, waitForClosing, stalledCall) }()
		// The latest moment at which the call is not too old whatever its own age is.
		elapse(s.cfg.MaxStreamAge*9/10 - time.Nanosecond)
		s.cfg.DrainGrace = 10 * s.cfg.MaxStreamAge
		s.calls.Store(1e9) // partings are spread over the whole grace
		close(s.ending)
		if f := failureOf(<-ended); f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
			t.Errorf("it ended with %+v", f)
		}
	})
}

// Scenario S69, symptom: after many reconnects the count of subscriptions was
// below zero, and the limit let in more than it should. Cause: an end that was
// counted twice, or not at all. However calls end, as many as may run at a time
// do, and not one more.
func TestCallsAreCountedExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, clients, rounds = 10, 40, 50
		s := testServer(t, nil)
		s.cfg.MaxSubscriptions, s.cfg.MaxStreamAge = limit, time.Minute
		var refused atomic.Int64
		var mu sync.Mutex // guards running and most
		var running, most int
		ends := []sendLoop{
			func(context.Context, *writer, context.Context) error { return nil },
			func(context.Context, *writer, context.Context) error { return io.ErrUnexpectedEOF },
			func(context.Context, *writer, context.Context) error { panic("a bug") },
			waitForClosing,
			sendOnce, // blocked until the write timeout
			func(ctx context.Context, _ *writer, _ context.Context) error { <-ctx.Done(); return ctx.Err() },
		}
		call := func(loop sendLoop) error {
			ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
			defer cancel()
			return s.run(&stalledStream{ctx: ctx}, func(ctx context.Context, w *writer, closing context.Context) error {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					running--
				}()
				return loop(ctx, w, closing)
			}, stalledCall)
		}
		var g sync.WaitGroup
		for client := range clients {
			g.Go(func() {
				for round := range rounds {
					var f *failure
					if err := call(ends[(client+round)%len(ends)]); err != nil {
						f = failureOf(err)
					}
					if f != nil && f.reason == fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED {
						refused.Add(1)
						if f.code != codes.ResourceExhausted || f.retryIn <= 0 {
							t.Errorf("refused with %+v", f)
						}
					}
					if n := s.calls.Load(); n < 0 || n > limit {
						t.Errorf("%d calls are counted", n)
					}
					elapse(time.Duration(client+round) * time.Millisecond)
				}
			})
		}
		g.Wait()
		s.loops.Wait()
		if n := s.calls.Load(); n != 0 || refused.Load() == 0 || most != limit {
			t.Errorf("%d calls are counted at the end, %d were refused, and %d ran at a time", n, refused.Load(), most)
		}
	})
}
