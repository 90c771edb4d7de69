package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// startBehindProxy runs a store behind a proxy, with its connection made.
func startBehindProxy(t *testing.T, tune ...func(*committerConfig)) (s *Store, proxy *pgtest.ProxyServer, url string) {
	t.Helper()
	url = newSchema(t)
	proxy = pgtest.Proxy(t, url)
	s = startPublisher(t, proxy.URL(url), tune...)
	mustPublish(t, s, publication("warm", "up"))
	return s, proxy, url
}

// holdAnswer publishes a payload that nothing else has, and returns once the server has
// committed. From the payload on no answer reaches the store on that connection; those to
// a ping of the pool, or to the preparation of a statement, come before.
func holdAnswer(t *testing.T, proxy *pgtest.ProxyServer, admin *pgx.Conn, payload string, publish func()) {
	t.Helper()
	sent := proxy.HoldReply(payload)
	publish()
	select {
	case <-sent:
	case <-time.After(time.Minute):
		t.Fatalf("%q was not sent", payload)
	}
	eventually(t, "the server has committed", func() bool {
		return pgtest.Query[bool](t, admin, `select exists (select from fanfare.channel_frames where payload = $1)`, []byte(payload))
	})
}

// The connection is lost between the commit and its answer: what has a key is
// retried and gets its position, what has none gets an unknown outcome, and both
// are stored once.
func TestConnectionLostAfterTheCommit(t *testing.T) {
	s, proxy, url := startBehindProxy(t)
	admin := pgtest.Dial(t, url)
	for round := range 5 {
		scope := fmt.Sprint("s", round)
		payload := "with a key in " + scope
		var plain, withKey, behind *pending
		holdAnswer(t, proxy, admin, payload, func() {
			withKey = submit(t.Context(), s, keyed(publication(scope, payload), "k"))
			plain = submit(t.Context(), s, publication(scope+" plain", "plain"))
		})
		behind = submit(t.Context(), s, publication(scope, "behind"))
		proxy.Reset()
		proxy.Restore()
		withKeyOutcome := withKey.must(t)
		if withKeyOutcome.Position.Sequence != 1 {
			t.Errorf("the frame with a key got %+v", withKeyOutcome)
		}
		if o := behind.must(t); o.Position.Sequence != 2 {
			t.Errorf("the frame behind got %+v", o)
		}
		// It travelled with the other one, or was not sent at all.
		if _, err := plain.wait(t); err != nil && !errors.Is(err, backlog.ErrOutcomeUnknown) {
			t.Errorf("the frame without a key ended with %v", err)
		}
		if got, want := stored(t, admin, scope), []string{payload, "behind"}; !slices.Equal(got, want) {
			t.Errorf("stored %q, want %q", got, want)
		}
		if n := len(stored(t, admin, scope+" plain")); n > 1 {
			t.Errorf("the frame without a key is stored %d times", n)
		}
	}
}

// The same with the answer certainly lost.
func TestAnswerLost(t *testing.T) {
	s, proxy, url := startBehindProxy(t, func(c *committerConfig) { c.CallTimeout = 2 * time.Second })
	admin := pgtest.Dial(t, url)
	var plain *pending
	holdAnswer(t, proxy, admin, "of a lost answer", func() { plain = submit(t.Context(), s, publication("s", "of a lost answer")) })
	if _, err := plain.wait(t); !errors.Is(err, backlog.ErrOutcomeUnknown) {
		t.Errorf("after the call timeout the publish ended with %v", err)
	}
	proxy.Restore()
	if o := mustPublishSoon(t, s, publication("s", "next")); o.Position.Sequence != 2 {
		t.Errorf("the next frame got %+v", o)
	}
}

