package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// TestStaleStatements: a migration that changes what a prepared statement returns
// makes the server refuse it once; readers must not notice.
func TestStaleStatements(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	stream := backlog.StreamName{Channel: "stale"}
	read := func() {
		t.Helper()
		if result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: stream, MaxFrames: 9, MaxBytes: 9}}); err != nil || len(result.Streams[0].Frames) != 1 {
			t.Errorf("load: %v, %v", result, err)
		}
		if page, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: stream, MaxFrames: 9, MaxBytes: 9}); err != nil || len(page.Frames) != 1 {
			t.Errorf("page: %v, %v", page, err)
		}
		if states, err := s.ListStreams(t.Context(), "", backlog.StreamName{}, 9); err != nil || len(states) != 1 {
			t.Errorf("list: %v, %v", states, err)
		}
	}
	if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: stream, Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		read()
	}
	definition := query[string](t, s.url, "select pg_get_viewdef('fanfare.stream_states'::regclass)")
	execute(t, s.url, "drop view fanfare.stream_states; create view fanfare.stream_states as "+
		strings.Replace(definition, "p.backlog,", "p.backlog::numeric as backlog,", 1))
	// Proof that the statements are refused.
	conn, err := s.loading.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), s.sql.listAll, "", "", 9)
	conn.Release()
	if !isStaleStatement(err) {
		t.Fatalf("the statement was not refused: %v", err)
	}
	s.paging.Reset()
	for range 3 {
		read()
	}
}

// TestForeignDeletions: rows that somebody deleted by hand leave a break that
// readers are told of, never frames that look contiguous.
func TestForeignDeletions(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.publishPayloads(t, "1", "2", "3", "4", "5")
	execute(t, s.url, "delete from fanfare.channel_frames where sequence = 3")
	loaded, _ := s.loadAll(t)
	if got := fmt.Sprint(len(loaded.Frames), loaded.Before.Sequence, loaded.Before.Epoch); got != "2 3 0" {
		t.Errorf("loaded %s, want frames 4 and 5, and an unknown position 3 before them", got)
	}
	wantPage(t, s, backlog.Position{}, "1", "2")
	_, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: failoverStream, After: backlog.Position{Epoch: loaded.State.Head.Epoch, Sequence: 2}, MaxFrames: 9, MaxBytes: 99})
	if !errors.Is(err, backlog.ErrTrimmed) {
		t.Errorf("page before the break: %v, want ErrTrimmed", err)
	}
	execute(t, s.url, "delete from fanfare.channel_frames where sequence = 5")
	if loaded, _ = s.loadAll(t); len(loaded.Frames) != 0 || loaded.Before != loaded.State.Head {
		t.Errorf("loaded %v without the newest row", loaded)
	}
}

// TestReadsUseTheKey: statements keep their plans, and a plan made while tables
// were small must not read them whole when they have grown.
func TestReadsUseTheKey(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	p := s.publishPayloads(t, "1", "2", "3")
	load := func() {
		t.Helper()
		for range 10 { // the server takes a generic plan after the fifth
			if _, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: failoverStream, After: 1, MaxFrames: 2, MaxBytes: 9, Verify: []uint64{1, 2}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: failoverStream, After: p[0], MaxFrames: 2, MaxBytes: 9}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.ListStreams(t.Context(), "failover", backlog.StreamName{}, 5); err != nil {
				t.Fatal(err)
			}
		}
	}
	load()
	execute(t, s.url, `alter table fanfare.channel_frames set (autovacuum_enabled = off); alter table fanfare.streams set (autovacuum_enabled = off)`)
	execute(t, s.url, `
		insert into fanfare.channel_frames (stream_id, sequence, id, payload, size, content_type, event_type, origin, created)
		select n % 1000, 10 + n / 1000, gen_random_uuid(), '', 0, '', '', 1, now() from generate_series(1, 50000) n;
		insert into fanfare.streams (channel, scope, stream_id, epoch, head_origin, floor_origin, created, updated)
		select 'other', n::text, n, 1, 1, 1, now(), now() from generate_series(1, 5000) n`)
	reads := func() [2]int {
		t.Helper()
		var n [2]int
		for i, table := range []string{"channel_frames", "streams"} {
			// Pages of the tables that were read, in memory or not.
			n[i] = query[int](t, s.url, `select coalesce(sum(seq_tup_read), 0) from pg_stat_user_tables where schemaname = 'fanfare' and relname = $1`, table)
		}
		return n
	}
	flush := func() {
		// Counters are reported when a session ends.
		s.loading.Reset()
		s.paging.Reset()
		eventually(t, "the sessions end", func() bool {
			return query[int](t, s.url, `select count(*) from pg_stat_activity where datname = current_database() and application_name in ('fanfare-load', 'fanfare-page')`) == 0
		})
	}
	load()
	before := reads()
	load()
	flush()
	after := reads()
	for i, table := range []string{"channel_frames", "streams"} {
		if n := after[i] - before[i]; n > 20000 {
			t.Errorf("30 reads of a few rows went through %d rows of %s", n, table)
		}
	}
}

func TestReadsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.publishPayloads(t, "1")
	holder := pgtest.Dial(t, s.url)
	pgtest.Exec(t, holder, "begin")
	pgtest.Exec(t, holder, "lock table fanfare.channel_frames in access exclusive mode")
	for what, read := range map[string]func(context.Context) error{
		"load": func(ctx context.Context) error {
			_, err := s.Load(ctx, 0, []backlog.LoadRequest{{Stream: failoverStream, MaxFrames: 1}})
			return err
		},
		"page": func(ctx context.Context) error {
			_, err := s.ReadPage(ctx, 0, backlog.PageRequest{Stream: failoverStream, MaxFrames: 1})
			return err
		},
	} {
		ctx, cancel := contextWithTimeout(t)
		if err := read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the context's error", what, err)
		}
		cancel()
	}
	pgtest.Exec(t, holder, "rollback")
	wantPage(t, s, backlog.Position{}, "1")
}

func TestAttempt(t *testing.T) {
	stale := &pgconn.PgError{Code: codeFeatureNotSupported, Routine: "RevalidateCachedQuery"}
	other := &pgconn.PgError{Code: codeFeatureNotSupported, Routine: "somethingElse"}
	conflict := &pgconn.PgError{Code: codeSerializationFailure}
	for _, tt := range []struct {
		errs []error
		want error
	}{
		{[]error{nil}, nil},
		{[]error{stale, nil}, nil},
		{[]error{conflict, stale, conflict, nil}, nil},
		{[]error{stale, stale, stale, stale, stale}, stale},
		{[]error{other}, other},
		{[]error{context.Canceled}, context.Canceled},
	} {
		calls := 0
		err := attempt(func() error {
			calls++
			return tt.errs[calls-1]
		})
		if err != tt.want || calls != len(tt.errs) {
			t.Errorf("%v: %v after %d calls, want %v", tt.errs, err, calls, tt.want)
		}
	}
}
