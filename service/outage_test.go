package service_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// lineCounter is a slog.Handler that counts lines by their message, and keeps the
// highest number of an attempt to connect.
type lineCounter struct {
	mu       sync.Mutex
	lines    map[string]int
	attempts int
}

func (c *lineCounter) Enabled(context.Context, slog.Level) bool { return true }
func (c *lineCounter) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *lineCounter) WithGroup(string) slog.Handler            { return c }

func (c *lineCounter) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lines == nil {
		c.lines = map[string]int{}
	}
	c.lines[r.Message]++
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "attempt" {
			c.attempts = max(c.attempts, int(a.Value.Int64()))
		}
		return true
	})
	return nil
}

// total returns how many lines there were, of which messages, and the attempts.
func (c *lineCounter) total() (n int, messages string, attempts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, count := range c.lines {
		n += count
	}
	return n, fmt.Sprint(c.lines), c.attempts
}

// ownCPUTime is what this process has used.
func ownCPUTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// S50, symptom: while the database was away the process
// span, flooded its log and its database, and had to be restarted. Here subscribers
// stay and are told, everyone else is told in time to come back later, and all goes
// on by itself.
func TestDatabaseAway(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		idle, busy, listenTimeout := time.Second, 4*time.Second, time.Second
		if inLongForm() {
			idle, busy, listenTimeout = 20*time.Second, 40*time.Second, 0 // the default
		}
		db = db.OnOwnServer(t)
		lines := &lineCounter{}
		w := &world{t: t, db: db}
		w.a = servicetest.Start(t, db.URL, wholeBacklog, func(c *servicetest.Config) {
			c.Logger, c.Hub.ListenTimeout = slog.New(lines), listenTimeout
		})
		w.b = w.a
		subscribers := w.manySubscribers(100, 20)
		before, _, _ := lines.total()

		db.Server.Stop("fast")
		begun, used := time.Now(), ownCPUTime(t)
		rest := time.NewTimer(idle)
		<-rest.C // an outage without publishers is what is tested
		if share := float64(ownCPUTime(t)-used) / float64(time.Since(begun)); inLongForm() && share > 0.2 {
			t.Errorf("the process used %.0f %% of a core in an idle outage", 100*share)
		} else {
			t.Logf("the process used %.1f %% of a core in an idle outage", 100*share)
		}
		p := w.publishersWhileAway(50, begun.Add(idle+busy))
		for time.Since(begun) < idle+busy {
			w.subscribeWhileAway(8 * time.Second)
		}
		away := time.Since(begun)
		n, messages, attempts := lines.total()
		n -= before
		t.Logf("%d log lines and %d attempts to connect in %s: %s", n, attempts, away, messages)
		if limit := int(away/time.Second)*3/2 + 30; n > limit {
			t.Errorf("%d log lines in %s, want at most %d", n, away, limit)
		}
		if limit := int(away/time.Second)/2 + 30; attempts == 0 || attempts > limit {
			t.Errorf("%d attempts to connect in %s, want at most %d", attempts, away, limit)
		}
		db.Server.StartAgain()
		back := time.Now()
		p.finish(t)
		for i := range 20 {
			w.publishUntilTaken(newFrame(stream("away", fmt.Sprint(i)), "after"))
		}
		if err := subscribers.Wait(); err != nil {
			t.Error(err)
		}
		t.Logf("all goes on %s after the database was back", time.Since(back))
		if took := time.Since(back); took > form(patience, 20*time.Second) {
			t.Errorf("it took %s until all went on", took)
		}
		subscribe(t, w.a, fromOldest(stream("away", "new"))).silent("new", func() {
			publish(t, w.a, newFrame(stream("away", "new"), "new"))
		})
	})
}

// manySubscribers opens subscriptions that expect to be told that listening ended,
// that it began again, and then the frame "after", and nothing else.
func (w *world) manySubscribers(n, streams int) *errgroup.Group {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	w.t.Cleanup(cancel)
	all, err := openStreams(ctx, connections(w.t, w.a, 4), n, func(i int) *fanfarev1.SubscribeRequest {
		return live(stream("away", fmt.Sprint(i%streams)))
	})
	if err != nil {
		w.t.Fatal(err)
	}
	g := &errgroup.Group{}
	for i, s := range all {
		g.Go(func() error {
			var story []string
			for !slices.Contains(story, "after") {
				m, err := s.Recv()
				if err != nil {
					return fmt.Errorf("subscriber %d after %q: %w", i, story, err)
				}
				for _, f := range m.GetFrames() {
					story = append(story, string(f.GetPayload()))
				}
				switch {
				case m.GetStatus() != nil:
					story = append(story, fmt.Sprint("listening ", m.GetStatus().GetListening()))
				case m.GetGap() != nil:
					story = append(story, m.GetGap().String())
				}
			}
			if want := []string{"listening false", "listening true", "after"}; !slices.Equal(story, want) {
				return fmt.Errorf("subscriber %d was told %q", i, story)
			}
			return nil
		})
	}
	return g
}

