package listener

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func TestEnsureNotifyRelease(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	l, logs := start(t, Config{URL: url, Instance: "röplica-1", OriginSQL: "select 77"})
	first := ensure(t, l, "a")
	if first.Number != 1 || first.Origin != 77 {
		t.Fatalf("listening %+v, want number 1 of origin 77", first)
	}
	r := attach(t, l, "a")
	other := attach(t, l, "a")
	if got := ensure(t, l, "a"); got != first {
		t.Fatalf("a second Ensure got %+v, want %+v", got, first)
	}
	eventually(t, "both consumers to be told", func() bool {
		a, _ := r.lifes()
		b, _ := other.lifes()
		return a == 1 && b == 1
	})
	notify(t, db, "a", "one")
	eventually(t, "both consumers to get it", func() bool { return r.has("one") && other.has("one") })

	if name := pgtest.Query[string](t, db, "select application_name from pg_stat_activity where application_name like 'fanfare-listen/%' and datname = current_database()"); !strings.HasPrefix(name, "fanfare-listen/r") {
		t.Fatalf("application_name is %q", name)
	}
	if n := logs.count("channel listen a"); n != 1 {
		t.Fatalf("%d lines say that a is listened to, want 1", n)
	}
	if s := l.State(); s.Listening != first || s.BackendPID == 0 || s.Pooled || s.Since.IsZero() || s.Err != nil {
		t.Fatalf("state %+v", s)
	}
}

// Names of 63 bytes, with quotes, capitals and other letters are taken as they
// are; LISTEN would truncate a longer one in silence.
func TestNotifyChannelNames(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	l, _ := start(t, Config{URL: url})
	for _, name := range []string{strings.Repeat("x", 63), `Mixed "Quotes" 'and' ; spaces`, "grüße", strings.Repeat("é", 31)} {
		r := attach(t, l, name)
		ensure(t, l, name)
		notify(t, db, name, "hello")
		eventually(t, "a notification on "+name, func() bool { return r.has("hello") })
	}
	for _, name := range []string{"", strings.Repeat("x", 64), strings.Repeat("é", 32), "nul\x00", "\xff"} {
		if _, err := l.Ensure(t.Context(), name); err == nil || errors.Is(err, ErrNotListening) {
			t.Errorf("Ensure(%q) = %v, want a refusal", name, err)
		}
		if _, err := l.Attach(name, &recorder{}); err == nil {
			t.Errorf("Attach(%q) was accepted", name)
		}
	}
}

func TestReleaseStopsListening(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	l, _ := start(t, Config{URL: url})
	ensure(t, l, "stays")
	ensure(t, l, "goes")
	ensure(t, l, "goes")
	l.Release("goes")
	r := &recorder{}
	detach, err := l.Attach("goes", r)
	if err != nil {
		t.Fatal(err)
	}
	l.Release("goes")
	l.Release("goes") // once too often
	notify(t, db, "goes", "still wanted")
	eventually(t, "the consumer to keep the channel", func() bool { return r.has("still wanted") })
	detach()
	detach()

	// A new reference right after the last one went is a new LISTEN or the old
	// one, never none.
	for i := range 50 {
		ensure(t, l, "flaps")
		l.Release("flaps")
		marker := fmt.Sprintf("flap %d", i)
		again := &recorder{}
		detach, err := l.Attach("flaps", again)
		if err != nil {
			t.Fatal(err)
		}
		ensure(t, l, "flaps")
		notify(t, db, "flaps", marker)
		eventually(t, marker, func() bool { return again.has(marker) })
		l.Release("flaps")
		detach()
	}

	// A marker on another channel, after a notification that nobody wants.
	stays := attach(t, l, "stays")
	ensure(t, l, "stays")
	notify(t, db, "goes", "unwanted")
	notify(t, db, "stays", "marker")
	eventually(t, "the marker", func() bool { return stays.has("marker") })
	if r.has("unwanted") {
		t.Fatal("a detached consumer got a notification")
	}
}

