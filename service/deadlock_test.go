package service_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// resettable is a client's connection that can be reset: its peer is told by RST,
// in the midst of whatever it is doing.
type resettable struct {
	*grpc.ClientConn
	mu    sync.Mutex // guards conns
	conns []*net.TCPConn
}

// dialResettable connects to an address; the caller resets the connection.
func dialResettable(address string, options ...grpc.DialOption) (*resettable, error) {
	r := &resettable{}
	options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.conns = append(r.conns, conn.(*net.TCPConn))
		return conn, nil
	}))
	var err error
	r.ClientConn, err = grpc.NewClient("passthrough:///"+address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	return r, err
}

// reset resets the connection; the client does not come back.
func (r *resettable) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
	_ = r.Close()
}

// Scenario S90, symptom: publishing stopped for ever. Cause: a frame was being
// handed to a subscriber that was just disconnecting. Clients come, read up to
// five frames and leave, by cancelling, by closing or by resetting their
// connections, while ephemeral frames flow: publishing goes on as before, and
// nothing is left of them.
func TestSubscribersThatLeaveAtOnce(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, quickLinger)
		s := stream("leavers", "")
		announce(t, w.a, ephemeral(s, string(stamped(0, stampBytes))))
		base := goroutines(t, w.a, w.b)
		clients, each := form(40, 500), form(250, 1000) // clients, and frames a second
		ctx, cancel := context.WithTimeout(t.Context(), form(time.Second, 2*time.Minute))
		defer cancel()
		var g errgroup.Group
		visits := make([]int, clients)
		for i := range clients {
			g.Go(func() error {
				for ctx.Err() == nil {
					if err := visit(ctx, w.b, i+visits[i]); err != nil {
						return err
					}
					visits[i]++
				}
				return nil
			})
		}
		const publishers = 4
		latencies := make([][]uint32, publishers)
		for p := range publishers {
			g.Go(func() (err error) {
				latencies[p], err = publishEach(ctx, w.a, ephemeral(s, string(stamped(0, 200))), each/publishers)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		var thirds [3][]uint32
		for _, l := range latencies {
			for i := range thirds {
				thirds[i] = append(thirds[i], l[len(l)*i/3:len(l)*(i+1)/3]...)
			}
		}
		_, first, _ := quantiles(thirds[0])
		_, last, _ := quantiles(thirds[2])
		all := 0
		for _, n := range visits {
			all += n
		}
		t.Logf("%d visits, p99 of publishing %s in the first third, %s in the last", all, first, last)
		// The least that is told apart from a busy machine.
		if last > max(3*first, form(10*time.Second, time.Second)) {
			t.Errorf("the 99th percentile of publishing went from %s to %s", first, last)
		}
		nothingIsLeft(t, w.b, base)
	})
}

// quickLinger has streams go as soon as their last subscription has.
func quickLinger(c *servicetest.Config) { c.Hub.Linger = 10 * time.Millisecond }

// nothingIsLeft waits until a replica holds nothing for subscriptions any more and
// there are as few goroutines as at base.
func nothingIsLeft(t testing.TB, r *servicetest.Replica, base int) {
	t.Helper()
	eventually(t, "the hub is empty", func() bool {
		stats := r.Hub.Stats()
		return stats.Streams == 0 && stats.Subscribers == 0 && stats.TailBytes == 0 && stats.PageBytes == 0
	})
	// Pools of connections may have grown a little.
	eventually(t, fmt.Sprintf("there are about %d goroutines again", base), func() bool { return runtime.NumGoroutine() <= base+5 })
}

// visit subscribes on a connection of its own, reads up to five frames, and
// leaves in one of three ways, or when the run ends.
func visit(run context.Context, r *servicetest.Replica, way int) error {
	conn, err := dialResettable(r.Addr)
	if err != nil {
		return err
	}
	defer conn.reset()
	// A deadline is the server's, too; the end of the run must be the client's alone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(run), patience)
	defer cancel()
	stop := context.AfterFunc(run, cancel)
	defer stop()
	sub, err := openTally(ctx, conn, live(stream("leavers", "")))
	if err == nil {
		err = sub.readTo(rand.Int64N(6))
	}
	if run.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	switch way % 3 {
	case 0:
		sub.cancel()
		if err := sub.readToEnd(); status.Code(err) != codes.Canceled {
			return fmt.Errorf("a cancelled call ended with %w", err)
		}
	case 1:
		_ = conn.Close()
	case 2:
		conn.reset()
	}
	return nil
}

