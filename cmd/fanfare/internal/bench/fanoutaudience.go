package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
)

// audience are subscriptions that stay while frames are published. It tells the
// gate when all of them have got a frame, and checks each for order.
type audience struct {
	rows []*row
	gate *gate
	// shared is whether all subscribe to one stream; otherwise each has its own.
	shared bool
	// rowsWith counts, for sequences of the one stream modulo its length, the rows
	// whose seats all have the frame.
	rowsWith [ringFrames]atomic.Int32

	// missing counts seats that have not been told that they caught up; the last one
	// closes ready.
	missing atomic.Int64
	ready   chan struct{}
	failed  chan error // takes the first error
}

// ringFrames is more than a publisher is ever ahead of the slowest subscriber.
const ringFrames = 1 << 13

// row is the part of an audience on one connection; but for its connection and
// arrivals it is its reader's.
type row struct {
	audience *audience
	conn     *load.Conn
	seats    []seat
	held     []heldSeat
	// messages counts those with frames.
	messages uint64
	// seatsWith counts seats as rowsWith does rows.
	seatsWith [ringFrames]int32
	// arrivals is where arrivals are recorded; nil: nowhere.
	arrivals atomic.Pointer[arrivals]
}

// arrivals are those of some time on one connection, to be read when everything has
// arrived.
type arrivals struct {
	began time.Time
	all   []arrival
}

// arrival is when a frame came to one subscription, since the beginning.
type arrival struct {
	sequence uint64
	after    time.Duration
}

// seat is one subscription.
type seat struct {
	row      *row
	order    load.Order
	caughtUp bool
}

// seating says how an audience subscribes.
type seating struct {
	channel     string
	connections int
	seats       int
	// held is how many subscriptions more take heldWindow bytes and then nothing.
	held int
	// streams is 1, or as many as seats.
	streams int
}

// heldWindow is what a stalled subscription takes, in bytes: some dozen frames.
const heldWindow = 16 << 10

// open opens all subscriptions and returns when each has caught up. The audience must
// be closed, also after an error.
func (s seating) open(ctx context.Context, server *Server, g *gate) (*audience, error) {
	s.connections = min(s.connections, s.seats)
	a := &audience{
		rows: make([]*row, s.connections), gate: g, shared: s.streams == 1,
		ready: make(chan struct{}), failed: make(chan error, 1),
	}
	if s.seats+s.held > s.connections*maxStreamsPerConnection {
		return a, errCrowdSplit
	}
	a.missing.Store(int64(s.seats + s.held))
	opening, openCtx := errgroup.WithContext(ctx)
	opening.SetLimit(dialsAtOnce)
	for i := range a.rows {
		opening.Go(func() error { return a.openRow(openCtx, server, s, i) })
	}
	if err := opening.Wait(); err != nil {
		return a, err
	}
	return a, a.await(ctx, a.ready)
}

// openRow makes the i-th connection and begins its share of the subscriptions.
func (a *audience) openRow(ctx context.Context, server *Server, s seating, i int) error {
	conn, err := server.dial(ctx, load.Options{StreamWindow: heldWindow})
	if err != nil {
		return err
	}
	w := &row{audience: a, conn: conn, seats: make([]seat, share(s.seats, s.connections, i)), held: make([]heldSeat, share(s.held, s.connections, i))}
	a.rows[i] = w
	request := liveRequests(s.channel, s.streams)
	for n := range w.seats {
		w.seats[n].row = w
		if _, err := conn.Subscribe(request(i+n*s.connections), &w.seats[n]); err != nil {
			return err
		}
	}
	for n := range w.held {
		w.held[n].row = w
		if _, err := conn.SubscribeHeld(request(0), &w.held[n]); err != nil {
			return err
		}
	}
	return nil
}

// share is how many of n fall to the i-th of so many, in turn.
func share(n, of, i int) int { return (n - i + of - 1) / of }

