package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
)

// ReturnToHub has calls go to the hub again, ends the streaming calls on the own
// server, which their clients resume, and waits until its connections are closed. It
// does nothing if calls go to the hub. If the hub is not there, or not ready, it
// returns an error and changes nothing.
func (c *Conn) ReturnToHub(ctx context.Context) error {
	if c.cfg.Mode == OwnOnly {
		return fmt.Errorf("the mode %s has no hub", OwnOnly)
	}
	select {
	case c.returning <- struct{}{}:
		defer func() { <-c.returning }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.UsesHub() {
		return nil
	}
	h, err := c.readyHub(ctx)
	if err != nil {
		return fmt.Errorf("return to the hub: %w", err)
	}
	left, err := c.use(h)
	if err != nil {
		return err
	}
	c.cfg.Logger.Info("returned to the hub", "hub", c.cfg.Hub)
	left.leave(errMoved, false)
	select {
	case <-left.closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("returned to the hub; calls on the own server have not ended: %w", ctx.Err())
	}
}

// readyHub connects to a hub that says that it is ready.
func (c *Conn) readyHub(ctx context.Context) (*hubLink, error) {
	h, err := dialHub(&c.cfg)
	if err != nil {
		return nil, err
	}
	err = h.reach(ctx, func() time.Time { return time.Time{} })
	if err == nil {
		err = askReady(ctx, h, c.cfg.ConnectTimeout)
	}
	if err != nil {
		return nil, errors.Join(err, h.conn.Close())
	}
	return h, nil
}

func askReady(ctx context.Context, h *hubLink, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(h.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	switch {
	case err != nil:
		return fmt.Errorf("ask the hub whether it is ready: %w", err)
	case answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING:
		return fmt.Errorf("the hub says that it is %s", answer.GetStatus())
	default:
		return nil
	}
}

// use has calls go to a hub, and returns the way that they went before.
func (c *Conn) use(h *hubLink) (left *way, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(errClosed, h.conn.Close())
	}
	if c.starting != nil {
		return nil, errors.Join(errors.New("the own server is being started; try again"), h.conn.Close())
	}
	left = c.way
	c.useLocked(c.hubWay(h))
	c.since, c.reason, c.seen = time.Now(), "", nil
	c.waitUntil = time.Time{}
	return left, nil
}
