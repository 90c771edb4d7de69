package service_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// drainFleet are clients of a replica that is drained, each of which goes on at
// another.
type drainFleet struct {
	w       *world
	streams []backlog.StreamName
	clients []*drainClient
}

// drainClient is one subscription that moves.
type drainClient struct {
	stream backlog.StreamName
	conn   *grpc.ClientConn
	tally  *tally
	// sentAway is when Closing came, and closings how many came.
	sentAway time.Time
	closings int
}

// newDrainFleet opens n subscriptions over many connections and streams.
func newDrainFleet(ctx context.Context, t *testing.T, w *world, streams int, n int, conns []*grpc.ClientConn) *drainFleet {
	t.Helper()
	f := &drainFleet{w: w}
	for i := range streams {
		f.streams = append(f.streams, stream("drained", fmt.Sprint(i)))
	}
	f.clients = make([]*drainClient, n)
	var g errgroup.Group
	g.SetLimit(100)
	for i := range f.clients {
		g.Go(func() (err error) {
			c := &drainClient{stream: f.streams[i%streams], conn: conns[i%len(conns)]}
			c.tally, err = openTally(ctx, c.conn, fromOldest(c.stream))
			f.clients[i] = c
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return f
}

// publish publishes to random streams through b until ctx ends, and then one frame
// to each, which it returns the sequences of.
func (f *drainFleet) publish(ctx context.Context, period time.Duration) (last []uint64, err error) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for number := uint64(1); ctx.Err() == nil; number++ {
		if _, err := f.publishTo(rand.IntN(len(f.streams)), number); err != nil {
			return nil, err
		}
		<-tick.C
	}
	for i := range f.streams {
		sequence, err := f.publishTo(i, 0)
		if err != nil {
			return nil, err
		}
		last = append(last, sequence)
	}
	return last, nil
}

func (f *drainFleet) publishTo(i int, number uint64) (sequence uint64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	frame := newFrame(f.streams[i], string(stamped(number, 100)))
	answer, err := f.w.b.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: frame})
	return answer.GetPosition().GetSequence(), err
}

// untilSentAway reads until the call ends, which must be by one Closing with the
// position that the client has.
func (c *drainClient) untilSentAway() error {
	before := c.tally.notice
	for {
		err := c.tally.recv()
		if err != nil {
			if reason, _ := statusDetails(err); status.Code(err) != codes.Unavailable || reason != "DRAINING" {
				return fmt.Errorf("a subscription of %s ended with %w", c.stream, err)
			}
			break
		}
		if c.tally.notice != before && c.tally.notice.GetClosing() != nil {
			c.closings++
			c.sentAway = time.Now()
		}
		before = c.tally.notice
	}
	closing := c.tally.notice.GetClosing()
	if c.closings != 1 || position(closing.GetResumeAfter()) != position(c.tally.position()) {
		return fmt.Errorf("a subscription of %s was sent away by %d Closing after %v, the last %v", c.stream, c.closings, c.tally.position(), closing)
	}
	if wait := closing.GetRetryIn().AsDuration(); wait <= 0 || wait > time.Second {
		return fmt.Errorf("a subscription of %s was told to retry in %s", c.stream, wait)
	}
	return nil
}

// goOn waits as it was told and resumes at another replica. The tally checks that
// what follows does.
func (c *drainClient) goOn(ctx context.Context, conn *grpc.ClientConn) error {
	<-time.After(c.tally.notice.GetClosing().GetRetryIn().AsDuration())
	at := c.tally.position()
	next, err := openTally(ctx, conn, after(c.stream, at))
	if err != nil {
		return err
	}
	if !next.notice.GetSubscribed().GetResumed() || next.last != at.GetSequence() {
		return fmt.Errorf("a subscription of %s after %v resumed with %v", c.stream, at, next.notice)
	}
	c.tally.cancel()
	c.tally = next
	return nil
}