// publishEach publishes a frame so many times a second until ctx ends, and returns
// how long each call took.
func publishEach(ctx context.Context, r *servicetest.Replica, f *fanfarev1.NewFrame, perSecond int) (latencies []uint32, err error) {
	pace := time.NewTicker(time.Second / time.Duration(perSecond))
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return latencies, nil
		case <-pace.C:
		}
		began := time.Now()
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		_, err := r.Client.Publish(call, &fanfarev1.PublishRequest{Frame: f})
		cancel()
		if err != nil {
			return latencies, err
		}
		latencies = append(latencies, uint32(time.Since(began).Microseconds()))
	}
}

// Scenario S91, symptom: publishing hung. Cause: a subscriber that failed while its
// queue was full asked to be removed under a lock that the publisher, blocked on
// that queue, was holding. Subscribers stall until nothing more can be handed to
// them and then reset their connections: the others get everything, and every
// failed one is removed promptly.
func TestStalledSubscribersThatReset(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.TailFrames = 100 })
		s := stream("reset", "")
		ctx, cancel := context.WithTimeout(t.Context(), form(patience, 10*time.Minute))
		defer cancel()
		others, err := openTallies(ctx, dials(t, w.b.Addr, 2), 10, func(int) *fanfarev1.SubscribeRequest { return fromOldest(s) })
		if err != nil {
			t.Fatal(err)
		}
		var longest time.Duration
		number := 0
		for round := range form(6, 100) {
			conn, err := dialResettable(w.b.Addr, narrow)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.reset)
			if _, err := openTallies(ctx, []*grpc.ClientConn{conn.ClientConn}, 3, func(int) *fanfarev1.SubscribeRequest { return live(s) }); err != nil {
				t.Fatal(err)
			}
			batch := &fanfarev1.PublishBatchRequest{}
			for range 60 { // of 8 kB: more than is in flight to one that does not read
				f := newFrame(s, "")
				if f.Ephemeral = round%2 == 1; f.GetEphemeral() {
					number++
				}
				f.Payload = stamped(uint64(number), 8000)
				batch.Frames = append(batch.Frames, f)
			}
			if _, err := w.a.Client.PublishBatch(ctx, batch); err != nil {
				t.Fatal(err)
			}
			for i, other := range others {
				if err := other.readTo(int64((round + 1) * 60)); err != nil {
					t.Fatalf("round %d, subscriber %d: %v", round, i, err)
				}
			}
			began := time.Now()
			conn.reset()
			eventually(t, "the failed subscriptions are removed", func() bool { return w.b.Hub.Subscribers(s) == len(others) })
			longest = max(longest, time.Since(began))
		}
		t.Logf("failed subscriptions are removed within %s", longest)
		if limit := form(10*time.Second, 2*time.Second); longest > limit {
			t.Errorf("it took %s until failed subscriptions were removed", longest)
		}
	})
}