// publishers publish during an outage and go on when it is over.
type publishers struct {
	group   errgroup.Group
	mu      sync.Mutex
	refused int
	slowest time.Duration
}

// publishersWhileAway starts publishers that try again every 100 ms. Until a
// moment nothing may be stored, and each has to be told so within its deadline.
func (w *world) publishersWhileAway(n int, until time.Time) *publishers {
	p := &publishers{}
	const deadline = 2 * time.Second
	for i := range n {
		p.group.Go(func() error {
			for {
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				begun := time.Now()
				_, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(stream("publishers", fmt.Sprint(i)), "x")})
				took := time.Since(begun)
				cancel()
				switch {
				case err == nil:
					return nil
				case begun.Add(took).After(until): // it comes back
				case status.Code(err) != codes.Unavailable || !asksToRetry(err):
					return fmt.Errorf("publisher %d: %w after %s", i, err, took)
				}
				p.mu.Lock()
				p.refused++
				p.slowest = max(p.slowest, took)
				p.mu.Unlock()
				pauseFor(context.Background(), 100*time.Millisecond)
			}
		})
	}
	return p
}

func (p *publishers) finish(t *testing.T) {
	t.Helper()
	if err := p.group.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d publishes were refused, the slowest after %s", p.refused, p.slowest)
	if p.refused == 0 {
		t.Error("no publish met the outage")
	}
}

// subscribeWhileAway subscribes once and expects to be told to come back.
func (w *world) subscribeWhileAway(limit time.Duration) {
	w.t.Helper()
	begun := time.Now()
	err := open(w.t, w.b.Client, live(stream("away", "refused"))).recv()
	if status.Code(err) != codes.Unavailable || !asksToRetry(err) {
		w.t.Errorf("Subscribe without a database: %v", err)
	}
	if took := time.Since(begun); took > limit {
		w.t.Errorf("Subscribe without a database failed after %s only", took)
	}
}

// publishUntilTaken publishes a frame, again if nothing was stored.
func (w *world) publishUntilTaken(f *fanfarev1.NewFrame) {
	w.t.Helper()
	eventually(w.t, "a publish succeeds", func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
		defer cancel()
		_, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
		if err != nil && status.Code(err) != codes.Unavailable {
			w.t.Fatalf("publish: %v", err)
		}
		return err == nil
	})
}

// startingUp is a server that refuses everybody, as PostgreSQL does while it
// starts or recovers.
func startingUp(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err := c.Read(make([]byte, 1024)); err != nil {
					return
				}
				fields := "SFATAL\x00VFATAL\x00C57P03\x00Mthe database system is starting up\x00\x00"
				_, _ = c.Write(append([]byte{'E', 0, 0, 0, byte(4 + len(fields))}, fields...))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// Scenario S51, symptom: an attempt to connect that failed was remembered, and
// every later wait failed with it. A server that is starting up is met by retryable
// errors, and then everything works, on streams too that were refused before.
func TestServerThatIsStartingUp(t *testing.T) {
	t.Parallel()
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		lasts := 2 * time.Second
		if inLongForm() {
			lasts = 20 * time.Second
		}
		front := pgtest.Proxy(t, db.URL)
		w := &world{t: t, db: db}
		w.a = servicetest.Start(t, front.URL(db.URL), wholeBacklog, func(c *servicetest.Config) {
			c.MigrateURL, c.Hub.ListenTimeout = db.URL, 500*time.Millisecond
		})
		w.b = w.a
		s := stream("starting", "")
		r := subscribe(t, w.a, live(s))
		front.SetTarget(t, startingUp(t))
		front.Cut()
		eventually(t, "the loss is noticed", func() bool { return w.a.Bus.Current().Number == 0 })
		for begun := time.Now(); time.Since(begun) < lasts; {
			w.subscribeWhileAway(5 * time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			_, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(stream("away", "refused"), "x")})
			cancel()
			if code := status.Code(err); code != codes.Unavailable && code != codes.Unknown {
				t.Errorf("Publish to a server that is starting up: %v", err)
			}
		}
		front.SetTarget(t, db.URL)
		eventually(t, "it listens again", func() bool { return w.a.Bus.Current().Number > 1 })
		refused := stream("away", "refused")
		w.publishUntilTaken(newFrame(s, "after"))
		if got := r.payloads(1)[0]; got != "after" {
			t.Errorf("got %q", got)
		}
		again := subscribe(t, w.a, live(refused))
		again.silent("first", func() { publish(t, w.a, newFrame(refused, "first")) })
	})
}

