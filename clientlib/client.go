package clientlib

import (
	"context"
	"sync"

	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Client publishes and subscribes over one connection. Its methods may be called from
// any goroutine.
type Client struct {
	config
	conn       grpc.ClientConnInterface
	stub       fanfarev1.FanfareServiceClient
	tokenCache tokenCache
	telemetry  telemetry
	session    *session // nil without WithSession

	// tasks are the goroutines that Close waits for.
	tasks sync.WaitGroup
	// closing is closed when the client is, under mu.
	closing chan struct{}

	mu sync.Mutex // guards what follows
	// ends end the contexts of the tasks, by their numbers.
	ends map[uint64]context.CancelCauseFunc
	last uint64
}

// New returns a client that uses conn, usually a *grpc.ClientConn made with
// [DialOptions]. conn stays the caller's, who closes it after the client.
func New(conn grpc.ClientConnInterface, options ...Option) *Client {
	c := &Client{
		config: configure(options), conn: conn, stub: fanfarev1.NewFanfareServiceClient(conn),
		closing: make(chan struct{}), ends: map[uint64]context.CancelCauseFunc{},
	}
	c.tokenCache, c.telemetry = newTokenCache(c.tokens), c.newTelemetry()
	if c.multiplexed {
		c.session = newSession(c)
	}
	return c
}

// Close ends the client's subscriptions, publishers and session, and waits for their
// goroutines. Frames of publishers that were not answered may have been published or
// not; close those first. [Client.Publish] and [Client.PublishBatch] are ErrClosed from
// now on; those under way are not waited for, and try no more. The connection stays open.
// Close returns nil, and does nothing the second time.
func (c *Client) Close() error {
	c.endTasks()
	c.tasks.Wait()
	return nil
}

func (c *Client) endTasks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() {
		return
	}
	close(c.closing)
	for _, end := range c.ends {
		end(ErrClosed)
	}
}

func (c *Client) isClosed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// run runs a task, unless the client is closed. The task's context ends with ctx, and
// with ErrClosed when the client is closed, which waits for the task.
func (c *Client) run(ctx context.Context, task func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() {
		return false
	}
	ctx, end := context.WithCancelCause(ctx)
	c.last++
	number := c.last
	c.ends[number] = end
	c.tasks.Go(func() {
		defer c.ended(number)
		task(ctx)
	})
	return true
}

func (c *Client) ended(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[number](nil)
	delete(c.ends, number)
}
