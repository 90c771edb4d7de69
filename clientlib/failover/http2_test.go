package failover_test

import (
	"encoding/binary"
	"net"
	"sync"
)

// Types of HTTP/2 frames (RFC 9113, section 6). Acknowledgements of pings do not count.
const (
	http2Data = 0
	http2Ping = 6
)

// frameCounter counts what HTTP/2 frames clients send.
type frameCounter struct {
	net.Listener

	mu     sync.Mutex // guards what follows
	counts map[byte]int
}

func (c *frameCounter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	return &countedConn{Conn: conn, counter: c, skip: len(preface)}, nil
}

func (c *frameCounter) count(kind byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[kind]
}

func (c *frameCounter) add(kind, flags byte) {
	const ack = 1
	if kind == http2Ping && flags&ack != 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[byte]int{}
	}
	c.counts[kind]++
}

// countedConn is a connection of which one goroutine reads, as grpc does.
type countedConn struct {
	net.Conn
	counter *frameCounter
	// skip is how many bytes come before the next frame's header, of which header has
	// what came.
	skip   int
	header []byte
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for read := b[:n]; len(read) > 0; {
		if skipped := min(c.skip, len(read)); skipped > 0 {
			c.skip, read = c.skip-skipped, read[skipped:]
			continue
		}
		const headerBytes = 9 // RFC 9113, section 4.1
		taken := min(headerBytes-len(c.header), len(read))
		c.header, read = append(c.header, read[:taken]...), read[taken:]
		if len(c.header) == headerBytes {
			c.counter.add(c.header[3], c.header[4])
			c.skip = int(binary.BigEndian.Uint32(c.header) >> 8)
			c.header = c.header[:0]
		}
	}
	return n, err
}