// S46, S49: LISTEN again after every loss, and again.
func TestReconnectsAfterTermination(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	l, logs := start(t, Config{URL: url})
	names := []string{"a", "b", "c"}
	consumers := map[string]*recorder{}
	for _, name := range names {
		consumers[name] = attach(t, l, name)
		ensure(t, l, name)
	}
	number := l.Current().Number
	for round := range 10 {
		eventually(t, "one listener to terminate", func() bool { return listeners(t, db) == 1 })
		killListeners(t, db)
		if round%2 == 1 { // twice in a row
			eventually(t, "the next connection", func() bool { return l.Current().Number > number })
			killListeners(t, db)
			number++
		}
		eventually(t, "a new listening", func() bool { return l.Current().Number > number })
		for _, name := range names {
			if got := ensure(t, l, name); got.Number <= number {
				t.Fatalf("round %d: Ensure acknowledged listening %d after its loss", round, got.Number)
			}
			l.Release(name)
			marker := fmt.Sprintf("round %d on %s", round, name)
			notify(t, db, name, marker)
			eventually(t, marker, func() bool { return consumers[name].has(marker) })
		}
		number = l.Current().Number
	}
	eventually(t, "one connection", func() bool { return listeners(t, db) == 1 })
	if n := logs.count("channel reconnect a, b, c"); n == 0 {
		t.Fatal("no line says that the channels are reconnected")
	}
	if logs.count("57P01") == 0 {
		t.Fatal("no line has the error of the loss")
	}
	if got := l.State().Reconnects; got < 10 {
		t.Fatalf("%d reconnects counted, want at least 10", got)
	}
	ups, losses := consumers["a"].lifes()
	if uint64(ups) != number || losses != ups-1 {
		t.Fatalf("a consumer was told of %d listenings and %d losses; there were %d", ups, losses, number)
	}
}

// The time without a listener is what a client feels of a lost connection.
func TestReconnectIsFast(t *testing.T) {
	url := pgtest.NewDatabase(t)
	db := pgtest.Dial(t, url)
	l, _ := start(t, Config{URL: url, HealthyAfter: time.Nanosecond})
	ensure(t, l, "a")
	var times, dials []time.Duration
	for range 21 {
		begun := time.Now()
		pgtest.Dial(t, url)
		dials = append(dials, time.Since(begun))
		number := l.Current().Number
		begun = time.Now()
		killListeners(t, db)
		eventually(t, "the next listening", func() bool { return l.Current().Number > number })
		times = append(times, time.Since(begun))
	}
	// No pause, and a few round trips: measured by what any connection takes.
	limit := form(50*time.Millisecond+5*median(dials), 50*time.Millisecond)
	if m := median(times); m > limit {
		t.Fatalf("the median time from a loss to the next listening is %s, want at most %s: %v", m, limit, times)
	}
}

// POSTGRES.md 17: a listener that is terminated again and again comes back at a
// bounded rate, with every number told in order, and nothing between a Listening
// and its Lost is missed.
func TestTerminationStorm(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	db, publisher := pgtest.Dial(t, url), pgtest.Dial(t, url)
	l, logs := start(t, Config{URL: url})
	r := &gapless{}
	detach, err := l.Attach("a", r)
	if err != nil {
		t.Fatal(err)
	}
	defer detach()
	ensure(t, l, "a")

	begun := time.Now()
	published := make(chan int, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	go func() {
		n := 0
		for ctx.Err() == nil {
			n++
			if _, err := publisher.Exec(context.Background(), "select pg_notify('a', $1)", fmt.Sprint(n)); err != nil {
				t.Errorf("publish: %v", err)
				break
			}
		}
		published <- n
	}()
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			killListeners(t, db)
		case <-ctx.Done():
		}
	}
	last := <-published
	// What the last terminated connection was to get is lost with it.
	eventually(t, "a notification after the storm", func() bool {
		last++
		notify(t, db, "a", fmt.Sprint(last))
		return r.seen() > 0 && r.seen() >= last-5
	})
	if err := r.verdict(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	if n, limit := l.Current().Number, uint64(took/(100*time.Millisecond))+6; n > limit {
		t.Fatalf("%d connections in %s, want at most %d", n, took, limit)
	}
	if n, limit := len(logs.lines()), int(took/time.Second)*2+12; n > limit {
		t.Fatalf("%d log lines in %s, want at most %d", n, took, limit)
	}
}

