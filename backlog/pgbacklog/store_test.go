package pgbacklog

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/backlogtest"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// testStore is a Store that runs, and what its tests need to reach behind it.
type testStore struct {
	*Store
	url  string
	stop func() // ends Run and closes; may be called twice
}

// openStore opens a running store on a new database.
func openStore(t *testing.T) *testStore {
	t.Helper()
	url := pgtest.NewDatabase(t)
	migrate(t, url, "")
	return openStoreOn(t, Config{URL: url})
}

// openStoreOn opens a running store on a migrated schema. Its janitor sweeps
// when the test says so.
func openStoreOn(t *testing.T, cfg Config) *testStore {
	t.Helper()
	cfg.Logger = discard
	cfg.JanitorInterval = time.Hour
	store, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
		store.Close()
	}
	t.Cleanup(stop)
	return &testStore{Store: store, url: cfg.URL, stop: stop}
}

// patience bounds what should take milliseconds.
const patience = 30 * time.Second

var discard = slog.New(slog.DiscardHandler)

func migrate(t *testing.T, url, schema string) {
	t.Helper()
	if err := Migrate(t.Context(), url, schema, discard); err != nil {
		t.Fatal(err)
	}
}

// execute runs SQL statements in a session of their own.
func execute(t *testing.T, url string, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// query returns the only value of a query's only row.
func query[T any](t *testing.T, url string, sql string, args ...any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var v T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// TestConformance gives each of the suite's tests a schema of its own: creating
// and dropping databases would take most of the time.
func TestConformance(t *testing.T) {
	url := pgtest.NewDatabase(t)
	var schemas atomic.Int32
	open := func(t *testing.T) backlog.Store {
		schema := fmt.Sprintf("Test %d", schemas.Add(1))
		migrate(t, url, schema)
		return openStoreOn(t, Config{URL: url, Schema: schema})
	}
	hooks := backlogtest.Hooks{
		Sweep: func(t *testing.T, s backlog.Store) { s.(*testStore).sweep(t) },
		Age: func(t *testing.T, s backlog.Store, stream backlog.StreamName, d time.Duration) {
			s.(*testStore).age(t, stream, d)
		},
		SetHead: func(t *testing.T, s backlog.Store, stream backlog.StreamName, sequence uint64) {
			s.(*testStore).execute(t, `
				with s as (update fanfare.streams set head = $3, floor = $3, floor_origin = head_origin, stored_bytes = 0
				            where channel = $1 and scope = $2 returning stream_id)
				delete from fanfare.channel_frames f using s where f.stream_id = s.stream_id`, stream.Channel, stream.Scope, int64(sequence))
		},
		Reopen: func(t *testing.T, s backlog.Store) backlog.Store {
			s.(*testStore).stop()
			return openStoreOn(t, s.(*testStore).cfg)
		},
	}
	backlogtest.Run(t, open, hooks)
	backlogtest.RunEphemeral(t, open, hooks)
}

// execute runs SQL in which "fanfare." stands for the store's schema.
func (s *testStore) execute(t *testing.T, sql string, args ...any) {
	t.Helper()
	execute(t, s.url, qualify(s.cfg.Schema, sql), args...)
}

// sweep lets the grace of what is stored pass and sweeps.
func (s *testStore) sweep(t *testing.T) {
	t.Helper()
	s.execute(t, `update fanfare.settings set grace = '0'`)
	if err := s.janitor.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.execute(t, `update fanfare.settings set grace = default`)
}

// age makes a stream and what belongs to it older.
func (s *testStore) age(t *testing.T, stream backlog.StreamName, d time.Duration) {
	t.Helper()
	s.execute(t, `
		with s as (update fanfare.streams set created = created - $3::interval, updated = updated - $3, closed_at = closed_at - $3
		            where channel = $1 and scope = $2 returning stream_id),
		k as (update fanfare.idempotency_keys set created = created - $3 where channel = $1 and scope = $2)
		update fanfare.channel_frames f set created = f.created - $3 from s where f.stream_id = s.stream_id`,
		stream.Channel, stream.Scope, d)
}
