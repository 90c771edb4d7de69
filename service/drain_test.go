package service_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func quickDrain(delay, grace time.Duration) func(*servicetest.Config) {
	return func(c *servicetest.Config) { c.Service.DrainDelay, c.Service.DrainGrace = delay, grace }
}

// parting is how a subscription was sent away.
func (r *reader) parting(t *testing.T) *fanfarev1.Closing {
	t.Helper()
	if code := r.end(); code != codes.Unavailable {
		t.Errorf("the subscription ended %s", code)
	}
	if len(r.notices) == 0 || r.notices[len(r.notices)-1].GetClosing() == nil {
		return nil
	}
	closing := r.notices[len(r.notices)-1].GetClosing()
	if wait := closing.GetRetryIn().AsDuration(); wait <= 0 || wait > time.Second {
		t.Errorf("retry in %s", wait)
	}
	return closing
}

// Scenario S143, symptom: shutdown hung until it was killed. Cause: GracefulStop
// waits for streams that nobody tells to go, or that are blocked in Send.
func TestDrainWithIdleStalledAndReplayingStreams(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		const grace = 3 * time.Second
		w := newWorld(t, db, quickDrain(-1, grace))
		idle, busy := stream("drain", "idle"), stream("drain", "busy")
		publish(t, w.a, newFrame(idle, "seen"))
		const n = 3000
		publishMany(t, w.b, busy, n, func(i int) string { return fmt.Sprintf("%05d", i) + strings.Repeat("x", 2000) })

		var idlers, stalled, replaying []*reader
		for range 50 {
			r := subscribe(t, w.a, fromOldest(idle))
			r.take(1)
			r.untilCaughtUp()
			idlers = append(idlers, r)
		}
		for range 5 {
			stalled = append(stalled, subscribe(t, w.a, fromOldest(busy)))
		}
		var reading sync.WaitGroup
		for range 5 {
			r := subscribe(t, w.a, fromOldest(busy))
			replaying = append(replaying, r)
			reading.Go(func() {
				pace := time.NewTicker(10 * time.Millisecond) // a slow reader's
				defer pace.Stop()
				for r.recv() == nil {
					<-pace.C
				}
			})
		}
		began := time.Now()
		drained := make(chan error, 1)
		go func() { drained <- w.a.Drain(t.Context()) }()
		var parting sync.WaitGroup
		for _, r := range idlers {
			parting.Go(func() {
				closing := r.parting(t)
				if closing.GetResumeAfter().GetSequence() != 1 {
					t.Errorf("an idle subscription was sent away with %v", closing)
				}
			})
		}
		parting.Wait()
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > grace+form(20*time.Second, 2*time.Second) { // its own calls last two minutes
			t.Errorf("the drain took %s, the grace is %s", took, grace)
		}
		reading.Wait()
		for _, r := range append(stalled, replaying...) {
			r.end()
			contiguous(t, r.frames, 1)
		}
		next := w.successor()
		for _, r := range append(stalled, replaying...) {
			last := &fanfarev1.Position{}
			if len(r.frames) > 0 {
				last = r.frames[len(r.frames)-1].GetPosition()
			}
			rest := subscribe(t, next, after(busy, last))
			if !rest.subscribed.GetResumed() {
				t.Errorf("after %v: %v", last, rest.subscribed)
			}
			contiguous(t, rest.take(n-len(r.frames)), last.GetSequence()+1)
			rest.cancel()
		}
	})
}

