package listener

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// S85, POSTGRES.md 28: new channels interrupt the wait at once and lose nothing,
// while notifications pour in.
func TestEnsureWhileNotified(t *testing.T) {
	url := pgtest.NewDatabase(t)
	flood := pgtest.Dial(t, url)
	l, _ := start(t, Config{URL: url})
	r := &gapless{}
	detach, err := l.Attach("steady", r)
	if err != nil {
		t.Fatal(err)
	}
	defer detach()
	ensure(t, l, "steady")
	stop := make(chan struct{})
	var sent atomic.Int64
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for n := int64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := flood.Exec(context.Background(), "select pg_notify('steady', $1)", fmt.Sprint(n)); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			sent.Store(n)
		}
	})

	var times []time.Duration
	for i := range 50 {
		begun := time.Now()
		ensure(t, l, fmt.Sprintf("one_%d", i))
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	if slowest := times[len(times)-1]; slowest > form(5*time.Second, 300*time.Millisecond) {
		t.Errorf("the slowest of 50 Ensures took %s", slowest)
	}
	begun := time.Now()
	for i := range 200 {
		tasks.Go(func() {
			if _, err := l.Ensure(context.Background(), fmt.Sprintf("many_%d", i)); err != nil {
				t.Errorf("Ensure: %v", err)
			}
		})
	}
	// Releases interrupt the wait as well.
	for i := range 50 {
		l.Release(fmt.Sprintf("one_%d", i))
	}
	ensure(t, l, "last")
	if took := time.Since(begun); took > form(20*time.Second, 3*time.Second) {
		t.Errorf("200 Ensures at once took %s", took)
	}
	close(stop)
	tasks.Wait()
	eventually(t, "the last notification", func() bool { return int64(r.seen()) == sent.Load() })
	if err := r.verdict(); err != nil {
		t.Fatal(err)
	}
	if n := l.Current().Number; n != 1 {
		t.Fatalf("%d connections, want 1: some command met a busy one", n)
	}
}

// S94: many first Ensures right at the start, half of them given up at once.
func TestEnsuresAtBoot(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	for boot := range 10 {
		l, err := New(Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, l.Run)
		var callers sync.WaitGroup
		recorders := make([]*recorder, 200)
		for i := range recorders {
			recorders[i] = attach(t, l, fmt.Sprintf("boot_%d", i))
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				if i%2 == 1 {
					cancel()
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(1+i%10)*time.Millisecond)
				}
				defer cancel()
				if _, err := l.Ensure(ctx, fmt.Sprintf("boot_%d", i)); err != nil && i%2 == 0 {
					t.Errorf("boot %d: Ensure %d: %v", boot, i, err)
				}
			})
		}
		callers.Wait()
		pgtest.Exec(t, db, "select pg_notify('boot_' || i, 'hello') from generate_series(0, 199) i")
		eventually(t, "all notifications", func() bool {
			for _, r := range recorders[:] {
				if !r.has("hello") {
					return false
				}
			}
			return true
		})
		stop()
	}
}

// POSTGRES.md 22: a listener that stands still for seconds while 64 MB arrive
// catches up, or is ended by the server and comes back; the queue empties.
func TestPausedListener(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	l, _ := start(t, Config{URL: url})
	pause := make(chan struct{})
	paused := &recorder{block: func() { <-pause }}
	detach, err := l.Attach("flood", paused)
	if err != nil {
		t.Fatal(err)
	}
	defer detach()
	ensure(t, l, "flood")
	begun := time.Now()
	for range 8 {
		pgtest.Exec(t, db, "select pg_notify('flood', g || repeat('x', 7900)) from generate_series(1, 1050) g")
	}
	if usage := pgtest.Query[float64](t, db, "select pg_notification_queue_usage()"); usage == 0 {
		t.Fatal("the flood did not fill the queue at all")
	}
	rest := time.NewTimer(5*time.Second - time.Since(begun))
	<-rest.C // the pause is what is tested
	close(pause)
	eventually(t, "an empty queue", func() bool {
		return pgtest.Query[float64](t, db, "select pg_notification_queue_usage()") < 0.0005
	})
	ensure(t, l, "flood")
	notify(t, db, "flood", "after")
	eventually(t, "a notification", func() bool { return paused.has("after") })
}

