package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// crowd is many subscriptions that begin at once and each replay some frames.
type crowd struct {
	conns   []*load.Conn
	members []member
	// frames is the sequence of the last frame that each is due to get.
	frames uint64

	// missing counts members that have not got everything; the last one closes
	// arrived.
	missing atomic.Int64
	arrived chan struct{}
	// began is when the first connection was there, and last when the last member
	// had got everything.
	began, last time.Time
	// failed takes the first error.
	failed chan error
}

// member is one subscription.
type member struct {
	crowd *crowd
	order load.Order
	// caughtUp and complete are true once CaughtUp has come, and then all frames.
	caughtUp, complete bool
}

// dialsAtOnce is how many connections are being made at a time. A listener's queue
// holds more.
const dialsAtOnce = 64

// errCrowdSplit says that sizes cannot be served.
var errCrowdSplit = errors.New("a server admits 10,000 streams to a connection: give more with --connections")

const maxStreamsPerConnection = 10_000

// gather opens n subscriptions on connections to the server, request(i) being
// the i-th one's, and returns when all have been told that they caught up, with the
// frames from the first to the given one. It must be closed, also after an error.
func gather(ctx context.Context, server *Server, connections, n int, frames uint64, request func(i int) *fanfarev1.SubscribeRequest) (*crowd, error) {
	c := &crowd{
		conns: make([]*load.Conn, min(connections, n)), members: make([]member, n), frames: frames,
		arrived: make(chan struct{}), failed: make(chan error, 1),
	}
	if n > len(c.conns)*maxStreamsPerConnection {
		return c, errCrowdSplit
	}
	c.missing.Store(int64(n))
	opening, openCtx := errgroup.WithContext(ctx)
	opening.SetLimit(dialsAtOnce)
	for i := range c.conns {
		opening.Go(func() error { return c.open(openCtx, server, i, request) })
	}
	if err := opening.Wait(); err != nil {
		return c, err
	}
	return c, c.await(ctx)
}

// open makes the i-th connection and begins its share of the subscriptions.
func (c *crowd) open(ctx context.Context, server *Server, i int, request func(int) *fanfarev1.SubscribeRequest) error {
	conn, err := server.dial(ctx, load.Options{})
	if err != nil {
		return err
	}
	c.conns[i] = conn
	if i == 0 {
		c.began = time.Now()
	}
	for m := i; m < len(c.members); m += len(c.conns) {
		c.members[m].crowd = c
		if _, err := conn.Subscribe(request(m), &c.members[m]); err != nil {
			return err
		}
	}
	return nil
}

// crowdPatience bounds how long nothing at all may arrive.
const crowdPatience = 60 * time.Second

func (c *crowd) await(ctx context.Context) error {
	progress, missing := time.NewTicker(crowdPatience), c.missing.Load()
	defer progress.Stop()
	for {
		select {
		case <-c.arrived:
			return c.failure()
		case err := <-c.failed:
			return err
		case <-progress.C:
			now := c.missing.Load()
			if now == missing {
				return fmt.Errorf("%d of %d subscriptions have not got everything, and none has for %s", now, len(c.members), crowdPatience)
			}
			missing = now
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// failure returns an error that was told and not yet returned.
func (c *crowd) failure() error {
	select {
	case err := <-c.failed:
		return err
	default:
		return nil
	}
}

// close ends all subscriptions and reports what none of them should have got.
func (c *crowd) close() error {
	var closing sync.WaitGroup
	for _, conn := range c.conns {
		if conn != nil {
			closing.Go(func() { conn.Close() })
		}
	}
	closing.Wait()
	return c.failure()
}

func (c *crowd) fail(err error) {
	select {
	case c.failed <- err:
	default: // the first one is enough
	}
}

// Subscribed implements load.StreamHandler, as do the others.
func (m *member) Subscribed(after uint64, at time.Time) {
	m.order.Begin(after)
	if after != 0 && m.crowd.frames != 0 {
		m.crowd.fail(fmt.Errorf("a replay from the oldest frame begins after frame %d", after))
	}
}

func (m *member) Frames(n int, first, last uint64, _ int, at time.Time) {
	m.order.Frames(n, first, last)
	m.check(at)
}

func (m *member) Notice(kind load.NoticeKind, at time.Time) {
	m.order.Notice(kind)
	if kind == load.CaughtUp {
		m.caughtUp = true
	}
	m.check(at)
}

// check notices when the subscription has everything, and what it should not have.
func (m *member) check(at time.Time) {
	c := m.crowd
	if err := m.order.Err(); err != nil {
		c.fail(err)
		return
	}
	switch {
	case m.order.Last() > c.frames:
		c.fail(fmt.Errorf("frame %d came, and nobody published one after %d", m.order.Last(), c.frames))
	case m.caughtUp && m.order.Last() < c.frames:
		c.fail(fmt.Errorf("CaughtUp came after frame %d of %d", m.order.Last(), c.frames))
	case m.caughtUp && !m.complete:
		m.complete = true
		if c.missing.Add(-1) == 0 {
			c.last = at
			close(c.arrived)
		}
	}
}

func (m *member) End(err error) {
	if errors.Is(err, load.ErrClosed) {
		return
	}
	m.crowd.fail(fmt.Errorf("a subscription ended: %w", firstOf(err, errors.New("the status is OK"))))
}
