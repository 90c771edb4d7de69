package clientlib

import (
	"context"
	"io"
	"iter"
)

// Subscription yields what a stream brings.
type Subscription struct{}

// Subscribe subscribes to a stream.
func (c *Client) Subscribe(ctx context.Context, stream Stream, start Start, options ...SubscribeOption) *Subscription {
	return &Subscription{}
}

// Next returns the next event.
func (s *Subscription) Next(ctx context.Context) (Event, error) { return nil, io.EOF }

// All yields events until the end.
func (s *Subscription) All(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {}
}

// Position is where to resume.
func (s *Subscription) Position() Position { return Position{} }

// Close ends the subscription.
func (s *Subscription) Close() error { return nil }
