package servicetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
)

// What other sessions of a database do to Fanfare, on purpose or not. All of it
// needs SQL. Returned functions end it; a session that was ended has ended it, too,
// which is no error.

// HoldStream has a transaction hold the row of a stream, which must exist, as one
// does that has published to it and is not over.
func (db Database) HoldStream(ctx context.Context, s backlog.StreamName) (release func(), err error) {
	return db.hold(ctx, "select from fanfare.streams where channel = $1 and scope = $2 for update", s.Channel, s.Scope)
}

// HoldCreation has a transaction publish the first frame of a stream, which must
// not exist, and roll back at the end.
func (db Database) HoldCreation(ctx context.Context, s backlog.StreamName) (release func(), err error) {
	return db.hold(ctx, "select from fanfare.publish($1, $2, 'rolled back')", s.Channel, s.Scope)
}

// hold executes a statement, which returns one row, in a transaction that stays
// open.
func (db Database) hold(ctx context.Context, statement string, args ...any) (release func(), err error) {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return nil, err
	}
	end := func() { closeSession(conn) }
	if _, err = conn.Exec(ctx, "begin"); err == nil {
		err = conn.QueryRow(ctx, statement, args...).Scan()
	}
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

func closeSession(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// HoldNotifyLock has a foreign commit hold the lock that all commits with
// notifications take, because a standby that does not exist is to confirm it. The
// server must be the test's own, and not be restarted before the release.
func (db Database) HoldNotifyLock(ctx context.Context) (release func() error, err error) {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return nil, err
	}
	if _, err = conn.Exec(ctx, "create table if not exists public.foreign_table (n int)"); err == nil {
		err = db.demandStandby(ctx, "'nobody'")
	}
	if err != nil {
		closeSession(conn)
		return nil, err
	}
	var enough atomic.Bool
	committed := make(chan struct{})
	go func() { // again until one waits: the server applies the setting a little later
		defer close(committed)
		defer closeSession(conn)
		var err error // it fails if somebody ends the session, which lets the lock go
		for err == nil && !enough.Load() {
			_, err = conn.Exec(context.WithoutCancel(ctx), "with n as (insert into public.foreign_table values (1) returning pg_notify('foreign', '')) select from n")
		}
	}()
	return func() error {
		enough.Store(true)
		err := db.demandStandby(context.WithoutCancel(ctx), "default")
		if err == nil {
			<-committed
		}
		return err
	}, nil
}

// demandStandby sets which standbys have to confirm commits.
func (db Database) demandStandby(ctx context.Context, names string) error {
	return db.Try(ctx, "set the standbys", func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "alter system set synchronous_standby_names = "+names); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "select pg_reload_conf()")
		return err
	})
}

// Try does something on a session of its own, again and again while it fails,
// because others end sessions and servers meanwhile.
func (db Database) Try(ctx context.Context, what string, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	for {
		err := db.try(ctx, do)
		if err == nil {
			return nil
		}
		if pause(ctx, 20*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

func (db Database) try(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return err
	}
	defer closeSession(conn)
	return do(ctx, conn)
}

// KillBackends terminates the sessions whose application_name matches a pattern, of
// which there must be one, and returns how many they were.
func (db Database) KillBackends(ctx context.Context, pattern string) (n int, err error) {
	err = db.Try(ctx, "terminate "+pattern, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_stat_activity
			where pid <> pg_backend_pid() and backend_type = 'client backend' and application_name ~ $1`, pattern).Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("there is no such session")
		}
		return err
	})
	return n, err
}

// CrashBackend kills one session's process, which has the server end all the
// others and recover, and waits until it has. Needs a server on this machine.
func (db Database) CrashBackend(ctx context.Context) error {
	err := db.Try(ctx, "crash a backend", func(ctx context.Context, witness *pgx.Conn) error {
		conn, err := pgx.Connect(ctx, db.URL)
		if err != nil {
			return err
		}
		defer closeSession(conn)
		if err := syscall.Kill(int(conn.PgConn().PID()), syscall.SIGKILL); err != nil {
			return err
		}
		for witness.Ping(ctx) == nil {
			pause(ctx, time.Millisecond)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return db.Try(ctx, "reach the server after a crash", func(ctx context.Context, conn *pgx.Conn) error { return conn.Ping(ctx) })
}

// ListenerConnections returns how many each replica has, by application_name.
func (db Database) ListenerConnections(ctx context.Context) (connections map[string]int, err error) {
	err = db.Try(ctx, "count the listeners", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select application_name, count(*)::int from pg_stat_activity where application_name like 'fanfare-listen/%' group by 1")
		if err != nil {
			return err
		}
		connections = map[string]int{}
		var replica string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&replica, &n}, func() error { connections[replica] = n; return nil })
		return err
	})
	return connections, err
}
