package transcode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	// envelopeBytes stand before each message of a stream, in all protocols: flags, of
	// which the lowest says that it is compressed, and its length.
	envelopeBytes = 5
	compressed    = 1
	// maxInflation is how many bytes one byte of gzip makes at most.
	maxInflation = 1032
)

// messages are the requests of a stream. Each is read whole, in the time that a message has
// from its first byte on, is made what the server reads, and is handed on; only meanwhile is
// memory held for it. A stream on which nothing comes holds none.
//
// The transcoder, which could do it too, would keep each message until the next one.
type messages struct {
	io.ReadCloser
	held  *budget
	limit int64
	// body reads to the end of in, with memory of held.
	body func(in io.Reader) ([]byte, error)
	// convert has a message be in Protocol Buffers; nil: they are.
	convert func([]byte) ([]byte, error)
	// unpack is true if messages may be compressed, with gzip.
	unpack bool
	fault  *streamFault
	// deadline is that of reading; nil: there is none.
	deadline *readDeadline
	timeout  time.Duration

	// publishes is true if what is handed on may be stored.
	publishes bool
	// rest is what has not been handed on of the message that was read last.
	rest []byte
	// err is why no more is read.
	err error
}

type messagesKey struct{}

// withMessages returns a context in which the requests of a stream are kept.
func withMessages(ctx context.Context, m *messages) context.Context {
	return context.WithValue(ctx, messagesKey{}, m)
}

// messagesOf are the requests of a stream; nil if they are to be read from the body.
func messagesOf(ctx context.Context) *messages {
	m, _ := ctx.Value(messagesKey{}).(*messages)
	return m
}

// Read implements io.Reader.
func (m *messages) Read(p []byte) (int, error) {
	if len(m.rest) == 0 && m.err == nil {
		m.err = m.next()
	}
	if m.err != nil {
		m.held.shrink(0)
		return 0, m.err
	}
	n := copy(p, m.rest)
	if m.rest = m.rest[n:]; len(m.rest) == 0 {
		m.rest = nil
		m.held.shrink(0)
	}
	return n, nil
}

// next reads a message. The error is io.EOF if the server is to have no more.
func (m *messages) next() error {
	flags, message, err := m.receive()
	if err != nil {
		return err
	}
	switch {
	case flags == compressed && m.unpack && len(message) == 0:
	case flags == compressed && m.unpack:
		if message, err = m.inflate(message); err != nil {
			return err
		}
	case flags != 0:
		return m.invalid("a message is marked with %#x, which means nothing here", flags)
	}
	if m.convert != nil {
		if message, err = m.convert(message); err != nil {
			return m.invalid("%s", requestMessage(err))
		}
	}
	if m.publishes {
		m.fault.stores.Store(true)
	}
	m.rest = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	m.held.shrink(int64(cap(m.rest)))
	return nil
}

// receive reads a message as its client sends it.
func (m *messages) receive() (flags byte, message []byte, err error) {
	var envelope [envelopeBytes]byte
	if _, err := io.ReadFull(m.ReadCloser, envelope[:1]); err != nil {
		return 0, nil, err // a client that sends nothing more, or has gone
	}
	m.deadline.set(time.Now().Add(m.timeout))
	if _, err := io.ReadFull(m.ReadCloser, envelope[1:]); err != nil {
		m.deadline.set(time.Time{})
		return 0, nil, m.explain(err)
	}
	size := int64(binary.BigEndian.Uint32(envelope[1:]))
	if size > m.limit {
		return 0, nil, m.tooLarge()
	}
	message, err = m.body(io.LimitReader(m.ReadCloser, size))
	if err == nil && int64(len(message)) < size {
		err = io.ErrUnexpectedEOF
	}
	m.deadline.set(time.Time{})
	return envelope[0], message, m.explain(err)
}

// inflate decompresses a message.
func (m *messages) inflate(message []byte) ([]byte, error) {
	unpacked, err := m.body(&gunzipped{ReadCloser: io.NopCloser(bytes.NewReader(message)), limit: m.limit})
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil || errors.Is(err, errNoMemory):
		return unpacked, m.explain(err)
	case errors.As(err, &tooLarge):
		return nil, m.tooLarge()
	}
	return nil, m.invalid("a message cannot be decompressed")
}

func (m *messages) tooLarge() error {
	return m.invalid("a message must be at most %d bytes, also when it is decompressed", m.limit)
}

func (m *messages) invalid(format string, args ...any) error {
	return m.stop(codes.InvalidArgument, reasonField,
		fmt.Sprintf(format, args...)+"; nothing of it was sent to the server, and the same again would not be")
}

// explain keeps for the client why its message was not read.
func (m *messages) explain(err error) error {
	switch {
	case errors.Is(err, errNoMemory):
		return m.stop(codes.Unavailable, reasonLimit, "the server reads as many requests over HTTP as it may; this message was not sent to the server; try again")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return m.stop(codes.DeadlineExceeded, "", "a message did not come to its end in time; nothing of it was sent to the server")
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return m.invalid("the last message is cut off")
	}
	return err
}

// stop has no more be read, for a fault. The server answers what it has if that may be
// stored, and the fault is told after it; else it need not go on.
func (m *messages) stop(code codes.Code, reason, message string) error {
	err := m.fault.set(code, reason, message)
	if m.fault.stores.Load() {
		return io.EOF
	}
	return err
}

// readDeadline is the deadline of reading a request. Requests of a stream may still be read
// when their call has ended, and with it what the deadline is set by.
type readDeadline struct {
	mu      sync.Mutex // guards what follows
	control *http.ResponseController
}

func (d *readDeadline) set(at time.Time) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.control != nil {
		_ = d.control.SetReadDeadline(at)
	}
}

// end has the call end.
func (d *readDeadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.control = nil
}
