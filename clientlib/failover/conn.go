package failover

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Conn is a connection to the hub or to a server in this process. It implements
// grpc.ClientConnInterface; its methods may be called concurrently. A process makes
// one and shares it.
type Conn struct {
	cfg Config
	// running counts the goroutines that Close waits for.
	running sync.WaitGroup
	// returning has room for one ReturnToHub at a time.
	returning chan struct{}

	mu sync.Mutex // guards what follows; nothing blocks while it is held
	// way is where calls go; nil for OwnOnly before the first.
	way *way
	// ways are those that have not closed: that one, and those that were left and have
	// calls.
	ways map[*way]struct{}
	// since, reason and seen tell of it; see State.
	since  time.Time
	reason Reason
	seen   error
	// starting is a start of the own server under way; nil if there is none.
	starting *start
	// waitUntil is how long a hub that drains may be absent.
	waitUntil time.Time
	outage    outage
	closed    bool
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// New returns a Conn, which connects when it is first used. The caller closes it. An
// error is one of cfg.
func New(cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg, returning: make(chan struct{}, 1), ways: map[*way]struct{}{}, since: time.Now(), outage: newOutage()}
	if cfg.Mode == OwnOnly {
		return c, nil
	}
	h, err := dialHub(&c.cfg)
	if err != nil {
		return nil, err
	}
	c.useLocked(c.hubWay(h)) // nobody else has c
	return c, nil
}

func (c *Conn) hubWay(h *hubLink) *way {
	return newWay(h.conn, h, func() {
		_ = h.conn.Close() // it is open
	})
}

// useLocked has calls go a new way, which Close waits for from now on.
func (c *Conn) useLocked(w *way) {
	c.way = w
	c.ways[w] = struct{}{}
	c.running.Go(func() {
		<-w.closed
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.ways, w)
	})
}

// State tells where calls go.
type State struct {
	// Hub is true if calls go to the hub, or would if there were one.
	Hub bool
	// Since is when that began.
	Since time.Time
	// Reason is why the hub was left, and Err what was seen; of an own server that was
	// not chosen by the mode.
	Reason Reason
	Err    error
}

// State returns where calls go now.
func (c *Conn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return State{Hub: c.usesHubLocked(), Since: c.since, Reason: c.reason, Err: c.seen}
}

// UsesHub reports whether calls go to the hub.
func (c *Conn) UsesHub() bool { return c.State().Hub }

func (c *Conn) usesHubLocked() bool { return c.cfg.Mode != OwnOnly && c.way.hub != nil }

// Close ends all calls and the own server, and waits for that. Unary calls that go on
// where the Conn has left are ended, too. Calls that begin later are CANCELED. It returns
// nil, and does nothing the second time.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	ways, s := slices.Collect(maps.Keys(c.ways)), c.starting
	c.mu.Unlock()
	if s != nil {
		s.cancel()
	}
	for _, w := range ways {
		w.leave(errClosed, true)
	}
	c.running.Wait()
	return nil
}

// errClosed is the cause of calls that Close ended.
var errClosed = errors.New("the connection has been closed")

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call, err := c.begin(ctx, cancel, true)
	if err != nil {
		return err
	}
	defer call.end()
	err = call.way.conn.Invoke(ctx, method, args, reply, c.optionsFor(call.way, opts)...)
	return c.judge(ctx, call.way, err)
}

// NewStream implements grpc.ClientConnInterface.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	call, err := c.begin(ctx, cancel, false)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	acks := c.acksFor(call, method)
	// It waits while the hub takes no more calls on this connection.
	acks.waiting(true)
	s, err := call.way.conn.NewStream(ctx, desc, method, c.optionsFor(call.way, opts)...)
	acks.waiting(false)
	if err != nil {
		err = c.judge(ctx, call.way, err)
		call.end()
		cancel(nil)
		return nil, err
	}
	return newStream(ctx, c, call, s, acks), nil
}

// acksFor watches for the acknowledgements that are due to a call; nil for none.
func (c *Conn) acksFor(call *call, method string) *acks {
	if !c.watches(call.way) {
		return nil
	}
	return newAcks(method, c.cfg.AckTimeout, func() { call.cancel(errNotAcknowledged) })
}

// optionsFor has calls on the hub fail when it is away, whatever the caller asked
// for: otherwise nobody would notice.
func (c *Conn) optionsFor(w *way, opts []grpc.CallOption) []grpc.CallOption {
	if !c.watches(w) {
		return opts
	}
	return append(opts[:len(opts):len(opts)], grpc.WaitForReady(false))
}

// watches reports whether w is to be left when it fails.
func (c *Conn) watches(w *way) bool { return w.hub != nil && c.cfg.Mode == Automatic }

// begin picks the way of a new call, waiting for one if it must.
func (c *Conn) begin(ctx context.Context, cancel context.CancelCauseFunc, unary bool) (*call, error) {
	for {
		w, s, err := c.pick()
		if err != nil {
			return nil, err
		}
		if s == nil && c.watches(w) {
			if s, err = c.reachHub(ctx, w); err != nil {
				return nil, err
			}
		}
		if s != nil {
			if err := s.wait(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if call := w.begin(cancel, unary); call != nil {
			return call, nil
		}
	}
}

// pick returns the way, or the start under way that decides it.
func (c *Conn) pick() (*way, *start, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, nil, status.Error(codes.Canceled, errClosed.Error())
	case c.starting == nil && c.way == nil:
		return nil, c.startLocked(nil, "", nil), nil
	default:
		return c.way, c.starting, nil
	}
}

// reachHub returns when the hub can be called or has been left already, or the start
// of the own server if it is being left.
func (c *Conn) reachHub(ctx context.Context, w *way) (*start, error) {
	err := w.hub.reach(ctx, c.hubMayReturnUntil)
	if err != nil && w.hub.wentOrderly(err) {
		c.expectReturn()
		err = w.hub.reach(ctx, c.hubMayReturnUntil)
	}
	var refused *refusedError
	switch {
	case err == nil, errors.Is(err, errLeft):
		return nil, nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case errors.As(err, &refused):
		return nil, status.Error(codes.PermissionDenied, refused.Error())
	default:
		return c.leaveHub(w, Absent, err), nil
	}
}

func (c *Conn) hubMayReturnUntil() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waitUntil
}

// judge looks at how a call ended, may have the hub left for it, and returns what
// the caller is told.
func (c *Conn) judge(ctx context.Context, w *way, err error) error {
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if told := endedBy(cause); told != nil {
		if errors.Is(cause, errNotAcknowledged) {
			c.leaveHub(w, NotAcknowledged, errNotAcknowledged)
		}
		return told
	}
	if w.hub == nil || cause != nil {
		return err
	}
	switch signOf(err) {
	case goingAway:
		c.expectReturn()
	case lost:
		if refused := w.hub.refusal(); refused != nil {
			return status.Error(codes.PermissionDenied, refused.Error())
		}
		if w.hub.wentOrderly(nil) {
			c.expectReturn()
		}
		if !c.expectsReturn() {
			c.leaveHub(w, Lost, errors.New(status.Convert(err).Message()))
		}
	case evicted:
		c.leaveHub(w, Evicted, errors.New(status.Convert(err).Message()))
	case nothing:
	}
	return err
}

// expectReturn has the hub be waited for when it is absent.
func (c *Conn) expectReturn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waitUntil = time.Now().Add(c.cfg.RestartWait)
}

func (c *Conn) expectsReturn() bool { return time.Now().Before(c.hubMayReturnUntil()) }
