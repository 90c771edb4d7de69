package clientlib

import "context"

// Publisher publishes without waiting for each answer.
type Publisher struct{}

// Pending is a frame that is being published.
type Pending struct{}

// NewPublisher returns a publisher.
func (c *Client) NewPublisher(ctx context.Context, options ...PublisherOption) *Publisher {
	return &Publisher{}
}

// Publish publishes a frame without waiting for the answer.
func (p *Publisher) Publish(ctx context.Context, frame NewFrame) (*Pending, error) {
	return &Pending{}, nil
}

// Close waits for all answers.
func (p *Publisher) Close() error { return nil }

// Wait waits for the answer.
func (p *Pending) Wait(ctx context.Context) (Published, error) { return Published{}, nil }

// Frame is what is being published.
func (p *Pending) Frame() NewFrame { return NewFrame{} }
