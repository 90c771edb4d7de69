package pgbacklog

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// POSTGRES.md 36, symptom: every commit of the database failed, and publishers
// could not tell that from a server which is away. Cause: a session that listens
// and stays in a transaction keeps all notifications; once their queue is full,
// every COMMIT that notifies fails with 54000. Nothing is stored then, no caller
// is told anything else, and all goes on when the queue has room.
func TestNotificationQueueFull(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	admin := pgtest.Dial(t, server.URL("postgres"))
	stop := stopNotifying
	if pgtest.Query[int](t, admin, `select current_setting('server_version_num')::int`) >= 170000 {
		pgtest.Exec(t, admin, `alter system set max_notify_queue_pages = 64`) // of 8 KiB, the least there is
		server.Restart("fast")
		stop = fillNotificationQueue
	}
	url := migrated(t, server.NewDatabase(t))
	s, app := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("s", "0"))

	resume := stop(t, url)
	for _, p := range []backlog.Publication{publication("s", "lost"), keyed(publication("s", "lost"), "k"), publication("new", "lost")} {
		if _, err := submit(t.Context(), s, p).wait(t); !errors.Is(err, backlog.ErrNotificationQueueFull) {
			t.Errorf("the publish ended with %v", err)
		}
	}
	if _, err := s.PublishBatch(t.Context(), []backlog.Publication{publication("s", "lost"), publication("t", "lost")}); !errors.Is(err, backlog.ErrNotificationQueueFull) {
		t.Errorf("the batch ended with %v", err)
	}
	var pg *pgconn.PgError
	if _, err := app.Exec(t.Context(), `select fanfare.publish('c', 's', 'lost')`); !errors.As(err, &pg) || pg.Code != codeProgramLimit {
		t.Errorf("the publish by SQL ended with %v", err)
	}
	resume()

	if o := mustPublish(t, s, keyed(publication("s", "1"), "k")); o.Duplicate || o.Position.Sequence != 2 {
		t.Errorf("with room in the queue the publish got %+v", o)
	}
	if got, want := stored(t, app, "s"), []string{"0", "1"}; !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
	if n := pgtest.Query[int](t, app, `select count(*) from fanfare.streams`); n != 1 {
		t.Errorf("%d streams exist, want the one that was published to", n)
	}
}

// fillNotificationQueue fills the server's queue for real. The returned function
// ends the session that keeps it full.
func fillNotificationQueue(t *testing.T, url string) (resume func()) {
	blocker, flood := pgtest.Dial(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, blocker, `listen flood`)
	pgtest.Exec(t, blocker, `begin; select 1`)
	var pg *pgconn.PgError
	// First by much, then to the last page.
	for _, bytes := range []int{7900, 1} {
		var err error
		for err == nil {
			_, err = flood.Exec(t.Context(), `select pg_notify('flood', g || repeat('x', $1)) from generate_series(1, 20) g`, bytes)
		}
		if !errors.As(err, &pg) || pg.Code != codeProgramLimit {
			t.Fatalf("filling the queue ended with %v", err)
		}
	}
	return func() {
		pgtest.Exec(t, flood, `select pg_terminate_backend($1)`, blocker.PgConn().PID())
		// Asking for the usage makes the server clean up. Listeners ask with every
		// ping.
		eventually(t, "the queue is empty", func() bool {
			return pgtest.Query[float64](t, flood, `select pg_notification_queue_usage()`) == 0
		})
	}
}

// stopNotifying makes COMMIT fail as it does when the queue is full. Before
// PostgreSQL 17 the queue has a fixed 8 GiB, which no test fills.
func stopNotifying(t *testing.T, url string) (resume func()) {
	conn := pgtest.Dial(t, url)
	pgtest.Exec(t, conn, `
		create function queue_full() returns trigger language plpgsql as $$
		begin raise 'too many notifications in the NOTIFY queue' using errcode = 'program_limit_exceeded'; end $$;
		create constraint trigger queue_full after insert on fanfare.channel_frames
			deferrable initially deferred for each row execute function queue_full()`)
	return func() { pgtest.Exec(t, conn, `drop trigger queue_full on fanfare.channel_frames`) }
}
