package clientlib

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// maxMessageBytes is above what a server's largest frame may be, so that the server's
// limit is the one that counts.
const maxMessageBytes = 64 << 20

// errIdle is why the library ends a call that is silent.
var errIdle = errors.New("nothing came, not even a heartbeat: the connection or the server is taken for dead")

// follow makes one call after the other until the stream is closed, which is io.EOF,
// or trying again cannot help.
func (s *Subscription) follow(ctx context.Context) error {
	r := s.client.newRecovery()
	for {
		err := s.call(ctx, &r)
		if s.track.closed || ctx.Err() != nil {
			return io.EOF
		}
		e := errorOf(err)
		if s.track.hopeless() {
			return e
		}
		if e.RetryIn == 0 {
			e.RetryIn = s.track.retryIn
		}
		pause, final := r.after(e)
		if final {
			return e
		}
		s.interrupted(&r, e, pause)
		if !wait(ctx, pause) {
			return io.EOF
		}
	}
}

// interrupted tells of a call that ended.
func (s *Subscription) interrupted(r *recovery, e *Error, pause time.Duration) {
	s.client.telemetry.interrupted(e)
	r.log("subscription interrupted", e, pause, "stream", s.track.stream.String())
	s.queue.put(item{event: &Interrupted{Err: e, RetryIn: pause}, position: s.track.position})
}

// call is one Subscribe. It returns why it ended; what that means after Closed the
// track knows.
func (s *Subscription) call(ctx context.Context, r *recovery) error {
	subscription := ctx
	// Not with its deadline: the server would end the call at it, a little earlier than it
	// is here, and that would look like an interruption.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(subscription))
	defer cancel(nil)
	defer context.AfterFunc(subscription, func() { cancel(context.Cause(subscription)) })()
	ctx, err := r.access.authorize(ctx)
	if err != nil {
		return err
	}
	idle := newWatch(s.client.idleTimeout, func() { cancel(errIdle) })
	defer idle.stop()
	call, err := s.client.stub.Subscribe(ctx, s.track.begin(), grpc.MaxCallRecvMsgSize(maxMessageBytes))
	if err != nil {
		return err
	}
	for {
		idle.start()
		response, err := call.Recv()
		idle.stop()
		if err != nil {
			return endOf(ctx, err)
		}
		items, err := s.track.take(response)
		s.took(r, items)
		if err != nil {
			return err
		}
		s.queue.waitForRoom(ctx)
	}
}

// took hands on what a call brought.
func (s *Subscription) took(r *recovery, items []item) {
	for _, i := range items {
		switch e := i.event.(type) {
		case *Subscribed:
			if r.failures > 0 {
				s.client.logger.Info("subscribed again", "stream", s.track.stream.String(), "after", e.ResumeAfter, "failures", r.failures)
			}
			r.acknowledge()
		case *Frame:
			r.progress()
		}
	}
	s.client.telemetry.received(items)
	s.queue.put(items...)
}

// endOf is why a call ended that failed with err.
func endOf(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errIdle):
		return &Error{Code: codes.Unavailable, Message: errIdle.Error(), cause: errIdle}
	case errors.Is(err, io.EOF):
		return &Error{Code: codes.Unavailable, Message: "the call ended without saying why"}
	default:
		return err
	}
}

// watch calls something if it is not stopped in time.
type watch struct {
	timer *time.Timer
	limit time.Duration
}

func newWatch(limit time.Duration, late func()) watch {
	return watch{timer: time.AfterFunc(limit, late), limit: limit}
}

func (w watch) start() { w.timer.Reset(w.limit) }

func (w watch) stop() { w.timer.Stop() }
