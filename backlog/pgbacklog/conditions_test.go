package pgbacklog

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// POSTGRES.md 54, symptom: publishes through a transaction pooler failed with
// "prepared statement does not exist". The URL can turn them off, and everything
// then works without, what waits for held streams too.
func TestWithoutPreparedStatements(t *testing.T) {
	for _, mode := range []string{"exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testWithoutPreparedStatements(t, mode)
		})
	}
}

func testWithoutPreparedStatements(t *testing.T, mode string) {
	url := newSchema(t)
	foreign := pgtest.Dial(t, url)
	s := startPublisher(t, url+"&default_query_exec_mode="+mode)
	head := mustPublish(t, s, keyed(publication("s", "1"), "k")).Position
	publishWithoutPreparedStatements(t, s, url)
	hold(t, foreign, "s", "new")
	calls := many(3, func(i int) error {
		switch i {
		case 0:
			return publishBatch(context.Background(), s, "2", "a", "new", "s")
		case 1:
			return closeStream(context.Background(), s, "new")
		default:
			return s.SetPolicy(context.Background(), backlog.Policy{Channel: "c", Backlog: uint64Of(10)})
		}
	})
	frame := submit(t.Context(), s, publication("s", "2"))
	eventually(t, "three of them wait", func() bool {
		s.committer.mu.Lock()
		defer s.committer.mu.Unlock()
		return s.committer.laned.frames == 3
	})
	readEverything(t, s, head)
	pgtest.Exec(t, foreign, "commit")
	frame.must(t)
	for range cap(calls) {
		if err := <-calls; err != nil {
			t.Error(err)
		}
	}
	sessions := s.publishing.AcquireAllIdle(t.Context())
	if len(sessions) == 0 {
		t.Error("the store has no session to look at")
	}
	for _, conn := range sessions {
		if n := pgtest.Query[int](t, conn.Conn(), `select count(*) from pg_prepared_statements where name <> ''`); n != 0 {
			t.Errorf("a session has %d prepared statements", n)
		}
		conn.Release()
	}
	if _, err := s.ListStreams(t.Context(), "c", publication("a", "").Stream, 10); err != nil {
		t.Errorf("the list of a channel's streams: %v", err)
	}
	if err := s.Notify(t.Context(), "fanfare_probe", "x"); err != nil {
		t.Errorf("a notification: %v", err)
	}
	if err := s.janitor.sweep(t.Context()); err != nil {
		t.Errorf("a sweep: %v", err)
	}
	for scope, want := range map[string]int{"s": 4, "a": 1} {
		if got := len(stored(t, foreign, scope)); got != want {
			t.Errorf("stream %s has %d frames, want %d", scope, got, want)
		}
	}
}

