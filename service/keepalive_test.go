package service_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// onOneStore runs a test of connections, for which stores make no difference.
func onOneStore(t *testing.T, test func(t *testing.T, db servicetest.Database)) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.File}, test)
}

func keepalive(after, timeout time.Duration) func(*servicetest.Config) {
	return func(c *servicetest.Config) { c.Service.Keepalive, c.Service.KeepaliveTimeout = after, timeout }
}

// Scenario S65, symptom: connections of idle clients were cut every few minutes.
// Cause: pings of one side that are too many for the other. A client library with
// its defaults keeps an idle subscription, and a connection without any, through
// pings of the server; the long form with the server's defaults, for 5 minutes.
func TestIdleConnectionsAreKept(t *testing.T) {
	onOneStore(t, func(t *testing.T, db servicetest.Database) {
		options := []func(*servicetest.Config){keepalive(time.Second, 10*time.Second)}
		pings := 3
		if inLongForm() {
			options, pings = nil, 9 // every 30 s
		}
		r := servicetest.Start(t, db.URL, options...)
		s := stream("keepalive", "idle")
		watched, bare := &wireOrder{}, &wireOrder{}
		subscribed := dial(t, r.Addr, grpc.WithContextDialer(watched.dial))
		sub := subscribeWith(t, fanfarev1.NewFanfareServiceClient(subscribed), live(s))
		unused := dial(t, r.Addr, grpc.WithContextDialer(bare.dial), grpc.WithIdleTimeout(0))
		unused.Connect()
		ctx, cancel := context.WithTimeout(t.Context(), form(patience, 6*time.Minute))
		defer cancel()
		for _, wire := range []*wireOrder{watched, bare} {
			if err := wire.awaitPings(ctx, pings); err != nil {
				t.Fatal(err)
			}
			if goAways, _ := wire.seen(); goAways > 0 {
				t.Errorf("%d GOAWAYs came", goAways)
			}
		}
		if state := unused.GetState(); state != connectivity.Ready {
			t.Errorf("the connection without a stream is %s", state)
		}
		sub.silent("still here", func() { publish(t, r, newFrame(s, "still here")) })
	})
}

// awaitPings waits until a server has sent n PINGs of its own.
func (o *wireOrder) awaitPings(ctx context.Context, n int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		o.mu.Lock()
		pings := o.pings
		o.mu.Unlock()
		if pings >= n {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d PINGs came: %w", pings, n, ctx.Err())
		}
	}
}

// The other half of S65: a client that pings every 100 ms is cut, with the reason,
// and nobody else is.
func TestRudeClientsAreCut(t *testing.T) {
	onOneStore(t, func(t *testing.T, db servicetest.Database) {
		r := servicetest.Start(t, db.URL)
		s := stream("keepalive", "polite")
		polite := subscribe(t, r, live(s))
		conn, err := net.DialTimeout("tcp", r.Addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // the server closes it
		_ = conn.SetDeadline(time.Now().Add(patience))
		framer := http2.NewFramer(conn, conn)
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := framer.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		var pinging sync.WaitGroup
		pinging.Go(func() {
			rudely := time.NewTicker(100 * time.Millisecond)
			defer rudely.Stop()
			for framer.WritePing(false, [8]byte{}) == nil {
				<-rudely.C
			}
		})
		var reason http2.ErrCode
		for {
			frame, err := framer.ReadFrame()
			if goAway, ok := frame.(*http2.GoAwayFrame); ok {
				reason = goAway.ErrCode
			}
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				break
			}
			if err != nil {
				if reason == 0 {
					t.Errorf("the connection ended with %v", err)
				}
				break
			}
		}
		_ = conn.Close()
		pinging.Wait()
		if reason != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("the connection was ended with the code %s", reason)
		}
		polite.silent("unmoved", func() { publish(t, r, newFrame(s, "unmoved")) })
	})
}

