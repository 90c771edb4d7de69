package load

import (
	"encoding/binary"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// prefixBytes is what stands before a message of gRPC: whether it is compressed,
	// and its length.
	prefixBytes = 5
	// maxMessageBytes bounds a message, far above what servers send.
	maxMessageBytes = 64 << 20
	// keptBytes is how large a buffer of a stream may stay when it is empty.
	keptBytes = 64 << 10
)

// receiver takes what comes for a call, on the connection's reader.
type receiver interface {
	// message is called with each message. The bytes are the caller's.
	message(b []byte, at time.Time) error
	// end is called once, last, with nil for the status OK.
	end(err error)
}

// stream is one call's stream of HTTP/2.
type stream struct {
	id       uint32
	receiver receiver

	// What follows is the reader's. partial is the beginning of a message whose rest
	// has not come.
	partial    []byte
	consumed   uint32
	hasHeaders bool

	// What follows is guarded by the connection's lock: what may be sent, and what of
	// the request has not been sent.
	window int64
	unsent []byte
}

// take takes the bytes of a DATA frame apart. Only a message that is not whole is
// copied.
func (s *stream) take(b []byte, at time.Time) error {
	if !s.hasHeaders {
		return status.Error(codes.Internal, "the server sent a message before its headers")
	}
	if len(s.partial) == 0 {
		rest, err := s.messages(b, at)
		s.partial = append(s.partial, rest...)
		return err
	}
	s.partial = append(s.partial, b...)
	rest, err := s.messages(s.partial, at)
	s.partial = s.partial[:copy(s.partial, rest)]
	if len(rest) == 0 && cap(s.partial) > keptBytes {
		s.partial = nil
	}
	return err
}

// messages hands on the whole messages that b begins with and returns the rest.
func (s *stream) messages(b []byte, at time.Time) ([]byte, error) {
	for len(b) >= prefixBytes {
		size := binary.BigEndian.Uint32(b[1:])
		switch {
		case b[0] != 0:
			return nil, status.Error(codes.Internal, "the server sent a compressed message")
		case size > maxMessageBytes:
			return nil, status.Errorf(codes.Internal, "the server announced a message of %d bytes", size)
		}
		whole := prefixBytes + int(size)
		if len(b) < whole {
			break
		}
		if err := s.receiver.message(b[prefixBytes:whole], at); err != nil {
			return nil, err
		}
		b = b[whole:]
	}
	return b, nil
}

// open opens a stream for a call with one request, which it sends as far as the
// windows allow. A held one takes no more than the connection's stream window.
func (c *Conn) open(method string, request []byte, r receiver, held bool) (*stream, error) {
	unsent := make([]byte, prefixBytes, prefixBytes+len(request))
	binary.BigEndian.PutUint32(unsent[1:], uint32(len(request)))
	unsent = append(unsent, request...)

	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, c.err
	case c.away != nil:
		return nil, c.away
	case uint32(len(c.streams)) >= c.maxStreams, c.nextID > maxStreamID:
		return nil, ErrStreamLimit
	}
	s := &stream{id: c.nextID, receiver: r, window: c.streamWindow, unsent: unsent}
	c.nextID += 2
	c.streams[s.id] = s
	c.must(c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: s.id, BlockFragment: c.headersLocked(method), EndHeaders: true,
	}))
	if !held && c.options.StreamWindow < maxWindow {
		c.must(c.framer.WriteWindowUpdate(s.id, maxWindow-c.options.StreamWindow))
	}
	if len(c.blocked) > 0 || !c.sendLocked(s) {
		c.blocked = append(c.blocked, s)
	}
	c.signal()
	return s, nil
}

// headersLocked encodes the headers of a call. After the first one they are a byte
// each, but for values of almost 4 KiB or more, which HPACK's table has no room for.
func (c *Conn) headersLocked(method string) []byte {
	c.block.Reset()
	for _, field := range [...]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "fanfare"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "fanfare-bench"},
		{Name: "te", Value: "trailers"},
	} {
		c.must(c.encoder.WriteField(field))
	}
	for name, value := range c.options.Metadata {
		c.must(c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}))
	}
	return c.block.Bytes()
}

// sendLocked sends what the windows allow of a request, and reports whether that was
// all.
func (c *Conn) sendLocked(s *stream) bool {
	for len(s.unsent) > 0 {
		n := min(len(s.unsent), c.maxFrame, int(s.window), int(c.connWindow))
		if n <= 0 {
			return false
		}
		c.must(c.framer.WriteData(s.id, n == len(s.unsent), s.unsent[:n]))
		s.unsent = s.unsent[n:]
		s.window -= int64(n)
		c.connWindow -= int64(n)
	}
	return true
}

// sendBlockedLocked sends what the windows allow by now, in the order of the calls.
// One that waits for its own window holds up no other.
func (c *Conn) sendBlockedLocked() {
	if len(c.blocked) == 0 {
		return
	}
	waiting := c.blocked[:0]
	for _, s := range c.blocked {
		if !c.sendLocked(s) {
			waiting = append(waiting, s)
		}
	}
	clear(c.blocked[len(waiting):])
	c.blocked = waiting
	c.signal()
}
