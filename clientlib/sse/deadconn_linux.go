package sse

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// breakUnacknowledged sets TCP_USER_TIMEOUT (tcp(7)). Where that cannot be, nothing is
// worse than without it.
func breakUnacknowledged(c *net.TCPConn, after time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds())) //nolint:gosec // a descriptor
	})
}