// Scenario S92, symptom: all subscribers stood still. Cause: a slow one that went
// from live back to the backlog blocked what served all the others. Some readers
// stall and read at full speed in turn, so that they keep changing between tail
// and store: the fast ones do not notice, and the others are complete.
func TestReadersThatStallAgainAndAgain(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.TailFrames = form(30, 1000) })
		s := stream("alternate", "")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		request := func(int) *fanfarev1.SubscribeRequest { return fromOldest(s) }
		fast, err := openTallies(ctx, dials(t, w.b.Addr, 5), form(10, 50), request)
		if err != nil {
			t.Fatal(err)
		}
		alternating, err := openTallies(ctx, dials(t, w.b.Addr, 2, narrow), form(4, 10), request)
		if err != nil {
			t.Fatal(err)
		}
		var readers errgroup.Group
		for _, r := range fast {
			readers.Go(r.readToEnd)
		}
		for _, r := range alternating {
			readers.Go(func() error { return r.alternate(form(250*time.Millisecond, 2*time.Second)) })
		}
		run, stop := context.WithTimeout(ctx, form(1500*time.Millisecond, time.Minute))
		defer stop()
		sent, err := steadily(run, w.a.Client, s, false, form(600, 2000), form(2000, 500))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range slices.Concat(fast, alternating) {
			eventually(t, fmt.Sprintf("reader %d of %d has all %d frames", i, len(fast)+len(alternating), sent), func() bool { return r.count.Load() == sent })
		}
		var latencies []uint32
		for _, r := range fast {
			latencies = append(latencies, r.takeLatencies()...)
		}
		p50, p99, largest := quantiles(latencies)
		pages := w.b.Hub.Stats().Pages
		t.Logf("%d frames, %d pages read; fast readers: p50 %s, p99 %s, largest %s", sent, pages, p50, p99, largest)
		if limit := form(30*time.Second, 500*time.Millisecond); p99 > limit {
			t.Errorf("the 99th percentile of the fast readers is %s", p99)
		}
		if pages == 0 {
			t.Error("nobody fell behind the tail: nothing was tested")
		}
		cancel()
		if err := readers.Wait(); status.Code(err) != codes.Canceled {
			t.Errorf("a reader was ended with %v", err)
		}
	})
}

// alternate stalls and reads, each for d in turn, until the call ends.
func (t *tally) alternate(d time.Duration) error {
	for {
		<-time.After(d) // the stall that is tested
		for began := time.Now(); time.Since(began) < d; {
			if err := t.recv(); err != nil {
				return err
			}
		}
	}
}

// Scenario S94, symptom: nothing was delivered after some starts. Cause: the first
// subscriptions used the listener's connection at once. Right after each start 200
// subscriptions of new channels come at once, and half of them are given up after
// milliseconds: all others are acknowledged and get what is published, durable
// and ephemeral.
func TestSubscriptionsAtBoot(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		for boot := range form(2, 20) {
			r := servicetest.Start(t, db.URL, wholeBacklog)
			bootOnce(t, r, boot)
			if err := r.Stop(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func bootOnce(t *testing.T, r *servicetest.Replica, boot int) {
	t.Helper()
	const subscriptions = 200
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	channel := func(i int) string { return fmt.Sprint("boot ", boot, "/", i) }
	conns := dials(t, r.Addr, 4)
	kept := make([]*tally, subscriptions)
	var g errgroup.Group
	began := time.Now()
	for i := range subscriptions {
		g.Go(func() (err error) {
			request := live(stream(channel(i), ""))
			if i%2 == 0 {
				kept[i], err = openTally(ctx, conns[i%len(conns)], request)
				return err
			}
			short, cancel := context.WithTimeout(ctx, time.Millisecond+rand.N(9*time.Millisecond))
			defer cancel()
			_, err = openTally(short, conns[i%len(conns)], request)
			if code := status.Code(err); err != nil && code != codes.DeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("one that was given up: %w", err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatalf("boot %d: %v", boot, err)
	}
	took := time.Since(began)
	t.Logf("boot %d: acknowledged within %s", boot, took)
	if limit := form(30*time.Second, 5*time.Second); took > limit {
		t.Errorf("boot %d: subscriptions took %s", boot, took)
	}
	batch := &fanfarev1.PublishBatchRequest{}
	for i := range subscriptions {
		batch.Frames = append(batch.Frames,
			newFrame(stream(channel(i), ""), string(stamped(1, stampBytes))),
			ephemeral(stream(channel(i), ""), string(stamped(1, stampBytes))))
	}
	if _, err := r.Client.PublishBatch(ctx, batch); err != nil {
		t.Fatal(err)
	}
	for i, s := range kept {
		if s == nil {
			continue
		}
		if err := s.readTo(2); err != nil {
			t.Fatalf("boot %d, subscription %d: %v", boot, i, err)
		}
		if s.last != 1 || s.number != 1 {
			t.Errorf("boot %d, subscription %d got frames %d and %d", boot, i, s.last, s.number)
		}
	}
}
