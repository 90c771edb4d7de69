package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S104, symptom: all commits of the database queued behind one slow
// publisher. Cause: a transaction with a NOTIFY takes a lock of the whole cluster,
// and something slow stood between its statements: a client's upload, a client
// that left, the network. The database is 5 ms away here, clients upload at 1 kB
// a second and leave in mid-call: publishing goes on, no session of the service
// is ever seen idle in a transaction, and other tables' writers do not notice.
func TestSlowClientsHoldNoTransaction(t *testing.T) {
	needs := servicetest.Needs{servicetest.SQL, servicetest.Outages}
	servicetest.OnEachStore(t, needs, func(t *testing.T, db servicetest.Database) {
		proxy := pgtest.Proxy(t, db.URL)
		r := servicetest.Start(t, proxy.URL(db.URL), func(c *servicetest.Config) {
			c.ListenURL, c.MigrateURL = db.URL, db.URL
			// Its transactions, which have several round trips, do not notify. The first
			// sweep comes at a random moment of the interval.
			c.JanitorInterval = 10_000 * time.Hour
		})
		w := &world{t: t, db: db, a: r}
		w.exec(w.sql(), "create table unrelated (n bigint)")
		base := median(t, commits(t, w, func(n int) bool { return n < 200 }))
		proxy.Delay(5 * time.Millisecond)

		var during []time.Duration
		publishAmidSlowClients(t, r, func(g *errgroup.Group, done *atomic.Bool) {
			g.Go(func() error { return neverIdleInTransaction(t.Context(), db.URL, done) })
			g.Go(func() error {
				during = commits(t, w, func(int) bool { return !done.Load() })
				return nil
			})
		})
		t.Logf("an unrelated commit takes %s, alone %s", median(t, during), base)
		// The least that is told apart from a busy machine; an upload takes 100 s.
		if m, limit := median(t, during), max(2*base, form(2*time.Second, 20*time.Millisecond)); m > limit {
			t.Errorf("an unrelated commit takes %s, alone it took %s", m, base)
		}
	})
}

// commits writes to an unrelated table, one row a transaction, and returns how
// long each took.
func commits(t *testing.T, w *world, more func(n int) bool) (times []time.Duration) {
	conn, err := pgx.Connect(t.Context(), w.db.URL)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer conn.Close(context.Background()) //nolint:errcheck // a test's connection
	for n := 0; more(n); n++ {
		began := time.Now()
		if _, err := conn.Exec(t.Context(), "insert into unrelated values ($1)", n); err != nil {
			t.Error(err)
			return times
		}
		times = append(times, time.Since(began))
	}
	return times
}

func median(t *testing.T, times []time.Duration) time.Duration {
	t.Helper()
	if len(times) < 20 {
		t.Fatalf("only %d measurements", len(times))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// neverIdleInTransaction looks at the service's sessions until done.
func neverIdleInTransaction(ctx context.Context, url string, done *atomic.Bool) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a test's connection
	looks := 0
	for ; !done.Load(); looks++ {
		var idle string
		err := conn.QueryRow(ctx, `select coalesce(string_agg(application_name || ': ' || query, ', '), '') from pg_stat_activity
			where datname = current_database() and application_name like 'fanfare%' and state like 'idle in transaction%'`).Scan(&idle)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		if idle != "" {
			return fmt.Errorf("idle in a transaction: %s", idle)
		}
	}
	if looks < 20 {
		return fmt.Errorf("only %d looks at the sessions", looks)
	}
	return nil
}

// POSTGRES.md 36 with a whole replica, symptom: publishing stayed broken after
// the session that had filled the notification queue was gone. Cause: the server
// cleans the queue up when somebody asks for its usage. Publishers are told
// RESOURCE_EXHAUSTED, nothing is stored, and without anybody's help it works
// again. Before PostgreSQL 17 no test can fill the queue; COMMIT is then made to
// fail as it does.
func TestPublishersOutliveAFullQueue(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		db = db.OnOwnServer(t)
		block := failCommits
		if shortenQueue(t, db) {
			block = fillQueue
		}
		w := newWorld(t, db)
		s := stream("queue", "")
		publish(t, w.a, newFrame(s, "before"))
		r := subscribe(t, w.b, fromOldest(s))
		r.take(1)

		unblock := block(w)
		_, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: newFrame(s, "refused")})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the publish ended with %v", err)
		}
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetReason() != "NOTIFICATION_QUEUE_FULL" {
				t.Errorf("the reason is %s", info.GetReason())
			}
		}
		unblock()
		eventually(t, "publishing works again", func() bool {
			_, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: newFrame(s, "after")})
			if code := status.Code(err); code != codes.OK && code != codes.ResourceExhausted {
				t.Fatalf("the publish ended with %v", err)
			}
			return err == nil
		})
		f := r.take(1)[0]
		if f.GetPosition().GetSequence() != 2 || string(f.GetPayload()) != "after" {
			t.Errorf("delivered %q at %v", f.GetPayload(), f.GetPosition())
		}
	})
}

// shortenQueue makes the server's notification queue so short that it can be
// filled. It returns false before PostgreSQL 17, which cannot.
func shortenQueue(t *testing.T, db servicetest.Database) bool {
	admin := (&world{t: t, db: db}).sql()
	var version int
	if err := admin.QueryRow(t.Context(), "select current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version < 170000 {
		return false
	}
	if _, err := admin.Exec(t.Context(), "alter system set max_notify_queue_pages = 64"); err != nil {
		t.Fatal(err)
	}
	db.Server.Restart("fast")
	return true
}

// fillQueue fills the server's notification queue, which a session keeps full
// until the returned function ends it.
func fillQueue(w *world) (unblock func()) {
	blocker, flood := w.sql(), w.sql()
	w.exec(blocker, "listen flood")
	w.exec(blocker, "begin; select 1")
	var err error
	// First by much, then to the last page.
	for _, bytes := range []int{7900, 1} {
		for err = nil; err == nil; {
			_, err = flood.Exec(w.t.Context(), "select pg_notify('flood', g || repeat('x', $1)) from generate_series(1, 20) g", bytes)
		}
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "54000" {
		w.t.Fatalf("filling the queue ended with %v", err)
	}
	return func() { w.exec(flood, "select pg_terminate_backend($1)", blocker.PgConn().PID()) }
}

// failCommits makes COMMIT fail as with a full queue.
func failCommits(w *world) (unblock func()) {
	conn := w.sql()
	w.exec(conn, `
		create function queue_full() returns trigger language plpgsql as $$
		begin raise 'too many notifications in the NOTIFY queue' using errcode = 'program_limit_exceeded'; end $$;
		create constraint trigger queue_full after insert on fanfare.channel_frames
			deferrable initially deferred for each row execute function queue_full()`)
	return func() { w.exec(conn, "drop trigger queue_full on fanfare.channel_frames") }
}