// A deadline that passes during the commit: the outcome is unknown at once, and
// a retry with the key finds the frame.
func TestDeadlineDuringTheCommit(t *testing.T) {
	s, proxy, url := startBehindProxy(t)
	admin := pgtest.Dial(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	var p *pending
	holdAnswer(t, proxy, admin, "in a commit", func() { p = submit(ctx, s, keyed(publication("s", "in a commit"), "k")) })
	began := time.Now()
	cancel()
	if _, err := p.wait(t); !errors.Is(err, backlog.ErrOutcomeUnknown) {
		t.Errorf("the publish ended with %v", err)
	}
	if elapsed := time.Since(began); elapsed > form(10*time.Second, time.Second) { // the call would be given up after 30 s
		t.Errorf("the caller was kept for %v", elapsed)
	}
	proxy.Restore()
	if o := mustPublish(t, s, keyed(publication("s", "in a commit"), "k")); !o.Duplicate || o.Position.Sequence != 1 {
		t.Errorf("the retry got %+v", o)
	}
}

// mustPublishSoon publishes as soon as the store is available again.
func mustPublishSoon(t *testing.T, s *Store, p backlog.Publication) backlog.Outcome {
	t.Helper()
	var outcome backlog.Outcome
	eventually(t, "publishing works again", func() bool {
		var err error
		outcome, err = submit(t.Context(), s, p).wait(t)
		if err != nil && !errors.Is(err, backlog.ErrUnavailable) {
			t.Fatalf("publish: %v", err)
		}
		return err == nil
	})
	return outcome
}

// A server that is away fails publishes soon, saying that nothing was stored,
// and is found again by itself.
func TestServerAway(t *testing.T) {
	for _, mode := range []string{"fast", "immediate"} {
		t.Run(mode, func(t *testing.T) {
			server := pgtest.Start(t)
			url := migrated(t, server.NewDatabase(t))
			s := startPublisher(t, url)
			mustPublish(t, s, publication("s", "0"))
			server.Stop(mode)
			eventually(t, "the store has noticed", func() bool {
				_, err := submit(t.Context(), s, publication("s", "lost")).wait(t)
				if err == nil {
					t.Fatal("published on a stopped server")
				}
				return errors.Is(err, backlog.ErrUnavailable)
			})
			for range 3 {
				began := time.Now()
				_, err := submit(t.Context(), s, publication("s", "lost")).wait(t)
				if !errors.Is(err, backlog.ErrUnavailable) || time.Since(began) > 10*time.Second {
					t.Errorf("after %v the publish ended with %v", time.Since(began), err)
				}
				if _, err := s.PublishBatch(t.Context(), []backlog.Publication{publication("s", "lost")}); !errors.Is(err, backlog.ErrUnavailable) {
					t.Errorf("the batch ended with %v", err)
				}
			}
			server.StartAgain()
			mustPublishSoon(t, s, publication("s", "1"))
			if got, want := stored(t, pgtest.Dial(t, url), "s"), []string{"0", "1"}; !slices.Equal(got, want) {
				t.Errorf("stored %q, want %q", got, want)
			}
		})
	}
}

// What was acknowledged must survive a crash, whatever the role's
// synchronous_commit is: otherwise its sequences would be given again.
func TestAcknowledgedFramesSurviveACrash(t *testing.T) {
	server := pgtest.Start(t, "synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=1GB")
	url := migrated(t, server.NewDatabase(t))
	s := startPublisher(t, url)
	mustPublish(t, s, publication("s", "0"))
	var acked atomic.Uint64
	running := make(chan error)
	go func() {
		running <- publishAll(t.Context(), 1, 1_000_000, func(ctx context.Context, _, _ int) error {
			o, err := backlog.Publish(ctx, s, publication("s", "x"))
			if err == nil {
				acked.Store(o.Position.Sequence)
			}
			return err
		})
	}()
	eventually(t, "some frames are acknowledged", func() bool { return acked.Load() > 50 })
	server.Stop("immediate")
	<-running
	server.StartAgain()
	if head := uint64(len(stored(t, pgtest.Dial(t, url), "s"))); head < acked.Load() {
		t.Errorf("sequence %d was acknowledged, and the head is %d after the crash", acked.Load(), head)
	}
}

// A server whose transactions are read-only, such as one that was demoted, must
// not keep the store's connections.
func TestReadOnlyServer(t *testing.T) {
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("s", "0"))
	database := pgx.Identifier{pgtest.Query[string](t, admin, `select current_database()`)}.Sanitize()
	pgtest.Exec(t, admin, `alter database `+database+` set default_transaction_read_only = on`)
	pgtest.Exec(t, admin, `select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()`)
	var err error
	eventually(t, "the store reaches a read-only session", func() bool {
		_, err = submit(t.Context(), s, publication("s", "lost")).wait(t)
		return errors.Is(err, backlog.ErrUnavailable)
	})
	pgtest.Exec(t, admin, `alter database `+database+` set default_transaction_read_only = off`)
	mustPublishSoon(t, s, publication("s", "1"))
}

