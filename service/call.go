package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// lastWords is how long a call that was told to go may be blocked by its client
// before its handler returns without having said everything.
const lastWords = 2 * time.Second

// errCallEnded is what writer.send returns once the handler has returned.
var errCallEnded = errors.New("the call has ended")

// writer sends the answers of one PublishStream. One goroutine sends, and may be
// blocked; the handler watches and may end the call at any time.
type writer struct {
	stream grpc.ServerStream
	flight *inFlight
	// out is what is being sent.
	out outgoing

	mu sync.Mutex // guards what follows; never held while sending
	// ended is set when the handler returns: grpc forbids a SendMsg that begins
	// after that.
	ended bool
	// began is when the SendMsg under way began; zero if there is none.
	began time.Time
}

func newWriter(stream grpc.ServerStream) *writer {
	return &writer{
		stream: stream,
		flight: newInFlight(connectionOf(stream.Context()), nil),
	}
}

// send sends one message. It blocks while the client does not read, until the
// call's context or its handler ends.
func (w *writer) send(message any) error {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return errCallEnded
	}
	w.began = time.Now()
	w.mu.Unlock()

	w.out = outgoing{message: message, flight: w.flight}
	err := w.stream.SendMsg(&w.out)
	w.out.message = nil

	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Time{}
	return err
}

// blocked returns for how long the send under way has been blocked.
func (w *writer) blocked() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began.IsZero() {
		return 0
	}
	return time.Since(w.began)
}

func (w *writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// sendLoop sends everything a call has to say, and returns how the call ends.
// When closing ends it says good-bye and returns how [parting] says; when ctx
// ends, with which closing ends, too, it returns.
type sendLoop func(ctx context.Context, w *writer, closing context.Context) error

// parting is how a call ends that the server has told to go by ending its
// closing; nil for a call that ends by itself.
func parting(closing context.Context) *failure {
	f, _ := context.Cause(closing).(*failure) //nolint:errorlint // never wrapped
	return f
}

// run is the handler of a PublishStream: it runs loop on a goroutine of its own
// and ends the call when loop returned, or with what stalled returns when a send
// has been blocked for the write timeout, or for a shorter time while the server
// drains.
func (s *Server) run(stream grpc.ServerStream, loop sendLoop, stalled func(w *writer, draining bool) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	w := newWriter(stream)
	defer s.leave(stream.Context(), w.flight)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	closing, tellToGo := context.WithCancelCause(ctx)
	defer tellToGo(nil)
	defer w.end()

	done := make(chan error, 1)
	s.loops.Go(func() {
		done <- recovering(func() error { return loop(ctx, w, closing) })
	})
	return s.watch(w, done, tellToGo, stalled)
}

// enter takes a place for a streaming call, to be given back with leave.
func (s *Server) enter() error {
	switch {
	case s.isEnding():
		return drainingFailure(retryIn())
	case !s.admit():
		return tooManyCalls(s.cfg.MaxSubscriptions)
	default:
		return nil
	}
}

// admit counts a streaming call, unless there are as many as there may be.
func (s *Server) admit() bool {
	// Not Add and then a look: a refused call would take the place of one that is
	// not, for a moment.
	for {
		n := s.calls.Load()
		if n >= int64(s.cfg.MaxSubscriptions) {
			return false
		}
		if s.calls.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// watch waits for the end of a streaming call, and tells it to go when it must.
func (s *Server) watch(w *writer, done <-chan error, tellToGo context.CancelCauseFunc, stalled func(w *writer, draining bool) error) error {
	limit, draining := s.cfg.WriteTimeout, false
	look := time.NewTimer(limit)
	defer look.Stop()
	old := after(s.ownStreamAge())
	expired := s.expiry(w.stream.Context())
	ending := s.ending
	var goodBye <-chan time.Time
	for {
		select {
		case err := <-done:
			return err
		case <-look.C:
			blocked := w.blocked()
			if blocked >= limit {
				return stalled(w, draining)
			}
			look.Reset(limit - blocked)
		case <-old:
			// No shorter limit than before: nothing presses, as at a drain.
			tellToGo(oldAgeFailure(retryIn()))
		case <-expired:
			tellToGo(tokenExpired())
		case <-ending:
			// GOAWAY must go first, so the drain has the word from here on.
			ending, old = nil, nil
			goodBye = time.After(s.partingDelay())
		case <-goodBye:
			tellToGo(drainingFailure(retryIn()))
			limit, draining = min(limit, lastWords), true
			look.Reset(limit)
		}
	}
}

// ownStreamAge is how long a call may last, 0 for ever.
func (s *Server) ownStreamAge() time.Duration {
	tenth := s.cfg.MaxStreamAge / 10
	return s.cfg.MaxStreamAge - rand.N(tenth+1)
}

// after is time.After that never comes for 0.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

// expiry comes when the token of a call expires.
func (s *Server) expiry(ctx context.Context) <-chan time.Time {
	deadline := s.caller(ctx).Deadline()
	if deadline.IsZero() {
		return nil
	}
	return time.After(time.Until(deadline))
}

// partingDelay spreads the ends of calls over a drain, so that their clients do
// not all arrive at the other replicas at once: 500 a second, or however many
// there must be to be done within two thirds of the grace. It is never 0: GOAWAY
// must go first, or a client comes straight back on the same connection.
func (s *Server) partingDelay() time.Duration {
	const goAway, each = 50 * time.Millisecond, 2 * time.Millisecond
	spread := min(s.cfg.DrainGrace*2/3, time.Duration(s.calls.Load())*each)
	return goAway + rand.N(max(1, spread-goAway))
}

// retryIn is how long a client that is sent away should wait: jitter on top of
// the spread.
func retryIn() time.Duration {
	return 100*time.Millisecond + rand.N(900*time.Millisecond).Truncate(time.Millisecond)
}

// recovering turns a panic of f into an error. The recovery interceptor does not
// see the goroutines that handlers start.
func recovering(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicFailure(p)
		}
	}()
	return f()
}

func panicFailure(p any) *failure {
	return &failure{
		code:    codes.Internal,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_INTERNAL,
		message: "a fault in the server; its log has the details",
		cause:   fmt.Errorf("panic: %v\n%s", p, debug.Stack()),
	}
}