// await waits until something has happened to the audience.
func (a *audience) await(ctx context.Context, what <-chan struct{}) error {
	patience := time.NewTimer(crowdPatience)
	defer patience.Stop()
	select {
	case <-what:
		return nil
	case err := <-a.failed:
		return err
	case <-patience.C:
		return fmt.Errorf("%d subscriptions have not caught up after %s", a.missing.Load(), crowdPatience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *audience) fail(err error) {
	select {
	case a.failed <- err:
	default: // the first one is enough
	}
}

// close ends all subscriptions and returns an error that nobody has been told.
func (a *audience) close() error {
	var closing sync.WaitGroup
	for _, w := range a.rows {
		if w != nil {
			closing.Go(func() { w.conn.Close() })
		}
	}
	closing.Wait()
	select {
	case err := <-a.failed:
		return err
	default:
		return nil
	}
}

// record has arrivals recorded from now on; there is room for so many on all
// connections. Nothing may be under way.
func (a *audience) record(began time.Time, room int) []*arrivals {
	recorded := make([]*arrivals, len(a.rows))
	for i, w := range a.rows {
		recorded[i] = &arrivals{began: began, all: make([]arrival, 0, room/len(a.rows))}
		w.arrivals.Store(recorded[i])
	}
	return recorded
}

func (a *audience) stopRecording() {
	for _, w := range a.rows {
		w.arrivals.Store(nil)
	}
}

// Subscribed implements load.StreamHandler, as do the others.
func (s *seat) Subscribed(after uint64, _ time.Time) { s.order.Begin(after) }

func (s *seat) Frames(n int, first, last uint64, _ int, at time.Time) {
	s.row.messages++
	s.order.Frames(n, first, last)
	if err := s.order.Err(); err != nil {
		s.row.audience.fail(err)
		return
	}
	if r := s.row.arrivals.Load(); r != nil {
		for sequence := first; sequence <= last; sequence++ {
			r.all = append(r.all, arrival{sequence, at.Sub(r.began)})
		}
	}
	s.row.got(first, last)
}

// got counts that one more seat has these frames. Each seat gets them in order, so
// the last seat to have one is the last to have all before it.
func (w *row) got(first, last uint64) {
	a := w.audience
	if !a.shared {
		a.gate.advance(last - first + 1)
		return
	}
	for sequence := first; sequence <= last; sequence++ {
		i := sequence % ringFrames
		if w.seatsWith[i]++; int(w.seatsWith[i]) < len(w.seats) {
			continue
		}
		w.seatsWith[i] = 0
		if int(a.rowsWith[i].Add(1)) == len(a.rows) {
			a.rowsWith[i].Store(0)
			a.gate.advance(1)
		}
	}
}

func (s *seat) Notice(kind load.NoticeKind, _ time.Time) {
	s.order.Notice(kind)
	if err := s.order.Err(); err != nil {
		s.row.audience.fail(err)
	}
	s.row.audience.seated(kind, &s.caughtUp)
}

// seated counts the first CaughtUp of a subscription.
func (a *audience) seated(kind load.NoticeKind, caughtUp *bool) {
	if kind != load.CaughtUp || *caughtUp {
		return
	}
	*caughtUp = true
	if a.missing.Add(-1) == 0 {
		close(a.ready)
	}
}

func (s *seat) End(err error) { s.row.audience.ended(err) }

// ended takes the end of a subscription, which only this program should end.
func (a *audience) ended(err error) {
	if !errors.Is(err, load.ErrClosed) {
		a.fail(fmt.Errorf("a subscription ended: %w", firstOf(err, errors.New("the status is OK"))))
	}
}

// heldSeat is a stalled subscription. What it gets must be in order. The server may
// end it, for taking nothing.
type heldSeat struct {
	row      *row
	order    load.Order
	caughtUp bool
	// frames counts what it got.
	frames atomic.Uint64
}

// Subscribed implements load.StreamHandler, as do the others.
func (s *heldSeat) Subscribed(after uint64, _ time.Time) { s.order.Begin(after) }

func (s *heldSeat) Frames(n int, first, last uint64, _ int, _ time.Time) {
	s.order.Frames(n, first, last)
	if err := s.order.Err(); err != nil {
		s.row.audience.fail(err)
	}
	s.frames.Add(uint64(n))
}

func (s *heldSeat) Notice(kind load.NoticeKind, _ time.Time) {
	s.row.audience.seated(kind, &s.caughtUp)
}

func (s *heldSeat) End(error) {}

// messages counts those with frames that everybody got. Nothing may be under way.
func (a *audience) messages() (n uint64) {
	for _, w := range a.rows {
		n += w.messages
	}
	return n
}

// stalled says whether every held subscription has got less than has been published.
func (a *audience) stalled() error {
	published := a.gate.delivered.Load()
	for _, w := range a.rows {
		for i := range w.held {
			if w.held[i].frames.Load() >= published {
				return fmt.Errorf("a subscription that was to stall got all %d frames: give more --bytes, --rate or --time", published)
			}
		}
	}
	return nil
}