// Scenario S54, symptom: the role's time limits ended the listener, and everything
// with it. Being idle is no outage: nothing reconnects, nobody is told of a gap, and
// readiness stays.
func TestIdleUnderTimeoutsOfTheRole(t *testing.T) {
	t.Parallel()
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		idle, limits := 2500*time.Millisecond, []string{"idle_session_timeout = '1s'", "statement_timeout = '1s'", "idle_in_transaction_session_timeout = '500ms'", "lock_timeout = '500ms'"}
		if inLongForm() {
			idle, limits[0] = time.Minute, "idle_session_timeout = '3s'"
		}
		db = db.OnOwnServer(t)
		conn := pgtest.Dial(t, db.URL)
		pgtest.Exec(t, conn, "create role limited login superuser")
		for _, limit := range limits {
			pgtest.Exec(t, conn, "alter role limited set "+limit)
		}
		db.URL = strings.Replace(db.URL, "postgres@", "limited@", 1)
		w := newWorld(t, db, func(c *servicetest.Config) { c.JanitorInterval = time.Hour })
		changes := watchHealth(t, w.b)
		if ready := <-changes; !ready {
			expectChange(t, changes, true, "at the start")
		}
		r := w.watched(stream("idle", ""))
		before := []backlog.Listening{w.a.Bus.Current(), w.b.Bus.Current()}
		quiet := time.NewTimer(idle)
		<-quiet.C // that idleness does nothing is what is tested
		announce(t, w.a, newFrame(r.stream, "ephemeral"))
		publish(t, w.a, newFrame(r.stream, "durable"))
		if got := r.payloads(2); got[0] != "ephemeral" || got[1] != "durable" {
			t.Errorf("got %q", got)
		}
		if after := []backlog.Listening{w.a.Bus.Current(), w.b.Bus.Current()}; !slices.Equal(before, after) {
			t.Errorf("it listens as %v, before as %v", after, before)
		}
		if len(changes) != 0 {
			t.Errorf("readiness became %t", <-changes)
		}
		for _, m := range r.notices {
			if m.GetGap() != nil || m.GetStatus() != nil {
				t.Errorf("told %v", m)
			}
		}
	})
}

// Scenario S55, symptom: after a failover the listener was connected to a server
// on which nothing is ever notified. Of two hosts, the first is a standby; while
// only that is left the replica acknowledges nothing and is not ready, and once it
// is promoted everything goes on, with what was published before.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t)
	standby := primary.Standby()
	host := func(s *pgtest.Server) string {
		return strings.TrimSuffix(strings.TrimPrefix(s.URL(""), "postgres://postgres@"), "/?sslmode=disable")
	}
	both := fmt.Sprintf("postgres://postgres@%s,%s/postgres?sslmode=disable", host(standby), host(primary))
	w := &world{t: t}
	w.a = servicetest.Start(t, both+"&target_session_attrs=read-write", wholeBacklog, func(c *servicetest.Config) {
		c.ListenURL, c.MigrateURL, c.Hub.ListenTimeout = both, primary.URL("postgres"), time.Second
	})
	w.b = w.a
	changes := watchHealth(t, w.b)
	if ready := <-changes; !ready {
		expectChange(t, changes, true, "at the start")
	}
	r := w.watched(stream("failover", ""))
	publishMany(t, w.a, r.stream, 100, numbered)
	contiguous(t, r.take(100), 1)
	late := subscribe(t, w.b, fromOldest(r.stream))
	late.take(50)

	primary.Stop("fast") // it hands the standby everything before it ends
	expectChange(t, changes, false, "only the standby is left")
	w.subscribeWhileAway(10 * time.Second)
	if l := w.b.Bus.Current(); l.Number != 0 {
		t.Errorf("it listens at a standby: %+v", l)
	}
	pgtest.Exec(t, pgtest.Dial(t, standby.URL("postgres")), "select pg_promote()")
	promoted := time.Now()
	eventually(t, "it listens at the new primary", func() bool { return w.b.Bus.Current().Number != 0 })
	if took := time.Since(promoted); took > form(patience, 10*time.Second) {
		t.Errorf("it listens at the new primary after %s", took)
	}
	w.publishUntilTaken(newFrame(r.stream, "before it is told"))
	r.expectAfterOutage("the failover", "before it is told")
	rest := slices.DeleteFunc(late.take(53), func(f *fanfarev1.Frame) bool { return f.GetEphemeral() })
	contiguous(t, rest, 51)
	for _, m := range late.notices {
		if m.GetGap() != nil && !isEphemeralGap(m) {
			t.Errorf("a failover without a loss made a gap: %v", m)
		}
	}
	expectChange(t, changes, true, "after the promotion")
}
