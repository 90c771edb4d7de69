package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
)

var errNoHost = errors.New("that has no host")

// eventReaders are event streams of one stream, each on a connection of its own, read with
// as little work as there can be: what a browser does with it is not measured.
type eventReaders struct {
	audience *audience
	sockets  []net.Conn
	reading  errgroup.Group
}

// openEventStreams opens the case's event streams, and a publisher to their stream. memory
// is by how much the edge grew for each, in bytes.
func openEventStreams(ctx context.Context, r *Run, server, edge *Server) (s *stage, memory float64, err error) {
	channel, err := server.NewChannel(ctx, r, defaultBacklog)
	if err != nil {
		return nil, 0, err
	}
	r.Progressf("opening %d event streams", r.Sizes.Subscribers)
	// The first one of a process sets up what all others share.
	first, err := openReaders(ctx, edge.Address, channel, 1)
	if err := firstOf(err, first.close()); err != nil {
		return nil, 0, err
	}
	before, err := settledMemory(ctx, edge)
	if err != nil {
		return nil, 0, err
	}
	readers, err := openReaders(ctx, edge.Address, channel, r.Sizes.Subscribers)
	r.AtEnd(func(context.Context) error { return readers.close() })
	if err != nil {
		return nil, 0, err
	}
	after, err := settledMemory(ctx, edge)
	if err != nil {
		return nil, 0, err
	}
	conn, err := server.dial(ctx, load.Options{})
	if err != nil {
		return nil, 0, err
	}
	r.AtEnd(func(context.Context) error { return conn.Close() })
	return &stage{
		length: r.Time, server: edge, audience: readers.audience,
		publisher: &publisher{conn: conn, audience: readers.audience, channel: channel, streams: 1, rate: r.Sizes.Rate},
	}, float64(after-before) / float64(r.Sizes.Subscribers), nil
}

// openReaders opens n event streams and returns when each has caught up.
func openReaders(ctx context.Context, address, channel string, n int) (*eventReaders, error) {
	readers := &eventReaders{
		audience: &audience{rows: make([]*row, n), gate: newGate(maxPacedAhead, 1), shared: true, ready: make(chan struct{}), failed: make(chan error, 1)},
		sockets:  make([]net.Conn, n),
	}
	a := readers.audience
	a.missing.Store(int64(n))
	for i := range a.rows {
		a.rows[i] = &row{audience: a, seats: make([]seat, 1)}
		a.rows[i].seats[0].row = a.rows[i]
	}
	request := fmt.Appendf(nil, "GET /v1/streams?channel=%s&scope=0&from=live HTTP/1.1\r\nHost: %s\r\n\r\n", url.QueryEscape(channel), address)
	opening, openCtx := errgroup.WithContext(ctx)
	opening.SetLimit(dialsAtOnce)
	for i := range readers.sockets {
		opening.Go(func() error {
			var dialer net.Dialer
			socket, err := dialer.DialContext(openCtx, "tcp", address)
			if err != nil {
				return err
			}
			readers.sockets[i] = socket
			readers.reading.Go(func() error { return a.rows[i].readEvents(socket) })
			_, err = socket.Write(request)
			return err
		})
	}
	if err := opening.Wait(); err != nil {
		return readers, err
	}
	return readers, a.await(ctx, a.ready)
}

// close ends all event streams and returns an error that nobody has been told.
func (e *eventReaders) close() error {
	for _, s := range e.sockets {
		if s != nil {
			_ = s.Close()
		}
	}
	_ = e.reading.Wait() // readEvents tells the audience
	select {
	case err := <-e.audience.failed:
		return err
	default:
		return nil
	}
}

// readEvents reads an event stream until its end.
func (w *row) readEvents(socket net.Conn) error {
	var text []byte
	begun := false
	buffer := make([]byte, 2<<10)
	for {
		n, err := socket.Read(buffer)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				w.audience.fail(fmt.Errorf("an event stream ended: %w", err))
			}
			return nil
		}
		at := time.Now()
		text = append(text, buffer[:n]...)
		for {
			block, rest, found := bytes.Cut(text, []byte("\n\n"))
			if !found {
				break
			}
			if err := w.takeBlock(block, at, &begun); err != nil {
				w.audience.fail(err)
				return nil
			}
			text = rest
		}
		text = append([]byte(nil), text...)
	}
}

// takeBlock takes a block. The first one has the answer's header before it, and all may
// have what divides chunks.
func (w *row) takeBlock(block []byte, at time.Time, begun *bool) error {
	s := &w.seats[0]
	switch {
	case bytes.Contains(block, []byte("event: fanfare.caught_up")):
		s.Notice(load.CaughtUp, at)
		return nil
	case bytes.Contains(block, []byte("event: fanfare.")):
		return fmt.Errorf("an event stream had %q", block)
	case *begun && !bytes.Contains(block, []byte("\ndata: ")):
		return nil // a heartbeat
	}
	sequence, err := sequenceOf(block)
	if err != nil {
		return err
	}
	if !*begun {
		*begun = true
		s.Subscribed(sequence, at)
		return nil
	}
	s.Frames(1, sequence, sequence, len(block), at)
	return nil
}

// sequenceOf reads the id of a block, EPOCH-SEQUENCE.
func sequenceOf(block []byte) (uint64, error) {
	_, id, _ := bytes.Cut(block, []byte("id: ")) // nothing before it has that
	id, _, _ = bytes.Cut(id, []byte("\n"))
	_, sequence, _ := bytes.Cut(id, []byte("-"))
	n, err := strconv.ParseUint(string(sequence), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("an event stream has the block %.200q without an id: %w", block, err)
	}
	return n, nil
}
