package clientlib

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Defaults of a Publisher's window.
const (
	defaultWindowFrames = 1024
	defaultWindowBytes  = 4 << 20
)

// Publisher publishes many frames over one call without waiting for each. Its methods
// may be called from any goroutine.
//
// When the call ends, or nothing is answered for as long as [WithIdleTimeout] says, it
// makes another and sends again what was not answered. Frames of one stream are stored in
// the order of the calls of Publish. Therefore a frame that the server refuses for a
// moment is tried again only if no later one of its stream was stored; otherwise
// [Pending.Wait] returns the error.
//
// A frame that is larger than grpc takes is given up alone. Where it is the connection
// that does not send it, by grpc.MaxCallSendMsgSize or an interceptor, grpc ends the call
// without a word of the server: frames without an idempotency key that are on their way
// are then of unknown outcome. So leave the limit to the server.
type Publisher struct {
	client *Client
	frames *semaphore.Weighted
	bytes  *semaphore.Weighted
	cfg    publisherConfig
	cancel context.CancelCauseFunc
	// left is closed when nothing of the publisher runs any more.
	left chan struct{}

	mu sync.Mutex // guards pipeline
	pipeline
}

// NewPublisher returns a publisher that lives until Close, or the end of ctx or of the
// client, which fails what has not been answered.
func (c *Client) NewPublisher(ctx context.Context, options ...PublisherOption) *Publisher {
	cfg := publisherConfig{frames: defaultWindowFrames, bytes: defaultWindowBytes}
	for _, o := range options {
		o(&cfg)
	}
	p := &Publisher{
		client:   c,
		frames:   semaphore.NewWeighted(int64(cfg.frames)),
		bytes:    semaphore.NewWeighted(int64(cfg.bytes)),
		cfg:      cfg,
		left:     make(chan struct{}),
		pipeline: newPipeline(c),
	}
	ctx, p.cancel = context.WithCancelCause(ctx)
	if !c.run(ctx, p.run) {
		p.end(ErrClosed)
		close(p.left)
	}
	return p
}

// Publish takes a frame and returns while it is being published. It blocks while the
// window is full, until ctx ends; what became of the frame [Pending.Wait] says, and ctx
// has no part in it. The error is ctx's, [ErrClosed] after Close, or what ended the
// publisher: then the frame was not published.
func (p *Publisher) Publish(ctx context.Context, frame NewFrame) (*Pending, error) {
	pending := &Pending{size: min(int64(len(frame.Payload)), int64(p.cfg.bytes)), done: make(chan struct{})}
	if err := p.acquire(ctx, pending.size); err != nil {
		return nil, err
	}
	pending.given = frame
	ctx, pending.task = p.client.telemetry.publish(ctx, []NewFrame{frame})
	prepared, invalid := p.client.prepare(ctx, "frame", frame)
	pending.prepared = prepared
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.addLocked(pending, invalid); err != nil {
		pending.task.end(ctx, err)
		p.release(pending.size)
		return nil, err
	}
	return pending, nil
}

// acquire gets room in the window.
func (p *Publisher) acquire(ctx context.Context, size int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.over, func() { cancel(context.Cause(p.over)) })()
	if p.frames.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	if p.bytes.Acquire(ctx, size) != nil {
		p.frames.Release(1)
		return context.Cause(ctx)
	}
	return nil
}

func (p *Publisher) release(size int64) {
	p.frames.Release(1)
	p.bytes.Release(size)
}

// Close takes no more frames, waits until every one has been answered, and ends the
// publisher. While the server is not available that lasts; the end of NewPublisher's
// context cuts it short. The error is what ended the publisher before its time; nil says
// that Wait has an answer for every frame.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closeLocked()
	p.mu.Unlock()
	<-p.left
	return p.failure()
}

// Pending is a frame that is being published.
type Pending struct {
	given NewFrame
	prepared
	number uint64
	size   int64
	task   publishing
	// refused is why the server did not take the frame the last time.
	refused *Error
	// doubtful is true if an earlier call may have stored the frame.
	doubtful bool

	// done is closed once what follows is set.
	done   chan struct{}
	result Published
	err    error
}

// Wait returns what became of the frame, waiting for it; as often as it is called, from
// any goroutine. Errors are those of [Client.Publish]. If its ctx ends first it returns
// the cause, and the frame is published nevertheless.
func (p *Pending) Wait(ctx context.Context) (Published, error) {
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return Published{}, context.Cause(ctx)
	}
}

// Frame is what is being published, with its idempotency key: one that failed can be
// published again under it.
func (p *Pending) Frame() NewFrame {
	f := p.given
	f.Headers, f.IdempotencyKey = p.frame.GetHeaders(), p.frame.GetIdempotencyKey()
	return f
}
