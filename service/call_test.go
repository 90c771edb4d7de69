package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
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
	return w.send(encodedFrames{}, backlog.Position{})
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
		time.Sleep(s.cfg.DrainGrace + 10*lastWords) // virtual
		close(answered)
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestSendAfterTheHandlerReturned(t *testing.T) {
	w := &writer{stream: &stalledStream{ctx: t.Context()}}
	w.end()
	if err := w.send(encodedFrames{}, backlog.Position{}); !errors.Is(err, errCallEnded) {
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
