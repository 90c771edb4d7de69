package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func inLongForm() bool { return os.Getenv("FANFARE_LONG") != "" }

// slot is an address behind which replicas come and go.
type slot struct {
	proxy   *pgtest.ProxyServer
	replica *servicetest.Replica
	url     string
}

func newSlot(t *testing.T, url string) *slot {
	s := &slot{url: url, replica: startReplica(t, url)}
	s.proxy = pgtest.Proxy(t, s.replica.Addr)
	return s
}

func startReplica(t *testing.T, url string) *servicetest.Replica {
	return servicetest.Start(t, url, func(c *servicetest.Config) {
		backlog := int64(1_000_000)
		c.Backlog = &backlog
		c.Service.DrainDelay, c.Service.DrainGrace = 10*time.Millisecond, 500*time.Millisecond
	})
}

// restart has another replica in place of the slot's, after drain or at once.
func (s *slot) restart(t *testing.T, drain bool) {
	next := startReplica(t, s.url)
	if drain {
		if err := s.replica.Drain(t.Context()); err != nil {
			t.Errorf("drain: %v", err)
		}
	}
	if err := s.replica.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	s.proxy.SetTarget(t, next.Addr)
	s.replica = next
}

// attempts is a connection that keeps when calls for subscriptions began.
type attempts struct {
	*grpc.ClientConn
	mu sync.Mutex
	at []time.Time
}

func (a *attempts) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != fanfarev1.FanfareService_PublishStream_FullMethodName {
		a.mu.Lock()
		a.at = append(a.at, time.Now())
		a.mu.Unlock()
	}
	return a.ClientConn.NewStream(ctx, desc, method, options...)
}

// follower is a subscription over a run, and what its interruptions were.
type follower struct {
	name     string
	payloads []string
	retryIn  []time.Duration
	reasons  map[string]int
}

// follow reads until the last frame.
func (f *follower) follow(ctx context.Context, s *clientlib.Subscription, last string) error {
	defer s.Close() //nolint:errcheck // it returns nil
	for e, err := range s.All(ctx) {
		if err != nil {
			return fmt.Errorf("%s after %d frames: %w", f.name, len(f.payloads), err)
		}
		switch e := e.(type) {
		case *clientlib.Frame:
			f.payloads = append(f.payloads, string(e.Payload))
			if string(e.Payload) == last {
				return nil
			}
		case *clientlib.Gap:
			return fmt.Errorf("%s after %d frames: %+v", f.name, len(f.payloads), e)
		case *clientlib.Interrupted:
			var known *clientlib.Error
			if !errors.As(e.Err, &known) {
				return fmt.Errorf("%s was interrupted by %v", f.name, e.Err)
			}
			f.reasons[known.Code.String()+" "+known.Reason]++
			f.retryIn = append(f.retryIn, e.RetryIn-known.RetryIn)
		}
	}
	return io.ErrUnexpectedEOF
}