// Scenario S145, symptom: streams stood still through a shutdown. Cause: the
// source of frames was closed before the streams. Delivery of durable and ephemeral
// frames goes on until each stream is sent away, and the replica where it goes on
// has the rest of the durable ones.
func TestDrainUnderLoad(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		const delay = 3 * time.Second
		w := newWorld(t, db, quickDrain(delay, 3*time.Second))
		f := newFollowed(t, stream("drain", "load"))
		var current atomic.Pointer[servicetest.Replica]
		current.Store(w.a)
		pick := func() fanfarev1.FanfareServiceClient { return current.Load().Client }
		for i := range 20 {
			f.start(fmt.Sprint("follower ", i), servicetest.FollowerConfig{Pick: pick})
		}
		f.awaitSubscribed(len(f.followers))
		drained := make(chan error, 1)
		began := f.recorder.Moment()
		go func() { drained <- w.a.Drain(f.ctx) }()
		// New calls go to b once a's health would say so.
		current.Store(w.b)
		publishing, published := true, 0
		for i := 0; publishing; i++ {
			_, err := tryRecordedBatch(t, f.recorder, w.b, f.stream, 2, i)
			if err == nil {
				_, err = record(f.ctx, f.recorder, "ephemeral", w.b, ephemeral(f.stream, fmt.Sprint("ephemeral ", i)))
			}
			switch {
			case err == nil:
				published++
			case db.Has(servicetest.Replicas) || status.Code(err) != codes.Unavailable:
				t.Fatal(err) // the only replica, which is draining, may say so
			}
			select {
			case err := <-drained:
				publishing = false
				if err != nil {
					t.Error(err)
				}
			case <-time.After(5 * time.Millisecond): // 600 frames a second
			}
		}
		if published < 10 {
			t.Errorf("only %d batches were published during the drain", published)
		}
		current.Store(w.successor())
		f.awaitLast(recordedBatch(t, f.recorder, current.Load(), f.stream, 1, -1))
		run := f.finish()
		// On a busy machine frames are on their way for longer.
		late := max(time.Second, 2*slowestDelivery(run, began))
		for _, s := range run.Subscribers {
			if due := deliveredUntilSentAway(t, run, s, began, late); due == 0 && late < delay {
				t.Errorf("nothing was published while %s waited to be sent away", s.Name)
			}
		}
	})
}

// slowestDelivery is the longest time from the confirmation of a frame, published after a
// moment, until a subscriber got it that had not been sent away before.
func slowestDelivery(run servicetest.Run, began servicetest.Moment) (slowest time.Duration) {
	confirmed := map[servicetest.Content]servicetest.Moment{}
	for _, p := range run.Publishes {
		if p.Result == servicetest.Confirmed && p.BeganAt >= began {
			confirmed[p.Content] = p.EndedAt
		}
	}
	for _, s := range run.Subscribers {
		for _, e := range s.Events {
			if e.Kind == servicetest.SawEnd {
				break
			}
			if at, ok := confirmed[e.Content]; ok {
				slowest = max(slowest, e.At-at)
			}
		}
	}
	return slowest
}

// deliveredUntilSentAway checks that a subscriber, until it was sent away by a drain
// that began at a moment, got what was confirmed since and that much before, and returns
// how much that was.
func deliveredUntilSentAway(t *testing.T, run servicetest.Run, s servicetest.Subscriber, began servicetest.Moment, late time.Duration) (due int) {
	t.Helper()
	got := map[servicetest.Content]bool{}
	var ends []string
	for _, e := range s.Events {
		got[e.Content] = true
		if e.Kind == servicetest.SawEnd {
			ends = append(ends, e.Error)
		}
		if e.Kind != servicetest.SawEnd || e.Ended != "DRAINING" {
			continue
		}
		for _, p := range run.Publishes {
			if p.Result != servicetest.Confirmed || p.BeganAt < began || p.EndedAt > e.At-late {
				continue
			}
			due++
			if !got[p.Content] {
				t.Errorf("%s was sent away %s after the drain began, and had not got what was published %s before; most that others got was %s on its way",
					s.Name, e.At-began, e.At-p.EndedAt, late/2)
				return due
			}
		}
		return due
	}
	t.Errorf("%s was not sent away, but ended with %q", s.Name, ends)
	return due
}

