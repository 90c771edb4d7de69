package transcode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
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

// messages are the requests of a stream as its client sends them. The transcoder makes
// room for a message when it has seen its length, whenever the message comes, so that the
// room is taken before it sees the length. Whoever has begun a message must end it in time.
type messages struct {
	io.ReadCloser
	held  *budget
	take  func(bytes int64) error // of held, until the call ends
	limit int64
	// decodes is true if the transcoder reads each message, and does not hand it on as it
	// comes; packed, if it does so with the one that is being read, to decompress it.
	decodes, packed bool
	fault           *streamFault
	deadline        func(time.Time) error
	timeout         time.Duration

	envelope [envelopeBytes]byte
	// got is how much of the envelope has been read, given how much has been handed on.
	got, given int
	// size is that of the message, left what has not been read of it.
	size, left int64
}

// Read implements io.Reader.
func (m *messages) Read(p []byte) (int, error) {
	if m.given == envelopeBytes && m.left == 0 {
		m.next()
	}
	if m.got < envelopeBytes {
		if err := m.begin(); err != nil {
			return 0, err
		}
	}
	if m.given < envelopeBytes {
		n := copy(p, m.envelope[m.given:])
		m.given += n
		return n, nil
	}
	n, err := m.ReadCloser.Read(p[:min(int64(len(p)), m.left)])
	if m.left -= int64(n); m.left == 0 {
		_ = m.deadline(time.Time{})
	}
	return n, m.explain(err)
}

// next has a message been handed on. What the transcoder keeps of it until the next one,
// decoded and encoded, stays taken.
func (m *messages) next() {
	var kept int64
	if m.decodes || m.packed {
		kept = 2 * m.size
	}
	m.held.shrink(kept)
	m.got, m.given = 0, 0
}

// begin reads the envelope of a message, and takes the room for it.
func (m *messages) begin() error {
	for m.got < envelopeBytes {
		n, err := m.ReadCloser.Read(m.envelope[m.got:])
		if n > 0 && m.got == 0 {
			_ = m.deadline(time.Now().Add(m.timeout))
		}
		if m.got += n; m.got == envelopeBytes {
			break
		}
		if errors.Is(err, io.EOF) && m.got == 0 {
			return io.EOF
		}
		if err != nil {
			return m.explain(err)
		}
	}
	m.size = int64(binary.BigEndian.Uint32(m.envelope[1:]))
	if m.left = m.size; m.size > m.limit {
		return m.fault.set(codes.InvalidArgument, reasonField, fmt.Sprintf("a message must be at most %d bytes; nothing of it was sent to the server, and the same again would not be", m.limit))
	}
	room := m.size
	if m.packed = m.envelope[0]&compressed != 0; m.packed {
		room = min(room*maxInflation, m.limit)
	}
	if m.decodes || m.packed {
		room *= 3 // as it came, decoded, and encoded again
	}
	if err := m.take(room); err != nil {
		return m.fault.set(codes.Unavailable, reasonLimit, "the server reads as many requests over HTTP as it may; this message was not sent to the server; try again")
	}
	if m.size == 0 {
		_ = m.deadline(time.Time{})
	}
	return nil
}

// explain keeps for the client why its message was not read.
func (m *messages) explain(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF) && m.given == envelopeBytes && m.left == 0:
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return m.fault.set(codes.DeadlineExceeded, "", "a message did not come to its end in time; nothing of it was sent to the server")
	case errors.Is(err, io.EOF):
		return m.fault.set(codes.InvalidArgument, reasonField, "the last message is cut off; nothing of it was sent to the server")
	}
	return err
}