// Many publishers, some of whom leave in the middle: the others go on, and no
// session is left in a transaction.
func TestCallersComeAndGo(t *testing.T) {
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	leavers := make(chan error, 1)
	go func() {
		leavers <- publishAll(ctx, 20, 1_000_000, func(ctx context.Context, caller, i int) error {
			ctx, cancel := context.WithTimeout(ctx, time.Duration(i%4)*time.Millisecond)
			defer cancel()
			_, err := backlog.Publish(ctx, s, publication("left", "x"))
			switch {
			case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, backlog.ErrOutcomeUnknown):
				return ctx.Err() // ends when the test's context does
			}
			return err
		})
	}()
	err := publishAll(t.Context(), 64, 50, func(ctx context.Context, caller, i int) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err := backlog.Publish(ctx, s, publication(fmt.Sprint("s", caller), "x"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	cancel()
	<-leavers
	eventually(t, "all sessions are idle", func() bool {
		return pgtest.Query[int](t, admin, `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and state <> 'idle'`) == 0
	})
	if s.committer.queued != (load{}) {
		t.Errorf("%+v is still queued", s.committer.queued)
	}
}

// POSTGRES.md 55 for publishers: statements that were prepared before a migration
// changed what they return, or that a pooler has forgotten, are refused once.
// Nothing was stored then; they are prepared again, and callers do not notice.
func TestStalePublishes(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	conn := listen(t, s.Store, s.url)
	n := 0
	publish := func(when string) {
		t.Helper()
		n++
		mustPublish(t, s.Store, publication("s", fmt.Sprint(n)))
		mustPublish(t, s.Store, ephemeral(publication("s", fmt.Sprint(n))))
		if err := publishBatch(t.Context(), s.Store, "x", "t", "u"); err != nil {
			t.Errorf("a batch %s: %v", when, err)
		}
		if err := closeStream(t.Context(), s.Store, "t"); err != nil {
			t.Errorf("a close %s: %v", when, err)
		}
		announced(t, conn, 5)
	}
	publish("at first")
	publish("with what was prepared")
	migrateStatus := func(from, to string) {
		t.Helper()
		execute(t, s.url, `do $do$
			declare v_definition text := pg_get_functiondef((select p.oid from pg_proc p where p.proname = '_publish'));
			begin
			  drop function fanfare._publish;
			  execute replace(replace(v_definition, 'OUT status `+from+`[]', 'OUT status `+to+`[]'), '_raise_refused(status,', '_raise_refused(status::smallint[],');
			end $do$`)
	}
	migrateStatus("smallint", "integer")
	publish("after a migration")
	migrateStatus("integer", "smallint")
	publish("after another one")
	for _, conn := range s.publishing.AcquireAllIdle(t.Context()) {
		if _, err := conn.Conn().PgConn().Exec(t.Context(), "deallocate all").ReadAll(); err != nil {
			t.Error(err)
		}
		conn.Release()
	}
	publish("without what was prepared")
	publish("at last")
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i+1))
	}
	if got := stored(t, pgtest.Dial(t, s.url), "s"); !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}
