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

	// ctx is the client's life, which Close ends: what it starts outlives the calls
	// that start it.
	ctx   context.Context
	close context.CancelCauseFunc
	// mu lets no task begin once Close waits for them.
	mu    sync.Mutex
	tasks sync.WaitGroup
}

// New returns a client that uses conn, usually a *grpc.ClientConn made with
// [DialOptions]. conn stays the caller's, who closes it after the client.
func New(conn grpc.ClientConnInterface, options ...Option) *Client {
	c := &Client{config: configure(options), conn: conn, stub: fanfarev1.NewFanfareServiceClient(conn)}
	c.tokenCache, c.telemetry = newTokenCache(c.tokens), c.newTelemetry()
	c.ctx, c.close = context.WithCancelCause(context.Background())
	if c.multiplexed {
		c.session = newSession(c)
	}
	return c
}

// Close ends the client's subscriptions, publishers and session, and waits for their
// goroutines. Frames of publishers that were not answered may have been published or
// not; close those first. The connection stays open. Close returns nil, and does
// nothing the second time.
func (c *Client) Close() error {
	c.mu.Lock()
	c.close(ErrClosed)
	c.mu.Unlock()
	c.tasks.Wait()
	return nil
}

// run runs a task that Close ends and waits for, unless the client is closed.
func (c *Client) run(task func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.tasks.Go(task)
	return true
}
