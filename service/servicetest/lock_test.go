package servicetest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// Each fault is there until its release, and gone after.

// holds checks that a statement fails while something is held and works after.
func holds(t *testing.T, db Database, statement string, hold func() (release func(), err error)) {
	t.Helper()
	conn := pgtest.Dial(t, db.URL)
	pgtest.Exec(t, conn, "set lock_timeout = '200ms'")
	try := func() error { _, err := conn.Exec(t.Context(), statement); return err }
	release, err := hold()
	if err != nil {
		t.Fatal(err)
	}
	if err := try(); err == nil {
		t.Error("nothing is held")
	}
	release()
	deadline := time.Now().Add(readyTimeout)
	for err := try(); err != nil; err = try() {
		if time.Now().After(deadline) {
			t.Fatalf("it is still held: %v", err)
		}
	}
}

func TestHeldLocks(t *testing.T) {
	db := NewPostgreSQL(t)
	Start(t, db.URL)
	s := backlog.StreamName{Channel: "c", Scope: "s"}
	db.PublishSQL(t, s, "first")
	t.Run("a stream", func(t *testing.T) {
		holds(t, db, "select fanfare.publish('c', 's', '')", func() (func(), error) { return db.HoldStream(t.Context(), s) })
	})
	t.Run("a creation", func(t *testing.T) {
		other := backlog.StreamName{Channel: "c", Scope: "new"}
		holds(t, db, "select fanfare.publish('c', 'new', '')", func() (func(), error) { return db.HoldCreation(t.Context(), other) })
		if n := pgtest.Query[int](t, pgtest.Dial(t, db.URL), "select head::int from fanfare.streams where scope = 'new'"); n != 1 {
			t.Errorf("the head is %d: what was held has been committed", n)
		}
	})
	t.Run("the notify lock", func(t *testing.T) {
		// Without the flush that waits for the standby: only the lock is in the way.
		holds(t, db, "set synchronous_commit = local; notify x", func() (func(), error) {
			release, err := db.HoldNotifyLock(t.Context())
			if err == nil {
				awaitStandbyWait(t, db)
			}
			return func() {
				if err := release(); err != nil {
					t.Error(err)
				}
			}, err
		})
	})
}

func awaitStandbyWait(t *testing.T, db Database) {
	t.Helper()
	conn := pgtest.Dial(t, db.URL)
	deadline := time.Now().Add(readyTimeout)
	for !pgtest.Query[bool](t, conn, "select exists (select from pg_stat_activity where wait_event = 'SyncRep')") {
		if time.Now().After(deadline) {
			t.Fatal("no commit waits for the standby")
		}
	}
}

func TestEndedSessions(t *testing.T) {
	db := NewPostgreSQL(t)
	replica := Start(t, db.URL)
	connections, err := db.ListenerConnections(t.Context())
	if name := "fanfare-listen/" + replica.Instance; err != nil || len(connections) != 1 || connections[name] != 1 {
		t.Errorf("the listeners are %v, %v", connections, err)
	}
	victim, other := pgtest.Dial(t, db.URL+"&application_name=victim-1"), pgtest.Dial(t, db.URL)
	alive := func(conn *pgx.Conn) bool { _, err := conn.Exec(t.Context(), "select"); return err == nil }
	if n, err := db.KillBackends(t.Context(), "^victim-"); n != 1 || err != nil {
		t.Errorf("%d sessions were ended, %v", n, err)
	}
	if alive(victim) || !alive(other) {
		t.Error("another session was ended than the one that was named")
	}
	if err := db.CrashBackend(t.Context()); err != nil {
		t.Error(err)
	}
	err = db.Try(t.Context(), "connect", func(ctx context.Context, conn *pgx.Conn) error { return conn.Ping(ctx) })
	if err != nil || alive(other) {
		t.Errorf("after a crash the server is not there, or a session has survived it: %v", err)
	}
}
