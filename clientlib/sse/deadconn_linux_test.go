package sse_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Browsers that are gone without a word: nothing they are sent is acknowledged, and every
// heartbeat fits into a buffer. They stayed for a quarter of an hour, with their subscription.
func TestConnectionsWithoutANetworkAreBroken(t *testing.T) {
	replica := servicetest.Start(t, embedded)
	e := newEdge(t, newClient(t, []string{replica.Addr}), func(c *sse.Config, s *http.Server) {
		c.Heartbeat, c.Linger = 100*time.Millisecond, time.Millisecond
		s.ConnContext = sse.ConnContext(500 * time.Millisecond)
	})
	for range 100 {
		socket, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close() //nolint:errcheck // of a test
		if _, err := fmt.Fprintf(socket, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", one); err != nil {
			t.Fatal(err)
		}
		b := &browser{t: t, parser: newParser(socket)}
		for !strings.Contains(string(b.parser.rest), "caught_up") {
			if _, err := b.parser.fill(); err != nil {
				t.Fatal(err)
			}
		}
		dropPackets(t, socket.(*net.TCPConn))
	}
	eventually(t, "the connections and their subscription have gone", func() bool {
		return e.Stats().Connections == 0 && replica.Hub.Stats().Subscribers == 0
	})
}

// dropPackets has the system drop whatever comes for a socket, before it acknowledges it.
func dropPackets(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // takes 0 bytes of each packet
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
