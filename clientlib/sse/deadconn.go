package sse

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// ConnContext returns what an http.Server that serves a [Handler] should have as its
// ConnContext: it has connections broken of whose bytes the other side has acknowledged
// none for so long, such as of a telephone without a network. A browser that is gone like
// that is noticed within a heartbeat and this time; otherwise the system sends again what
// is small for a quarter of an hour, and Write does not fail. 30 s is a good value. It
// does something on Linux, for TCP.
func ConnContext(unacknowledged time.Duration) func(ctx context.Context, c net.Conn) context.Context {
	return func(ctx context.Context, c net.Conn) context.Context {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		if t, ok := c.(*net.TCPConn); ok {
			breakUnacknowledged(t, unacknowledged)
		}
		return ctx
	}
}