// Symptoms of drains that go wrong: clients come straight
// back to a server that is going away, or all at once to the other one, or not at
// all; or stand still until they are told. Health flips first, while everything is
// still served; each stream gets Closing with its position after GOAWAY, at a
// moment of its own; and a client that resumes elsewhere misses and repeats
// nothing.
func TestDrainOfManyStreams(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Replicas}, func(t *testing.T, db servicetest.Database) {
		streams, n := 100, form(500, 5000)
		delay, grace := time.Second, 15*time.Second
		w := newWorld(t, db, quickDrain(delay, grace), unhurried)
		ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
		defer cancel()
		wire := &wireOrder{}
		conns := dials(t, w.a.Addr, 49)
		conns = append(conns, dial(t, w.a.Addr, grpc.WithContextDialer(wire.dial)))
		fleet := newDrainFleet(ctx, t, w, streams, n, conns)

		publishing, stopPublishing := context.WithCancel(ctx)
		defer stopPublishing()
		var last []uint64
		var g errgroup.Group
		g.Go(func() (err error) {
			last, err = fleet.publish(publishing, 10*time.Millisecond)
			return err
		})
		var leaving errgroup.Group
		elsewhere := dials(t, w.b.Addr, len(conns))
		for i, c := range fleet.clients {
			leaving.Go(func() error {
				if err := c.untilSentAway(); err != nil {
					return err
				}
				return c.goOn(ctx, elsewhere[i%len(elsewhere)])
			})
		}
		health := watchHealth(t, w.a)
		if ready := <-health; !ready {
			expectChange(t, health, true, "at the start")
		}
		latecomer := dial(t, w.a.Addr)

		began := time.Now()
		drained := make(chan error, 1)
		go func() { drained <- w.a.Drain(ctx) }()
		expectChange(t, health, false, "the drain")
		flipped := time.Now()
		// A connection that is made now is served.
		if _, err := fanfarev1.NewFanfareServiceClient(latecomer).Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(stream("late", ""), "x")}); err != nil {
			t.Errorf("a publish in the drain delay, %s after its begin: %v", time.Since(began), err)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		took := time.Since(began)
		if took > delay+grace {
			t.Errorf("the drain took %s, of which %s are delay and at most %s grace", took, delay, grace)
		}
		if _, err := net.DialTimeout("tcp", w.a.Addr, patience); err == nil {
			t.Error("the port still accepts after the drain")
		}
		if err := leaving.Wait(); err != nil {
			t.Fatal(err)
		}
		stopPublishing()
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		var ending errgroup.Group
		for i, c := range fleet.clients {
			ending.Go(func() error {
				for c.tally.last < last[i%streams] {
					if err := c.tally.recv(); err != nil {
						return err
					}
				}
				c.tally.cancel()
				return nil
			})
		}
		if err := ending.Wait(); err != nil {
			t.Error(err)
		}
		if goAways, early := wire.seen(); goAways == 0 || early > 0 {
			t.Errorf("on a connection %d GOAWAYs came, and %d Closings before the first", goAways, early)
		}
		fleet.checkSpread(t, flipped, grace)
		t.Logf("%d streams: %s", n, took)
	})
}

// checkSpread checks that clients were sent away after health had flipped, over
// the time that there is for it, without crowds.
func (f *drainFleet) checkSpread(t *testing.T, flipped time.Time, grace time.Duration) {
	t.Helper()
	const parts = 10
	moments := make([]time.Time, len(f.clients))
	for i, c := range f.clients {
		moments[i] = c.sentAway
	}
	slices.SortFunc(moments, time.Time.Compare)
	first, width := moments[0], moments[len(moments)-1].Sub(moments[0])
	if first.Before(flipped) {
		t.Errorf("a stream was sent away %s before health said so", flipped.Sub(first))
	}
	// 500 a second, or all within two thirds of the grace.
	spread := min(grace*2/3, time.Duration(len(moments))*2*time.Millisecond)
	var histogram [parts]int
	for _, m := range moments {
		histogram[min(parts-1, int(m.Sub(first)*parts/width))]++
	}
	t.Logf("%d streams were sent away within %s, by tenths of it: %v", len(moments), width, histogram)
	// The short form is so short that a pause of the machine is most of it; there the
	// moments are tested by a clock of the test's, see TestCallsOfADrainEndApart.
	if !inLongForm() {
		return
	}
	if width < spread/2 {
		t.Errorf("all %d streams were sent away within %s, there were %s for it", len(moments), width, spread)
	}
	for part, count := range histogram {
		if share := len(moments) / parts; count > 3*share {
			t.Errorf("%d of %d streams were sent away in tenth %d: %v", count, len(moments), part, histogram)
		}
	}
}

// wireOrder observes what a server sends on a connection.
type wireOrder struct {
	mu sync.Mutex // guards what follows
	// goAways counts GOAWAYs, early the Closings before the first, pings the PINGs
	// that are no answers.
	goAways, early, pings int
}

func (o *wireOrder) seen() (goAways, early int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.goAways, o.early
}

func (o *wireOrder) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	copied, copy := io.Pipe()
	go o.observe(copied)
	return &copiedConn{conn, copy}, nil
}

// copiedConn copies what is read from it.
type copiedConn struct {
	net.Conn
	copy *io.PipeWriter
}

func (c *copiedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	_, _ = c.copy.Write(b[:n])
	if err != nil {
		c.copy.CloseWithError(err)
	}
	return n, err
}

// observe reads frames of HTTP/2 until there are no more.
func (o *wireOrder) observe(from *io.PipeReader) {
	defer from.Close() //nolint:errcheck // never fails
	framer := http2.NewFramer(io.Discard, from)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		o.mu.Lock()
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			o.goAways++
		case *http2.PingFrame:
			if !f.IsAck() {
				o.pings++
			}
		case *http2.DataFrame:
			if o.goAways == 0 && isClosingMessage(f.Data()) {
				o.early++
			}
		}
		o.mu.Unlock()
	}
}

// isClosingMessage reports whether a message of Subscribe, as it is on the wire,
// begins with Closing, which is field 8.
func isClosingMessage(data []byte) bool {
	const prefix, closing = 5, 8<<3 | 2
	return len(data) > prefix && data[prefix] == closing
}