// Scenario S68, symptom: a proxy ended every subscription that was idle for a
// while, whatever its connection did. Cause: nothing is sent on an idle stream.
// Heartbeats are, and the client sees nothing but Progress.
func TestHeartbeatsKeepIdleStreamsThroughAProxy(t *testing.T) {
	onOneStore(t, func(t *testing.T, db servicetest.Database) {
		// Idle for all of it, a stream would be cut; for one beat on a busy machine it is not.
		beat, idle, beats := 200*time.Millisecond, 2500*time.Millisecond, 15
		if inLongForm() {
			beat, idle, beats = 2*time.Second, 5*time.Second, 30
		}
		r := servicetest.Start(t, db.URL, func(c *servicetest.Config) { c.Service.Heartbeat = beat })
		s := stream("keepalive", "proxied")
		last := publish(t, r, newFrame(s, "first"))
		proxy := idleProxy(t, r.Addr, idle)
		sub := subscribeWith(t, fanfarev1.NewFanfareServiceClient(dial(t, proxy)), live(s))
		sub.untilCaughtUp()
		for range beats {
			response, err := sub.stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := response.GetProgress().GetPosition(); position(got) != position(last) {
				t.Fatalf("an idle subscription at %v got %v", last, response)
			}
		}
		sub.silent("alive", func() { publish(t, r, newFrame(s, "alive")) })

		// The proxy does end what is idle.
		client := fanfarev1.NewFanfareServiceClient(dial(t, idleProxy(t, r.Addr, beat/2)))
		idler := open(t, client, live(s))
		if code := idler.end(); code != codes.Unavailable {
			t.Errorf("a subscription without heartbeats ended %s", code)
		}
	})
}

// idleProxy carries connections to an address and cuts each on which the server
// has sent nothing for a while. It returns its own address.
func idleProxy(t *testing.T, target string, idle time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			carrying.Go(func() { carryUntilIdle(client, target, idle) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		carrying.Wait()
	})
	return listener.Addr().String()
}

func carryUntilIdle(client net.Conn, target string, idle time.Duration) {
	defer client.Close() //nolint:errcheck // it is cut
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	var toServer sync.WaitGroup
	toServer.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	buffer := make([]byte, 32<<10)
	for {
		_ = server.SetReadDeadline(time.Now().Add(idle))
		n, err := server.Read(buffer)
		if err != nil {
			break
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			break
		}
	}
	_ = client.Close()
	_ = server.Close()
	toServer.Wait()
}

// Scenario S102, symptom: handlers of clients that had lost their network stayed
// for ever. Cause: a server without keepalive. What idle subscriptions in a black
// hole hold is released within the keepalive limit, and meanwhile others get their
// frames.
func TestBlackholedSubscriptionsAreReleased(t *testing.T) {
	onOneStore(t, func(t *testing.T, db servicetest.Database) {
		const after, timeout = time.Second, 3 * time.Second // a busy machine answers a ping in it
		n := form(200, 1000)
		r := servicetest.Start(t, db.URL, keepalive(after, timeout), func(c *servicetest.Config) { c.Hub.Linger = 1 })
		s := stream("keepalive", "others")
		others := subscribe(t, r, live(s))
		before := runtime.NumGoroutine()

		proxy := pgtest.Proxy(t, r.Addr)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		conns := dials(t, proxy.Addr(), 10)
		var g errgroup.Group
		for i := range n {
			g.Go(func() error {
				call, err := fanfarev1.NewFanfareServiceClient(conns[i%len(conns)]).Subscribe(ctx, live(stream("blackhole", fmt.Sprint(i))))
				if err != nil {
					return err
				}
				_, err = call.Recv()
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if stats := r.Hub.Stats(); stats.Subscribers != n+1 || stats.Streams != n+1 {
			t.Fatalf("there are %d subscriptions of %d streams", stats.Subscribers, stats.Streams)
		}
		proxy.Blackhole(pgtest.BothWays)
		began := time.Now()
		published := 0
		eventually(t, "the subscriptions in the black hole have been released", func() bool {
			publish(t, r, newFrame(s, numbered(published)))
			if got := others.payloads(1)[0]; got != numbered(published) {
				t.Fatalf("others got %q", got)
			}
			published++
			return r.Hub.Stats().Subscribers == 1
		})
		took := time.Since(began)
		if limit := after + timeout; took < limit/2 || inLongForm() && took > limit+2*time.Second {
			t.Errorf("it took %s, the keepalive limit is %s", took, limit)
		}
		eventually(t, "their streams are out of memory", func() bool { return r.Hub.Stats().Streams == 1 })
		// The clients' own go first.
		cancel()
		for _, conn := range conns {
			_ = conn.Close()
		}
		proxy.Cut()
		eventually(t, "their goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+20 })
		if sub := open(t, r.Client, live(s)); sub.recv() != nil {
			t.Error("no further subscription is admitted")
		} else {
			sub.cancel()
		}
	})
}