// Scenario S147, symptom: errors with each deploy. Cause: readiness was withdrawn
// after the socket had been closed. A client that honours health sees no failed
// call over rolling restarts.
func TestRollingRestarts(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Replicas}, func(t *testing.T, db servicetest.Database) {
		options := []func(*servicetest.Config){wholeBacklog, quickDrain(time.Second, 2*time.Second)}
		balancer := &balancer{}
		current := servicetest.Start(t, db.URL, options...)
		balancer.add(current)
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		var g errgroup.Group
		g.Go(func() error { balancer.probe(ctx); return nil })
		eventually(t, "a replica is ready", func() bool { return balancer.pick() != nil })
		calls := 0
		g.Go(func() error {
			for ctx.Err() == nil {
				client := balancer.pick()
				if client == nil {
					return fmt.Errorf("no replica is ready after %d calls", calls)
				}
				_, err := client.Publish(context.Background(), &fanfarev1.PublishRequest{Frame: newFrame(stream("rolling", ""), "x")})
				if err != nil {
					return fmt.Errorf("call %d: %w", calls, err)
				}
				calls++
			}
			return nil
		})
		for range form(3, 10) {
			next := servicetest.Start(t, db.URL, options...)
			balancer.add(next)
			eventually(t, "the next replica is ready", func() bool { return balancer.isReady(next) })
			if err := current.Drain(ctx); err != nil {
				t.Error(err)
			}
			if _, err := net.DialTimeout("tcp", current.Addr, patience); err == nil {
				t.Error("the port still accepts after the drain")
			}
			if err := current.Stop(); err != nil {
				t.Error(err)
			}
			balancer.remove(current)
			current = next
		}
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if calls < 100 {
			t.Errorf("only %d calls were made", calls)
		}
	})
}

// balancer picks a replica whose health says SERVING, as it was at the last
// probe.
type balancer struct {
	mu       sync.Mutex
	replicas []*servicetest.Replica
	ready    map[*servicetest.Replica]bool
}

func (b *balancer) add(r *servicetest.Replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replicas = append(b.replicas, r)
}

func (b *balancer) remove(r *servicetest.Replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.replicas {
		if b.replicas[i] == r {
			b.replicas = append(b.replicas[:i:i], b.replicas[i+1:]...)
			return
		}
	}
}

func (b *balancer) isReady(r *servicetest.Replica) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready[r]
}

func (b *balancer) pick() fanfarev1.FanfareServiceClient {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.replicas {
		if b.ready[r] {
			return r.Client
		}
	}
	return nil
}

// probe looks at every replica's health fifty times a second until ctx ends.
func (b *balancer) probe(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		b.mu.Lock()
		replicas := b.replicas
		b.mu.Unlock()
		ready := map[*servicetest.Replica]bool{}
		for _, r := range replicas {
			ready[r] = serving(ctx, r, "")
		}
		b.mu.Lock()
		b.ready = ready
		b.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// serving asks a replica's health service.
func serving(ctx context.Context, r *servicetest.Replica, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(r.Conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
	return err == nil && answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

// errorLog keeps lines of level ERROR.
type errorLog struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *errorLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

func (l *errorLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.lines = append(l.lines, line)
	return nil
}

func (l *errorLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *errorLog) WithGroup(string) slog.Handler      { return l }

// Scenario S150, symptom: "closed pool" errors and panics in the last second.
// Cause: the pool was closed under handlers that still ran.
func TestDrainUnderReplays(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		log := &errorLog{}
		w := newWorld(t, db, quickDrain(-1, time.Second), func(c *servicetest.Config) { c.Logger = slog.New(log) })
		s := stream("drain", "replays")
		publishMany(t, w.b, s, 3000, func(i int) string { return numbered(i) + string(make([]byte, 1000)) })
		// A connection that is not the replica's own, which ends with it.
		conn, err := w.a.Connect()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		client := fanfarev1.NewFanfareServiceClient(conn)
		var reading errgroup.Group
		for range 50 {
			r := subscribeWith(t, client, fromOldest(s))
			reading.Go(func() error {
				pace := time.NewTicker(5 * time.Millisecond) // a slow reader's
				defer pace.Stop()
				for {
					if err := r.recv(); status.Code(err) == codes.Unavailable {
						return nil
					} else if err != nil {
						return fmt.Errorf("a replay ended with %w", err)
					}
					<-pace.C
				}
			})
		}
		if err := w.a.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if err := w.a.Stop(); err != nil {
			t.Error(err)
		}
		if err := reading.Wait(); err != nil {
			t.Error(err)
		}
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.lines) > 0 {
			t.Errorf("logged at level ERROR: %q", log.lines)
		}
	})
}
