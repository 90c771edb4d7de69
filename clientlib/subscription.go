package clientlib

import (
	"context"
	"errors"
	"io"
	"iter"
)

// Subscription yields the events of one stream. It gets over the ends of its calls by
// itself: it calls again, and goes on after the last position. Close it when it is no
// longer needed.
type Subscription struct {
	client *Client
	queue  queue
	track  track

	// consumed tells a session that frames were taken; nil without one.
	consumed func()
	cancel   context.CancelCauseFunc
	// left is closed when nothing of the subscription runs any more.
	left chan struct{}
}

// Subscribe subscribes to a stream, until ctx ends. It returns at once; the first
// [Subscribed] says that the subscription is in force, and only then what is published
// is certain to arrive. Errors come from [Subscription.Next]:
//
//   - An *[Error] with a code that trying again cannot help: INVALID_ARGUMENT,
//     NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED,
//     ALREADY_EXISTS, RESOURCE_EXHAUSTED with the reason LIMIT_REACHED and no
//     RetryIn, and UNAUTHENTICATED, with a token source if a new token did not help.
//   - One that is [ErrNotContiguous]: five calls in a row had a hole at the same place.
//   - The cause of ctx's end, and [ErrClosed] after [Client.Close].
//
// Everything else is an [Interrupted], and the subscription goes on.
//
// The subscription reads ahead of Next, as far as [WithReadAhead] lets it. It keeps its
// place if Next is not called for long, though the server ends a call of which nothing
// is taken for its write timeout (30 s by default): then ephemeral frames are missed.
func (c *Client) Subscribe(ctx context.Context, stream Stream, start Start, options ...SubscribeOption) *Subscription {
	cfg := subscribeConfig{readAheadBytes: defaultReadAheadBytes}
	for _, o := range options {
		o(&cfg)
	}
	s := &Subscription{
		client: c,
		queue:  newQueue(cfg.readAheadBytes, start.position),
		track:  newTrack(stream, start),
		left:   make(chan struct{}),
	}
	ctx, s.cancel = context.WithCancelCause(ctx)
	if e := checkText("", text{"channel", stream.Channel}, text{"scope", stream.Scope}); e != nil {
		s.end(e)
		return s
	}
	if c.session != nil && c.session.join(ctx, s) {
		return s
	}
	if !c.run(ctx, s.run) {
		s.end(ErrClosed)
	}
	return s
}

// end ends a subscription of which nothing runs.
func (s *Subscription) end(err error) {
	s.queue.drop(err)
	s.cancel(nil)
	close(s.left)
}

// run follows the stream until its end, or that of ctx.
func (s *Subscription) run(ctx context.Context) {
	defer close(s.left)
	defer s.cancel(nil)
	err := s.follow(ctx)
	if ctx.Err() != nil {
		s.queue.drop(context.Cause(ctx))
	}
	s.queue.finish(err)
}

// Next returns the next event, waiting for it. After the end of the subscription it
// returns what is left and then, every time, the error that ended it; io.EOF after
// [Closed]. After Close it returns io.EOF at once. If its own ctx ends it returns the
// cause, and the event is there for the next call. Any goroutine may call it; of several
// at a time each gets other events.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	e, err := s.queue.take(ctx)
	if s.consumed != nil && s.queue.creditDue() {
		s.consumed()
	}
	return e, err
}

// All yields what Next returns, until the end of the subscription. An error other than
// io.EOF is the last that it yields. Leaving the loop does not close the subscription.
func (s *Subscription) All(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := s.Next(ctx)
			if errors.Is(err, io.EOF) || !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Position is the place after everything that Next has returned, whatever has been read
// ahead. Stored once that is dealt with, [After] goes on exactly there; stored before,
// a failure in between skips an event. Until the first [Subscribed] it is that of the
// start, or zero if the start was none of [After]. Any goroutine may call it.
func (s *Subscription) Position() Position { return s.queue.at() }

// Close ends the subscription and waits until nothing of it runs any more. What was read
// ahead is dropped, and does not move the position. Any goroutine may call it, also the
// one that handles an event. It returns nil.
func (s *Subscription) Close() error {
	s.queue.drop(io.EOF)
	s.cancel(io.EOF)
	<-s.left
	return nil
}