// gapless checks that ascending numbers come without holes within a listening.
type gapless struct {
	mu     sync.Mutex
	up     bool
	number uint64
	last   int
	fresh  bool // nothing since Listening
	err    error
}

func (g *gapless) fail(format string, args ...any) {
	if g.err == nil {
		g.err = fmt.Errorf(format, args...)
	}
}

func (g *gapless) Listening(c Connected) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.up || c.Listening.Number != g.number+1 {
		g.fail("listening %d follows %d (up: %t)", c.Listening.Number, g.number, g.up)
	}
	g.up, g.number, g.fresh = true, c.Listening.Number, true
}

func (g *gapless) Lost(error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.up {
		g.fail("lost twice")
	}
	g.up = false
}

func (g *gapless) Notify(n Notification) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var v int
	if _, err := fmt.Sscan(n.Payload, &v); err != nil {
		g.fail("payload %q", n.Payload)
	}
	if !g.up || v <= g.last || !g.fresh && v != g.last+1 {
		g.fail("%d after %d (up: %t, first of its listening: %t)", v, g.last, g.up, g.fresh)
	}
	g.last, g.fresh = v, false
}

func (g *gapless) seen() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

func (g *gapless) verdict() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// POSTGRES.md 18: the whole server goes away, orderly or by a crash.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.URL("postgres")
	l, _ := start(t, Config{URL: url})
	r := attach(t, l, "a")
	for _, stop := range []func(){
		func() { server.Stop("fast"); server.StartAgain() },
		func() { server.Stop("immediate"); server.StartAgain() },
		func() { crashBackend(t, url) },
	} {
		before := ensure(t, l, "a")
		l.Release("a")
		stop()
		eventually(t, "the next listening", func() bool { return l.Current().Number > before.Number })
		r.hears(t, l, pgtest.Dial(t, url), "a", fmt.Sprintf("after %d", before.Number))
	}
}

// S50, S51: while the server is away the listener neither spins nor floods the
// log, Ensure fails in time, and nothing remembers the failure.
func TestServerAway(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := server.URL("postgres")
	l, logs := start(t, Config{URL: url, EnsureTimeout: 300 * time.Millisecond})
	ensure(t, l, "old")
	server.Stop("fast")
	begun := time.Now()
	eventually(t, "the loss", func() bool { return l.Current().Number == 0 })
	for time.Since(begun) < 4*time.Second {
		_, err := l.Ensure(t.Context(), "new")
		if !errors.Is(err, ErrNotListening) || !strings.Contains(err.Error(), "connect") {
			t.Fatalf("Ensure without a server: %v, want ErrNotListening and the reason", err)
		}
	}
	took := time.Since(begun)
	attempts := logs.count("channel reconnect")
	if attempts == 0 || len(logs.lines()) > int(took/time.Second)+8 {
		t.Fatalf("%d log lines, %d about reconnects, in %s", len(logs.lines()), attempts, took)
	}
	var last int
	for _, line := range logs.lines() {
		if _, after, found := strings.Cut(line, " attempt="); found {
			_, _ = fmt.Sscan(after, &last)
		}
	}
	if last > 15 {
		t.Fatalf("%d attempts to connect in %s", last, took)
	}
	server.StartAgain()
	eventually(t, "recovery", func() bool { return l.Current().Number > 1 })
	for _, name := range []string{"new", "old"} {
		eventually(t, name, func() bool { _, err := l.Ensure(t.Context(), name); return err == nil })
	}
}
