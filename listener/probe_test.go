package listener

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// POSTGRES.md 26: a transaction pooler hides notifications. The first connection
// ends Run with an error that names it and the option.
func TestTransactionPoolerIsNamed(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	w.set(nil, func(m pgproto3.BackendMessage) pgproto3.BackendMessage {
		switch m := m.(type) {
		case *pgproto3.NotificationResponse:
			return nil
		case *pgproto3.BackendKeyData:
			return &pgproto3.BackendKeyData{ProcessID: 7, SecretKey: m.SecretKey}
		}
		return m
	})
	l, err := New(Config{URL: w.url(url), Probe: prober(url), ProbeTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ensured := make(chan error, 1)
	go func() { _, err := l.Ensure(context.Background(), "a"); ensured <- err }()
	var deaf *ProbeError
	err = l.Run(t.Context())
	if !errors.As(err, &deaf) || !strings.Contains(err.Error(), "pooler in transaction mode") || !strings.Contains(err.Error(), "--listen-database-url") {
		t.Fatalf("Run = %v, want a ProbeError that names the pooler and the option", err)
	}
	if err := <-ensured; !errors.Is(err, ErrNotListening) {
		t.Fatalf("Ensure = %v, want ErrNotListening", err)
	}
	db := pgtest.Dial(t, url)
	eventually(t, "the connection to end", func() bool { return listeners(t, db) == 0 })
}

// A pooler in session mode shows another process id too, and works: one warning.
func TestSessionPoolerIsWarnedOf(t *testing.T) {
	url := pgtest.NewDatabase(t)
	w := newWire(t, url)
	w.set(nil, func(m pgproto3.BackendMessage) pgproto3.BackendMessage {
		if m, ok := m.(*pgproto3.BackendKeyData); ok {
			return &pgproto3.BackendKeyData{ProcessID: 7, SecretKey: m.SecretKey}
		}
		return m
	})
	l, logs := start(t, Config{URL: w.url(url), Probe: prober(url)})
	ensure(t, l, "a")
	if s := l.State(); !s.Pooled || s.ProbeErr != nil {
		t.Fatalf("state %+v, want Pooled and no probe error", s)
	}
	db := pgtest.Dial(t, url)
	for range 2 {
		before := l.Current().Number
		killListeners(t, db)
		eventually(t, "the next listening", func() bool { return l.Current().Number > before })
	}
	if n := logs.count("stands between"); n != 1 {
		t.Fatalf("%d warnings of a pooler, want 1", n)
	}
}

// The two URLs lead to different databases.
func TestOtherDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	url, other := pgtest.NewDatabase(t), pgtest.NewDatabase(t)
	l, err := New(Config{URL: url, Probe: prober(other), ProbeTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var deaf *ProbeError
	if err := l.Run(t.Context()); !errors.As(err, &deaf) || !strings.Contains(err.Error(), "different databases") || !strings.Contains(err.Error(), "--listen-database-url") {
		t.Fatalf("Run = %v, want a ProbeError that names the databases", err)
	}
}

// A probe that could not be committed says nothing about LISTEN: the listener
// works, and the state has the detail until a probe gets through.
func TestProbeThatCannotCommit(t *testing.T) {
	url := pgtest.NewDatabase(t)
	var broken atomic.Bool
	broken.Store(true)
	good := prober(url)
	l, _ := start(t, Config{URL: url, PingInterval: 50 * time.Millisecond, Probe: func(ctx context.Context, name, payload string) error {
		if broken.Load() {
			return errors.New("the pool is away")
		}
		return good(ctx, name, payload)
	}})
	first := ensure(t, l, "a")
	if err := l.State().ProbeErr; err == nil || !strings.Contains(err.Error(), "the pool is away") {
		t.Fatalf("probe error %v, want the pool's", err)
	}
	broken.Store(false)
	eventually(t, "a probe to get through", func() bool { return l.State().ProbeErr == nil })
	if l.Current() != first {
		t.Fatal("probing cost the connection")
	}
}

// Later probes gate nothing, whatever becomes of them.
func TestLaterProbesAreAside(t *testing.T) {
	t.Parallel()
	url, other := pgtest.NewDatabase(t), pgtest.NewDatabase(t)
	var wrong atomic.Bool
	good, bad := prober(url), prober(other)
	l, logs := start(t, Config{URL: url, PingInterval: 50 * time.Millisecond, ProbeTimeout: 100 * time.Millisecond, Probe: func(ctx context.Context, name, payload string) error {
		if wrong.Load() {
			return bad(ctx, name, payload)
		}
		return good(ctx, name, payload)
	}})
	r := attach(t, l, "a")
	ensure(t, l, "a")
	wrong.Store(true)
	db := pgtest.Dial(t, url)
	killListeners(t, db)
	eventually(t, "the next listening", func() bool { return l.Current().Number == 2 })
	eventually(t, "the probe to fail", func() bool { return l.State().ProbeErr != nil })
	notify(t, db, "a", "still heard")
	eventually(t, "a notification", func() bool { return r.has("still heard") })
	if n := l.Current().Number; n != 2 || logs.count("probe did not arrive") != 1 {
		t.Fatalf("connection %d, log %v", n, logs.lines())
	}
	// The failure is told before the session has gone on to UNLISTEN.
	eventually(t, "no session to end with a probe's LISTEN", func() bool {
		return pgtest.Query[int](t, db, "select count(*) from pg_stat_activity where query ilike 'listen %probe%'") == 0
	})
}

// prober notifies through a URL, as a pool would.
func prober(url string) func(context.Context, string, string) error {
	return func(ctx context.Context, name, payload string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.Background()) }()
		_, err = conn.Exec(ctx, "select pg_notify($1, $2)", name, payload)
		return err
	}
}
