package failover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// A hub that stands still is found within the sum. Servers take pings every 10 s,
	// and grpc makes none more often.
	pingAfter, pingTimeout = 10 * time.Second, 5 * time.Second
	// streamWindowBytes is what a call may receive before it is read, beside a message
	// that is larger; connWindowBytes what all together may before grpc has it.
	streamWindowBytes, connWindowBytes = 64 << 10, 1 << 20
	// retryPause is between attempts to connect to a hub that is coming back.
	retryPause = 50 * time.Millisecond
)

// errLeft is that the way has been left meanwhile.
var errLeft = errors.New("left")

// hubLink is a connection to the hub.
type hubLink struct {
	conn    *grpc.ClientConn
	address string
	// path is that of a Unix socket; empty for others.
	path string
	dial func(context.Context) (net.Conn, error)
	// timeout bounds an attempt to connect.
	timeout time.Duration

	mu sync.Mutex // guards what follows
	// failed is how the last attempt to dial failed; nil if it did not.
	failed error
	// reached is true if there has been a connection that the hub answered.
	reached bool
	// missed is true if it has been gone in an orderly way since.
	missed bool
}

// dialHub makes a link, which connects when it is asked to.
func dialHub(cfg *Config) (*hubLink, error) {
	network, name, err := socketOf(cfg.Hub)
	if err != nil {
		return nil, err
	}
	h := &hubLink{
		address: cfg.Hub,
		timeout: cfg.ConnectTimeout,
		dial:    func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, network, name) },
	}
	if network == "unix" {
		h.path = name
	}
	options := append(commonOptions(cfg),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := h.dial(ctx)
			h.dialled(err)
			return conn, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			// For all of a new connection, the hub's first words included.
			MinConnectTimeout: cfg.ConnectTimeout,
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		// It is used rarely, perhaps, but the first call after that must not find a hub
		// that has been gone for long.
		grpc.WithIdleTimeout(0))
	if h.conn, err = grpc.NewClient("passthrough:///"+name, append(options, cfg.DialOptions...)...); err != nil {
		return nil, fmt.Errorf("the hub's address %q: %w", cfg.Hub, err)
	}
	return h, nil
}

// commonOptions are those of both ways.
func commonOptions(cfg *Config) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.MaxMessageBytes)),
		// Windows that grow with what a network holds are measured with a ping for each
		// message. On one host that is a third of all writes, and gains nothing.
		grpc.WithStaticStreamWindowSize(streamWindowBytes),
		grpc.WithStaticConnWindowSize(connWindowBytes),
	}
}

func (h *hubLink) dialled(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = err
}

// reach returns nil when there is a connection that the hub answered. It waits for
// the end of an attempt to connect, and tries again until the time that waitUntil
// returns. Its errors are those of ctx, errLeft, and why the hub cannot be reached:
// a *refusedError if an operator must act.
func (h *hubLink) reach(ctx context.Context, waitUntil func() time.Time) error {
	for tried := false; ; {
		state := h.conn.GetState()
		switch state {
		case connectivity.Ready:
			h.answered()
			return nil
		case connectivity.Shutdown:
			return errLeft
		case connectivity.TransientFailure:
			again := time.Now().Before(waitUntil())
			if tried && !again {
				return h.failure()
			}
			if err := h.tryAgain(ctx, again); err != nil {
				return err
			}
			tried = true
			continue
		case connectivity.Idle:
			h.conn.Connect()
		case connectivity.Connecting:
		}
		tried = true
		if !h.conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}

// tryAgain tries to connect although the last attempt failed, for which grpc would
// take its time. It does not tell of the end of an attempt that fails, so whether
// anybody is there is found out apart. With pause it rests before.
func (h *hubLink) tryAgain(ctx context.Context, pause bool) error {
	if pause {
		rest := time.NewTimer(retryPause)
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	bounded, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	conn, err := h.dial(bounded)
	h.dialled(err)
	if err != nil {
		return ctx.Err()
	}
	_ = conn.Close() // nothing was sent
	h.conn.ResetConnectBackoff()
	h.conn.WaitForStateChange(bounded, connectivity.TransientFailure)
	return ctx.Err()
}

func (h *hubLink) answered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reached, h.missed = true, false
}

// wentOrderly reports whether the hub has removed its socket, as it does when it
// drains and not when it dies: it is probably being replaced. Some calls of this
// process find that out before any is told. seen is why the hub could not be reached,
// if that was tried: there may be a socket again. It reports it once for each time.
func (h *hubLink) wentOrderly(seen error) bool {
	if h.path == "" {
		return false
	}
	if !errors.Is(seen, fs.ErrNotExist) {
		if _, err := os.Lstat(h.path); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	first := h.reached && !h.missed
	h.missed = h.missed || first
	return first
}

// failure is why there is no connection.
func (h *hubLink) failure() error {
	if refused := h.refusal(); refused != nil {
		return refused
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil {
		return fmt.Errorf("what serves on %s does not answer", h.address)
	}
	return fmt.Errorf("no server answers on %s: %w", h.address, h.failed)
}

// refusal is that the process has never been let use the socket; nil if that is not
// so.
func (h *hubLink) refusal() *refusedError {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reached || !errors.Is(h.failed, fs.ErrPermission) {
		return nil
	}
	return &refusedError{address: h.address, err: h.failed}
}

// refusedError is that this process may not use the hub's socket. That is no failure
// of the hub: to serve itself would hide it, with as many connections as there are
// workers.
type refusedError struct {
	address string
	err     error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the user with id %d may not connect to the hub on %s (%s): run the worker as the user that the hub runs as, or let it use the socket and its directory",
		os.Getuid(), e.address, e.err)
}

func (e *refusedError) Unwrap() error { return e.err }
