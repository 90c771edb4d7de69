package listener

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialer makes the sockets of one connection and can end them all. When an
// operation fails, pgx closes the connection in the background: it dials once
// more to cancel the query and waits up to 15 s for the server. To a server that
// has stopped answering that is a leak, so the listener cuts it short.
type dialer struct {
	net net.Dialer

	// mu guards the fields below.
	mu        sync.Mutex
	sockets   []net.Conn
	abandoned bool
}

func newDialer() *dialer {
	return &dialer{net: net.Dialer{
		// Finds dead peers also where no ping is due, and keeps state in
		// firewalls alive.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}}
}

// dial is a pgconn.DialFunc.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if d.isAbandoned() {
		return nil, net.ErrClosed
	}
	socket, err := d.net.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.abandoned {
		_ = socket.Close()
		return nil, net.ErrClosed
	}
	d.sockets = append(d.sockets, socket)
	return socket, nil
}

func (d *dialer) isAbandoned() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.abandoned
}

// abandon closes all sockets and makes no more.
func (d *dialer) abandon() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abandoned = true
	for _, s := range d.sockets {
		_ = s.Close() // closed already, or of no more use
	}
	d.sockets = nil
}

// close ends a connection in order if the server answers in time, and in any
// case.
func (d *dialer) close(conn *pgconn.PgConn) {
	// Not the caller's context: it is cancelled at a shutdown, and the server
	// would have to find out by itself.
	ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
	d.abandon()
}
