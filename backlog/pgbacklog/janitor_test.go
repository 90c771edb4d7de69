package pgbacklog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// publishTo publishes n frames to each of the scopes of a channel.
func (s *testStore) publishTo(t *testing.T, channel string, scopes, n int) {
	t.Helper()
	var batch []backlog.Publication
	flush := func() {
		t.Helper()
		if len(batch) == 0 {
			return
		}
		if _, err := s.PublishBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		batch = batch[:0]
	}
	for i := range scopes {
		for range n {
			batch = append(batch, backlog.Publication{Stream: backlog.StreamName{Channel: channel, Scope: fmt.Sprint(i)}, Payload: []byte("x")})
			if len(batch) == backlog.MaxBatchFrames {
				flush()
			}
		}
	}
	flush()
}

func (s *testStore) count(t *testing.T, table string) int {
	t.Helper()
	return query[int](t, s.url, "select count(*) from fanfare."+table)
}

// TestSweepOfMany has more of everything than one transaction of the janitor
// takes.
func TestSweepOfMany(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const streams = sweepPage + 500
	s.publishTo(t, "many", streams, 2)
	s.publishTo(t, "long", 1, 5000) // more rows than one trim deletes
	execute(t, s.url, `insert into fanfare.idempotency_keys select 'c', '', n::text, '', 1, n, now() - interval '2 days' from generate_series(1, $1::int) n`, 2*sweepKeys+5)
	execute(t, s.url, `insert into fanfare.idempotency_keys values ('c', '', 'fresh', '', 1, 1, now())`)

	// Reopened streams leave numberings behind, one of them long.
	for _, name := range []backlog.StreamName{{Channel: "long", Scope: "0"}, {Channel: "many", Scope: "7"}} {
		if _, err := s.CloseStream(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: name}); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, s.url, `insert into fanfare.retired_streams select n, 'r', n::text, 1, 1, 1, 0, 1, now(), now() from generate_series(1, 3 * $1) n`, sweepRetiredStreams)

	// Within the grace nothing is deleted but the keys.
	frames := s.count(t, "channel_frames")
	if err := s.janitor.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, "idempotency_keys"); n != 1 {
		t.Errorf("%d keys are left, want 1", n)
	}
	if n := s.count(t, "channel_frames"); n != frames {
		t.Errorf("%d frames are left within the grace, want %d", n, frames)
	}

	execute(t, s.url, `select fanfare.set_policy('', true, 1)`)
	s.sweep(t)
	if n := s.count(t, "retired_streams"); n != 0 {
		t.Errorf("%d earlier numberings are left", n)
	}
	if n := s.count(t, "channel_frames"); n != streams+1 {
		t.Errorf("%d frames are left, want one for each of %d streams", n, streams+1)
	}
	if n := query[int](t, s.url, "select count(*) from fanfare.streams where floor <> head - 1"); n != 0 {
		t.Errorf("%d streams have a wrong floor", n)
	}

	execute(t, s.url, `select fanfare.set_policy('', true, 0, null, '1 hour'); update fanfare.streams set updated = now() - interval '2 hours'`)
	s.sweep(t)
	s.sweep(t)
	if n := s.count(t, "streams") + s.count(t, "channel_frames"); n != 0 {
		t.Errorf("%d rows are left of streams past their retention", n)
	}
}

// TestSweepWaitsForNobody: a stream whose row an application holds is left for
// the next time, and the others are swept.
func TestSweepWaitsForNobody(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.publishTo(t, "held", 3, 10)
	execute(t, s.url, `select fanfare.set_policy('', true, 0, null, '1 microsecond')`)
	holder := pgtest.Dial(t, s.url)
	pgtest.Exec(t, holder, "begin")
	pgtest.Exec(t, holder, "select fanfare.publish('held', '1', '')")
	began := time.Now()
	s.sweep(t)
	s.sweep(t)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("the sweeps took %v", d)
	}
	if got := query[string](t, s.url, "select string_agg(scope || ' ' || floor, ',') from fanfare.streams"); got != "1 0" {
		t.Errorf("streams and floors are %q, want only the held one, untouched", got)
	}
	pgtest.Exec(t, holder, "commit")
	s.sweep(t)
	s.sweep(t)
	if n := s.count(t, "streams"); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}

