package service_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// Scenario S104 on any store: clients that upload at 1 kB a second, and clients
// that leave in mid-call, hold up no other publisher.
func TestSlowClientsHoldUpNobody(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		publishAmidSlowClients(t, servicetest.Start(t, db.URL), func(*errgroup.Group, *atomic.Bool) {})
	})
}

// publishAmidSlowClients has 64 clients publish while others upload slowly and
// leave, and checks how long it takes. watch starts what looks on in g until done.
func publishAmidSlowClients(t *testing.T, r *servicetest.Replica, watch func(g *errgroup.Group, done *atomic.Bool)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var background errgroup.Group
	uploads(ctx, t, &background, r, 20)
	for range 20 {
		background.Go(func() error { return leaver(ctx, r) })
	}
	var done atomic.Bool
	watch(&background, &done)
	latencies, err := steadyPublishes(t.Context(), r)
	done.Store(true)
	stop()
	if err := errors.Join(err, background.Wait()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(latencies)
	p99 := latencies[len(latencies)*99/100]
	t.Logf("%d publishes, 99%% within %s", len(latencies), p99)
	if p99 > form(10*time.Second, time.Second) { // an upload takes 100 s
		t.Errorf("the 99th percentile of publishing is %s", p99)
	}
}

// steadyPublishes publishes from 64 clients, and returns how long each publish
// took.
func steadyPublishes(ctx context.Context, r *servicetest.Replica) (latencies []time.Duration, err error) {
	var g errgroup.Group
	var mu sync.Mutex
	for p := range 64 {
		g.Go(func() error {
			for range 40 {
				began := time.Now()
				_, err := r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(stream("steady", fmt.Sprint(p)), "x")})
				if err != nil {
					return err
				}
				mu.Lock()
				latencies = append(latencies, time.Since(began))
				mu.Unlock()
			}
			return nil
		})
	}
	err = g.Wait()
	return latencies, err
}

// leaver publishes and gives up in mid-call, again and again.
func leaver(ctx context.Context, r *servicetest.Replica) error {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, rand.N(15*time.Millisecond))
		_, err := r.Client.Publish(call, &fanfarev1.PublishRequest{Frame: newFrame(stream("left", ""), "x")})
		cancel()
		switch status.Code(err) {
		case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unknown:
		default:
			return err
		}
	}
	return nil
}

// uploads has n clients publish frames over connections that carry 1 kB a second.
func uploads(ctx context.Context, t *testing.T, g *errgroup.Group, r *servicetest.Replica, n int) {
	over := ctx.Done()
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return trickle{conn, over}, err
	}
	for range n {
		conn, err := grpc.NewClient("passthrough:///"+r.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		g.Go(func() error {
			frame := newFrame(stream("upload", ""), strings.Repeat("x", 100_000))
			_, err := fanfarev1.NewFanfareServiceClient(conn).Publish(ctx, &fanfarev1.PublishRequest{Frame: frame})
			// It is cancelled, or finds its connection broken first.
			if code := status.Code(err); code != codes.Canceled && code != codes.Unavailable {
				return fmt.Errorf("an upload at 1 kB a second ended with %s: %v", code, err)
			}
			return nil
		})
	}
}

// trickle is a connection that sends 1 kB a second, and breaks when over is closed.
type trickle struct {
	net.Conn
	over <-chan struct{}
}

func (c trickle) Write(b []byte) (n int, err error) {
	for err == nil && n < len(b) {
		var m int
		m, err = c.Conn.Write(b[n:min(n+100, len(b))])
		n += m
		select {
		case <-time.After(100 * time.Millisecond):
		case <-c.over:
			// What is left must not arrive: at full speed it would be stored before the
			// client has noticed that it gave up.
			return n, net.ErrClosed
		}
	}
	return n, err
}
