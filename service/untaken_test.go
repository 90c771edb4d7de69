package service_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A client that takes nothing had its calls ended by the write timeout and was
// never told: what tells it waits behind frames that cannot be sent. The
// connection, which answers pings, stayed open for as long as the client liked.
func TestAConnectionThatTakesNothingIsClosed(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL, wholeBacklog, quickEnds)
		s := stream("hoarded", "")
		h := newHoarder(t, r.Addr)
		for i := range uint32(5) {
			h.subscribe(2*i+1, live(s))
		}
		eventually(t, "the calls have subscribed", func() bool { return r.Hub.Subscribers(s) == 5 })
		publishMany(t, r, s, 100, func(int) string { return string(stamped(0, 4000)) })
		select {
		case <-h.gone:
		case <-time.After(patience):
			t.Error("neither the calls' end nor the connection's has reached the client")
		}
	})
}

// What is in flight to a call stays with the transport when the call has ended and
// its client does not read. A client that opened ever more calls filled the memory,
// because the place of an ended call was free at once.
func TestEndedCallsKeepTheirPlaces(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		const conns, each = 5, 12
		const limit = conns*each + 1 // one publishes
		r := servicetest.Start(t, db.URL, wholeBacklog, quickLinger, func(c *servicetest.Config) {
			c.Service.WriteTimeout = 3 * time.Second
			c.Service.UntakenTimeout = time.Hour
			c.Service.MaxSubscriptions = limit
		})
		s := stream("ended", "")
		publishMany(t, r, s, 20, func(int) string { return string(stamped(0, stampBytes)) + strings.Repeat("x", 50_000) })
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		request := func(int) *fanfarev1.SubscribeRequest { return fromOldest(s) }
		// A sibling that reads shows that there is progress on each connection.
		var reading []*tally
		clients := dials(t, r.Addr, conns, narrow)
		for _, conn := range clients {
			if _, err := openTallies(ctx, []*grpc.ClientConn{conn}, each-1, request); err != nil {
				t.Fatal(err)
			}
			busy, err := openTally(ctx, conn, live(stream("busy", "")))
			if err != nil {
				t.Fatal(err)
			}
			reading = append(reading, busy)
		}
		keepBusy(t, r, reading)
		eventually(t, "all that take nothing have been ended", func() bool { return r.Hub.Subscribers(s) == 0 })
		_, err := openTally(ctx, dial(t, r.Addr), fromOldest(s))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a further call: %v, want RESOURCE_EXHAUSTED while the clients have taken nothing", err)
		}
		for _, conn := range clients {
			_ = conn.Close()
		}
		eventually(t, "the places are free", func() bool {
			_, err := openTally(ctx, dial(t, r.Addr), fromOldest(s))
			return err == nil
		})
	})
}

// A client may leave a few calls unread for good, as long as its connection gets on,
// but not ever more of them.
func TestManyUntakenCallsOfAConnection(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL, wholeBacklog, quickLinger, func(c *servicetest.Config) {
			// Who reads beside other tests must not seem to take nothing.
			c.Service.WriteTimeout, c.Service.UntakenTimeout = 1500*time.Millisecond, 1500*time.Millisecond
		})
		s := stream("ended", "")
		publishMany(t, r, s, 20, func(int) string { return string(stamped(0, stampBytes)) + strings.Repeat("x", 50_000) })
		for _, tt := range []struct {
			calls  int
			closed bool
		}{{3, false}, {130, true}} {
			t.Run(fmt.Sprint(tt.calls), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				conn := dial(t, r.Addr, narrow)
				busy, err := openTally(ctx, conn, live(stream("busy", "")))
				if err != nil {
					t.Fatal(err)
				}
				ended := keepBusy(t, r, []*tally{busy})
				if _, err := openTallies(ctx, []*grpc.ClientConn{conn}, tt.calls, func(int) *fanfarev1.SubscribeRequest { return fromOldest(s) }); err != nil {
					t.Fatal(err)
				}
				eventually(t, "all have been ended", func() bool { return r.Hub.Subscribers(s) == 0 })
				if tt.closed {
					eventually(t, "the connection has been closed", func() bool { return ended() != nil })
					return
				}
				// Some write timeouts later, at 200 frames a second, the sibling still gets its own.
				before := busy.count.Load()
				eventually(t, "the sibling gets on", func() bool { return busy.count.Load() > before+800 })
				if err := ended(); err != nil {
					t.Errorf("the sibling's call has ended: %v", err)
				}
			})
		}
	})
}

// quickEnds has calls and connections that take nothing end soon.
func quickEnds(c *servicetest.Config) {
	c.Service.WriteTimeout, c.Service.UntakenTimeout = 300*time.Millisecond, 300*time.Millisecond
}

// keepBusy publishes to the stream busy, and has subscriptions of it read, until t
// ends. It returns what tells how the first of them has ended, nil if none has.
func keepBusy(t *testing.T, r *servicetest.Replica, reading []*tally) (ended func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var tasks sync.WaitGroup
	tasks.Go(func() { _, _ = steadily(ctx, r.Client, stream("busy", ""), false, 200, stampBytes) })
	ends := make(chan error, len(reading))
	for _, sub := range reading {
		tasks.Go(func() { ends <- sub.readToEnd() })
	}
	t.Cleanup(func() {
		cancel()
		for _, sub := range reading {
			sub.cancel()
		}
		tasks.Wait()
	})
	return func() error {
		select {
		case err := <-ends:
			ends <- err
			return err
		default:
			return nil
		}
	}
}