// POSTGRES.md 22: a listener that stands still for longer does not hold the queue, and
// every publisher of the cluster, for good: the server ends its session while it
// still stands, and it comes back when it goes on.
func TestListenerThatStandsStillIsEnded(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	l, _ := start(t, Config{URL: url})
	pause := make(chan struct{})
	resume := sync.OnceFunc(func() { close(pause) })
	t.Cleanup(resume) // before the listener is stopped
	paused := &recorder{block: func() { <-pause }}
	detach, err := l.Attach("flood", paused)
	if err != nil {
		t.Fatal(err)
	}
	defer detach()
	number := ensure(t, l, "flood").Number
	for range 8 {
		pgtest.Exec(t, db, "select pg_notify('flood', g || repeat('x', 7900)) from generate_series(1, 1050) g")
	}
	within(t, time.Minute, "the session to be ended and the queue to be empty", func() bool {
		return listeners(t, db) == 0 && pgtest.Query[float64](t, db, "select pg_notification_queue_usage()") < 0.0005
	})
	resume()
	within(t, time.Minute, "the next listening", func() bool { return l.Current().Number > number })
	notify(t, db, "flood", "after")
	eventually(t, "a notification", func() bool { return paused.has("after") })
}

// Pings go on under steady traffic, and state has the use of the queue.
func TestQueueUsageIsKnown(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.URL("postgres")
	db, idle := pgtest.Dial(t, url), pgtest.Dial(t, url)
	l, _ := start(t, Config{URL: url, PingInterval: 20 * time.Millisecond})
	ensure(t, l, "a")
	// A session that listens and stays in a transaction keeps what is notified.
	pgtest.Exec(t, idle, "listen a")
	pgtest.Exec(t, idle, "begin; select 1")
	for range 8 {
		pgtest.Exec(t, db, "select pg_notify('a', g || repeat('x', 7900)) from generate_series(1, 1050) g")
	}
	eventually(t, "the usage to be seen", func() bool { return l.State().QueueUsage > 0.005 })
	pgtest.Exec(t, idle, "rollback")
	eventually(t, "the usage to be gone", func() bool { return l.State().QueueUsage < 0.0005 })
}

func TestFillingQueueIsWarnedOfOnce(t *testing.T) {
	logs := &logBuffer{}
	l, err := New(Config{URL: "postgres://127.0.0.1:1/none", Logger: slog.New(slog.NewTextHandler(logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	l.noteQueueUsage(0.2)
	l.noteQueueUsage(0.3)
	if n := logs.count("notification queue fills up"); n != 1 {
		t.Fatalf("%d warnings of a filling queue, want 1", n)
	}
}

func TestThrottle(t *testing.T) {
	var th throttle
	now := time.Unix(1000, 0)
	allowed := 0
	for range 100 {
		if ok, _ := th.allow(now); ok {
			allowed++
		}
	}
	if allowed != throttleBurst {
		t.Fatalf("%d at once, want %d", allowed, throttleBurst)
	}
	ok, suppressed := th.allow(now.Add(time.Second))
	if !ok || suppressed != 100-throttleBurst {
		t.Fatalf("after a second: %t, %d suppressed", ok, suppressed)
	}
	if ok, _ := th.allow(now.Add(1500 * time.Millisecond)); ok {
		t.Fatal("a second one within a second")
	}
}

func TestRetries(t *testing.T) {
	r := newRetries()
	for range 5 {
		if d := r.after(time.Minute, time.Second); d != 0 {
			t.Fatalf("after a healthy connection the retry waits %s", d)
		}
	}
	// The time that a connection lived counts: losses are spaced, whatever it was.
	for _, lived := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond} {
		var total time.Duration
		for range 100 {
			d := r.after(lived, time.Second)
			if d+lived > maxLossRetry*3/2+1 {
				t.Fatalf("a retry waits %s after a connection that lived for %s", d, lived)
			}
			total += d + lived
		}
		if total < 100*maxLossRetry*3/4 || total > 100*maxLossRetry*5/4 {
			t.Fatalf("100 connections that live for %s take %s", lived, total)
		}
	}
	if d := r.after(maxLossRetry*3/2+1, time.Second); d != 0 {
		t.Fatalf("a retry waits %s although the last one was long ago", d)
	}
	var total time.Duration
	attempts := 0
	for total < time.Minute {
		d := r.after(-1, time.Second)
		if d > maxDialRetry*3/2+1 {
			t.Fatalf("a retry waits %s", d)
		}
		total += d
		attempts++
	}
	if attempts > 60 {
		t.Fatalf("%d attempts in a minute", attempts)
	}
	if r.after(time.Millisecond, time.Second) > maxLossRetry*3/2+1 || r.after(-1, time.Second) > 10*time.Millisecond {
		t.Fatal("a connection that listened did not reset the time between attempts")
	}
}