// Two replicas behind addresses that are used in turn, whose connections are cut, reset and
// refused, which drain and which are stopped at once, while frames are published: each
// subscription gets each frame once, in order, whether it has a call of its own or shares a
// session. The pauses are bounded and differ. The long form has 200 faults.
func TestSubscriptionsSurviveFaults(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Replicas}, func(t *testing.T, db servicetest.Database) {
		faults, streams := 8, 4
		if inLongForm() {
			faults, streams = 200, 8
		}
		slots := []*slot{newSlot(t, db.URL), newSlot(t, db.URL)}
		addresses := []string{slots[0].proxy.Addr(), slots[1].proxy.Addr()}
		const longest = 400 * time.Millisecond
		backoff := clientlib.WithBackoff(10*time.Millisecond, longest)

		var followers []*follower
		var conns []*attempts
		following := newGroup(t)
		for name, options := range map[string][]clientlib.Option{"subscribe": nil, "session": {clientlib.WithSession()}} {
			conn := &attempts{ClientConn: connect(t, addresses...)}
			conns = append(conns, conn)
			client := clientlib.New(conn, append(options, backoff)...)
			t.Cleanup(func() { _ = client.Close() })
			for i := range 2 * streams { // two of each stream
				f := &follower{name: fmt.Sprint(name, " ", i), reasons: map[string]int{}}
				followers = append(followers, f)
				s := client.Subscribe(t.Context(), stream(fmt.Sprint(i%streams)), clientlib.Oldest(), clientlib.WithReadAhead(4<<10))
				following.run(func(ctx context.Context) error { return f.follow(ctx, s, "last") })
			}
		}

		publisher := newClient(t, addresses)
		var over atomic.Bool
		published := make([]int, streams)
		publishing := newGroup(t)
		for i := range streams {
			publishing.run(func(ctx context.Context) error {
				s := stream(fmt.Sprint(i))
				for ; !over.Load(); published[i]++ {
					if _, err := publisher.Publish(ctx, frame(s, fmt.Sprint(published[i]))); err != nil {
						return err
					}
				}
				_, err := publisher.Publish(ctx, frame(s, "last"))
				return err
			})
		}
		counts := map[string]int{}
		for n := range faults {
			slot := slots[rand.IntN(len(slots))]
			fault := []string{"reset", "drain", "refuse", "stop", "cut", "reset"}[n%6]
			counts[fault]++
			switch fault {
			case "cut":
				slot.proxy.Cut()
			case "reset":
				slot.proxy.Reset()
			case "refuse":
				slot.proxy.Refuse()
				slot.proxy.Reset()
			default:
				slot.restart(t, fault == "drain")
			}
			rest := time.NewTimer(rand.N(300 * time.Millisecond)) // faults come at any moment of a recovery
			<-rest.C
			slot.proxy.Restore()
		}
		over.Store(true)
		publishing.wait()
		following.wait()

		// The subscriptions of a session are told one pause.
		var pauses, own []time.Duration
		reasons := map[string]int{}
		for i, f := range followers {
			n := published[i%streams]
			if len(f.payloads) != n+1 {
				t.Errorf("%s got %d frames of %d", f.name, len(f.payloads), n+1)
			}
			for k, p := range f.payloads[:min(n, len(f.payloads))] {
				if p != fmt.Sprint(k) {
					t.Fatalf("%s: frame %d is %q", f.name, k, p)
				}
			}
			pauses = append(pauses, f.retryIn...)
			if strings.HasPrefix(f.name, "subscribe") {
				own = append(own, f.retryIn...)
			}
			for reason, count := range f.reasons {
				reasons[reason] += count
			}
		}
		if longestPause := slices.Max(pauses); longestPause > longest {
			t.Errorf("a pause was %s beyond what the server asked for, the bound is %s", longestPause, longest)
		}
		slices.Sort(pauses)
		slices.Sort(own)
		if different := len(slices.Compact(slices.Clone(own))); different < len(own)*9/10 {
			t.Errorf("of %d pauses of subscriptions with calls of their own only %d differ", len(own), different)
		}
		calls := 0
		for _, c := range conns {
			calls += len(c.at)
		}
		t.Logf("%d faults %v, %v frames to each stream's subscribers, %d calls, %d interruptions %v, pauses from %s over %s to %s",
			faults, counts, published, calls, len(pauses), reasons, pauses[0], pauses[len(pauses)/2], pauses[len(pauses)-1])
	})
}

// group runs goroutines of a test, whose errors fail it.
type group struct {
	t     *testing.T
	ctx   context.Context
	tasks sync.WaitGroup
}

func newGroup(t *testing.T) *group {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	g := &group{t: t, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		g.tasks.Wait()
	})
	return g
}

func (g *group) run(f func(ctx context.Context) error) {
	g.tasks.Go(func() {
		if err := f(g.ctx); err != nil {
			g.t.Error(err)
		}
	})
}

func (g *group) wait() { g.tasks.Wait() }
