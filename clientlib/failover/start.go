package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service"
)

// start is a start of the own server, which everybody waits for who has a call to
// make.
type start struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it is over
	// err is what calls are told if there is no own server; set before done is closed.
	err error
}

// wait returns when the start is over.
func (s *start) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// ownRestartPause is between attempts to replace an own server that has failed.
const ownRestartPause = time.Second

// outage bounds how often the own server is tried to be started while it cannot be:
// all workers of all hosts do so when the database is away.
type outage struct {
	retries *backoff.ExponentialBackOff
	// until is when to try again; err is what calls are told before.
	until time.Time
	err   error
}

func newOutage() outage {
	return outage{retries: &backoff.ExponentialBackOff{
		InitialInterval:     200 * time.Millisecond,
		RandomizationFactor: 0.5,
		Multiplier:          2,
		MaxInterval:         5 * time.Second,
	}}
}

// leaveHub begins to leave the hub, if w is where calls go, and returns the start of
// the own server, for which calls wait. nil if there is nothing to wait for.
func (c *Conn) leaveHub(w *way, reason Reason, seen error) *start {
	if !c.watches(w) {
		return nil
	}
	return c.replace(w, reason, seen)
}

// replace starts an own server instead of w, if w is where calls go.
func (c *Conn) replace(w *way, reason Reason, seen error) *start {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.way == w && c.starting == nil && !c.closed {
		c.startLocked(w, reason, seen)
	}
	return c.starting
}

// startLocked starts the own server, to be used instead of from, which is nil if
// there is nothing to leave. Soon after a start that failed it returns that one.
func (c *Conn) startLocked(from *way, reason Reason, seen error) *start {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	s := &start{cancel: cancel, done: make(chan struct{})}
	c.starting = s
	wait := time.Until(c.outage.until)
	c.running.Go(func() {
		defer cancel()
		own, err := c.tryStart(ctx, wait)
		c.started(s, own, err, from, reason, seen)
	})
	return s
}

// tryStart starts the own server, unless the last attempt was too short a time ago.
func (c *Conn) tryStart(ctx context.Context, wait time.Duration) (*ownServer, error) {
	if wait > 0 {
		return nil, errTooSoon
	}
	own, err := startOwn(ctx, &c.cfg)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) { // by Close
		c.cfg.Logger.Warn("the own server cannot be started; trying again", "error", err)
	}
	return own, err
}

var errTooSoon = errors.New("tried just before")

// started makes the own server the way of calls, or tells them that there is none.
func (c *Conn) started(s *start, own *ownServer, err error, from *way, reason Reason, seen error) {
	defer close(s.done)
	if err != nil {
		s.err = c.notStarted(err, seen)
		return
	}
	w := c.ownWay(own)
	c.mu.Lock()
	c.starting, c.outage = nil, newOutage()
	c.useLocked(w)
	c.since, c.reason, c.seen = time.Now(), reason, seen
	closed := c.closed
	c.mu.Unlock()
	if closed {
		w.leave(errClosed, true)
		return
	}
	if from == nil {
		return
	}
	if from.hub != nil {
		c.announce(reason, seen)
	}
	from.leave(errMoved, reason == NotAcknowledged)
}

// announce tells that the hub has been left.
func (c *Conn) announce(reason Reason, seen error) {
	c.cfg.Logger.Warn("left the hub; this process serves itself", "hub", c.cfg.Hub, "reason", string(reason), "error", seen)
	if c.cfg.OnFailover != nil {
		c.cfg.OnFailover(reason, seen)
	}
}

// notStarted returns what calls are told when the own server could not be started.
func (c *Conn) notStarted(err, seen error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starting = nil
	if errors.Is(err, errTooSoon) {
		return c.outage.err
	}
	wait := c.outage.retries.NextBackOff()
	c.outage.until, c.outage.err = time.Now().Add(wait), neither(err, seen, wait)
	return c.outage.err
}

// neither is the error of calls for which there is neither a hub, of which seen was
// seen, nor an own server.
func neither(err, seen error, retryIn time.Duration) error {
	message := fmt.Sprintf("this process's own connection to the database cannot be opened: %v", err)
	if seen != nil {
		message = fmt.Sprintf("the hub has failed: %v; and %s", seen, message)
	}
	// With a reason: nothing was stored, so that a publish may be tried again.
	st, detailErr := status.New(codes.Unavailable, message).WithDetails(
		&errdetails.ErrorInfo{Domain: service.ErrorDomain, Reason: nameOf(fanfarev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE)},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retryIn)})
	if detailErr != nil {
		return status.Error(codes.Unavailable, message)
	}
	return st.Err()
}

// ownWay is the way to an own server, and watches it.
func (c *Conn) ownWay(own *ownServer) *way {
	stopping := make(chan struct{})
	w := newWay(own.conn, nil, func() {
		close(stopping)
		if err := own.stop(); err != nil {
			c.cfg.Logger.Error("the end of the own server", "error", err)
		}
	})
	c.running.Go(func() {
		select {
		case <-stopping:
		case err := <-own.parts.Failed():
			c.ownFailed(w, stopping, err)
		}
	})
	return w
}

// ownFailed replaces an own server of which a part has ended by itself, which none
// does that is sound.
func (c *Conn) ownFailed(w *way, stopping <-chan struct{}, err error) {
	c.cfg.Logger.Error("the own server has failed; starting another", "error", err)
	for {
		s := c.replace(w, c.State().Reason, c.State().Err)
		if s == nil {
			return // left, or closed
		}
		<-s.done
		select {
		case <-stopping:
			return
		case <-time.After(ownRestartPause):
		}
	}
}