// TestOneJanitorAtATime: the janitors of other replicas leave while one works.
func TestOneJanitorAtATime(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	execute(t, s.url, `insert into fanfare.idempotency_keys values ('c', '', 'old', '', 1, 1, now() - interval '2 days')`)
	other := pgtest.Dial(t, s.url)
	pgtest.Exec(t, other, "begin")
	if !pgtest.Query[bool](t, other, janitorLockSQL, DefaultSchema) {
		t.Fatal("the lock is taken")
	}
	if err := s.janitor.sweep(t.Context()); err != nil {
		t.Errorf("a sweep while another janitor works: %v", err)
	}
	if n := s.count(t, "idempotency_keys"); n != 1 {
		t.Errorf("%d keys are left, want the old one", n)
	}
	// The janitor of another schema is another one.
	migrate(t, s.url, "second")
	execute(t, s.url, `insert into second.idempotency_keys values ('c', '', 'old', '', 1, 1, now() - interval '2 days')`)
	if err := openStoreOn(t, Config{URL: s.url, Schema: "second"}).janitor.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if n := query[int](t, s.url, "select count(*) from second.idempotency_keys"); n != 0 {
		t.Errorf("%d keys of the second schema are left", n)
	}
	pgtest.Exec(t, other, "rollback")
	if err := s.janitor.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if n := s.count(t, "idempotency_keys"); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// TestJanitorRuns: Run sweeps by itself.
func TestJanitorRuns(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	execute(t, s.url, `insert into fanfare.idempotency_keys values ('c', '', 'old', '', 1, 1, now() - interval '2 days')`)
	j := newJanitor(s.publishing, s.sql, DefaultSchema, 10*time.Millisecond, discard)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- j.run(ctx) }()
	eventually(t, "the key is removed", func() bool { return s.count(t, "idempotency_keys") == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run returned %v", err)
	}
}

// TestGraceIsBounded: rows beyond the backlog are kept for the grace, but no more
// of them than its rows and bytes.
func TestGraceIsBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		setting string
		floor   int
	}{
		{"grace_rows = 20", 100 - 10 - 20},
		{"grace_bytes = 1500", 100 - 10 - 15},
		{"grace_rows = 20, grace_bytes = 100000", 100 - 10 - 20},
	} {
		s := openStore(t)
		execute(t, s.url, "select fanfare.set_policy('', true, 10); update fanfare.settings set "+tt.setting)
		for range 100 {
			if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: failoverStream, Payload: make([]byte, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		execute(t, s.url, "select fanfare._trim('failover', '')")
		if floor := query[int](t, s.url, "select floor from fanfare.streams"); floor != tt.floor {
			t.Errorf("%s: the floor is %d, want %d", tt.setting, floor, tt.floor)
		}
	}
}

// TestSweepMeetsUse: a stream that looked idle when the janitor saw it, and is used
// by an ephemeral frame before it is removed, is left.
func TestSweepMeetsUse(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	if d := query[time.Duration](t, s.url, `select fanfare._use_interval()`); d != backlog.UseInterval {
		t.Errorf("the schema notes use every %v, want %v", d, backlog.UseInterval)
	}
	execute(t, s.url, `select fanfare.set_policy('', true, null, null, '1 hour')`)
	used, idle := ephemeral(publication("used", "x")), ephemeral(publication("idle", "x"))
	for _, p := range []backlog.Publication{used, idle} {
		mustPublish(t, s.Store, p)
		s.age(t, p.Stream, time.Hour+backlog.UseInterval)
	}
	tx, err := s.publishing.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	page, err := s.janitor.candidates(t.Context(), tx, backlog.StreamName{})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err != nil || len(page.remove) != 2 {
		t.Fatalf("the janitor saw %+v, %v, want two streams to remove", page, err)
	}
	mustPublish(t, s.Store, used)
	if err := s.janitor.work(t.Context(), page); err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, s.url, `select string_agg(scope, ',') from fanfare.streams`); got != "used" {
		t.Errorf("%q are left, want the used one", got)
	}
}