// publishWithoutPreparedStatements publishes ephemeral frames alone, beside durable
// ones in a transaction, and in atomic batches. Without prepared statements all
// arguments are texts, of which one is an array of booleans, or null.
func publishWithoutPreparedStatements(t *testing.T, s *Store, url string) {
	t.Helper()
	conn := listen(t, s, url)
	content := ephemeral(publication("mixed", "\\x00\x00é'\\\n\"{,}"))
	content.ContentType, content.EventType, content.Headers = "a'b", `c"\`, map[string]string{`k{"`: `,}'`}
	mustPublish(t, s, content)
	if a := announced(t, conn, 1)[0].Frame; !a.Ephemeral || string(a.Payload) != string(content.Payload) ||
		a.ContentType != content.ContentType || a.EventType != content.EventType || !maps.Equal(a.Headers, content.Headers) {
		t.Errorf("announced was %+v, want %+v", a, content)
	}
	for i, p := range []backlog.Publication{publication("mixed", "1"), ephemeral(publication("mixed", "x")), ephemeral(publication("mixed", "x")), publication("mixed", "2")} {
		if _, err := submit(t.Context(), s, p).wait(t); err != nil {
			t.Errorf("publication %d: %v", i, err)
		}
	}
	batch := []backlog.Publication{ephemeral(publication("mixed", "y")), keyed(publication("mixed", "3"), "k"), ephemeral(publication("mixed", "y"))}
	for range 2 { // the second is a duplicate
		if _, err := s.PublishBatch(t.Context(), batch); err != nil {
			t.Error(err)
		}
	}
	mustPublish(t, s, ephemeral(publication("mixed", "marker")))
	wantAnnounced(t, conn, "1 1", "~x 1", "~x 1", "2 2", "~y 2", "3 3", "~y 3", "~marker 3")
}

// POSTGRES.md 56 for publishers: the server has no connection left when the
// store's are lost. They are told that nothing was stored, and all goes on when
// there is room again.
func TestNoConnectionLeft(t *testing.T) {
	server := pgtest.Start(t, "max_connections=12", "superuser_reserved_connections=0")
	url := migrated(t, server.NewDatabase(t))
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("s", "0"))
	var others []*pgx.Conn
	leave := func() {
		for _, conn := range others {
			_ = conn.Close(context.Background())
		}
		others = nil
	}
	defer leave()
	occupy := func() {
		for {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				return
			}
			others = append(others, conn)
		}
	}
	var err error
	eventually(t, "the store has no connection", func() bool {
		pgtest.Exec(t, admin, `select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'fanfare%'`)
		occupy()
		_, err = submit(t.Context(), s, publication("s", "lost")).wait(t)
		return err != nil && hasCode(err, "53300")
	})
	if !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("without a connection the publish ended with %v", err)
	}
	before := pgtest.Query[int](t, admin, `select count(*) from fanfare.channel_frames`)
	for range 3 {
		if err := publishBatch(t.Context(), s, "lost", "s", "t"); !errors.Is(err, backlog.ErrUnavailable) {
			t.Errorf("without a connection the batch ended with %v", err)
		}
		if err := closeStream(t.Context(), s, "s"); !errors.Is(err, backlog.ErrUnavailable) {
			t.Errorf("without a connection the close ended with %v", err)
		}
	}
	if n := pgtest.Query[int](t, admin, `select count(*) from fanfare.channel_frames`); n != before {
		t.Errorf("%d frames were stored without a connection", n-before)
	}
	leave()
	mustPublishSoon(t, s, publication("s", "1"))
	if err := publishBatch(t.Context(), s, "1", "s", "t"); err != nil {
		t.Error(err)
	}
}

// POSTGRES.md 51, symptom: every publish took longer than the one before. Cause:
// an old snapshot somewhere in the database keeps the dead rows, and a query
// passes them all. Trims and reads begin at the floor, so only the versions of
// the stream's own row pile up.
func TestOldSnapshot(t *testing.T) {
	url := newSchema(t)
	s, old := startPublisher(t, url), pgtest.Dial(t, url)
	if err := s.SetPolicy(t.Context(), backlog.Policy{Channel: "c", Backlog: uint64Of(10)}); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, publication("s", "x"))
	pgtest.Exec(t, old, `begin isolation level repeatable read`)
	pgtest.Exec(t, old, `select from fanfare.streams`)
	const frames, compared = 3000, 200
	for range frames {
		mustPublish(t, s, publication("s", "x"))
	}
	// Beside a stream that has few versions, one after the other: the machine is the same
	// to both.
	publishes, loads := map[string][]time.Duration{}, map[string][]time.Duration{}
	for range compared {
		for _, scope := range []string{"s", "new"} {
			began := time.Now()
			mustPublish(t, s, publication(scope, "x"))
			publishes[scope] = append(publishes[scope], time.Since(began))
			began = time.Now()
			if _, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: publication(scope, "").Stream, MaxFrames: 100, MaxBytes: 1 << 20}}); err != nil {
				t.Fatal(err)
			}
			loads[scope] = append(loads[scope], time.Since(began))
		}
	}
	middle := func(l []time.Duration) time.Duration {
		l = slices.Clone(l)
		slices.Sort(l)
		return l[len(l)/2]
	}
	for what, times := range map[string]map[string][]time.Duration{"a publish": publishes, "a load": loads} {
		few, many := middle(times["new"]), middle(times["s"])
		t.Logf("%s takes %v after %d frames, and %v of a new stream", what, many, frames, few)
		if many > 4*few+20*time.Millisecond {
			t.Errorf("%s takes %v after %d frames, and %v of a new stream", what, many, frames, few)
		}
	}
	pgtest.Exec(t, old, `rollback`)
}
