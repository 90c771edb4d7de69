package servicetest

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// statementTimeout bounds what a Database executes.
const statementTimeout = 30 * time.Second

// Database is a database of a test's own, of one kind of store.
type Database struct {
	// URL is what Start takes.
	URL string
	// Server is the server of OnOwnServer; nil otherwise.
	Server *pgtest.Server

	store Store
}

// OnEachStore runs a test on every kind of store that has what it needs, each
// time as a subtest, named after the kind, on a new database. On the other kinds
// there is no subtest. needs may be nil.
func OnEachStore(t *testing.T, needs Needs, test func(t *testing.T, db Database)) {
	t.Helper()
	ran := false
	for _, s := range Stores {
		if !s.has(needs...) {
			continue
		}
		ran = true
		t.Run(s.Kind, func(t *testing.T) { test(t, newDatabase(t, s)) })
	}
	if !ran {
		t.Fatalf("no store has all of %v: nothing is tested", needs)
	}
}

func newDatabase(t *testing.T, s Store) Database {
	t.Helper()
	if s.Kind == PostgreSQL {
		return Database{URL: pgtest.NewDatabase(t), store: s}
	}
	return Database{URL: sqlitePrefix + filepath.Join(t.TempDir(), "fanfare.db"), store: s}
}

// NewPostgreSQL returns a database on PostgreSQL, on a server of its own.
func NewPostgreSQL(t testing.TB, settings ...string) Database {
	t.Helper()
	server := pgtest.Start(t, settings...)
	return Database{URL: server.NewDatabase(t), Server: server, store: Stores[0]}
}

// OnOwnServer returns a database that the test shares with nobody: on a server of
// its own, with settings as pgtest.Start takes them, where the store has servers;
// otherwise db itself.
func (db Database) OnOwnServer(t *testing.T, settings ...string) Database {
	t.Helper()
	if db.store.Kind == PostgreSQL {
		db.Server = pgtest.Start(t, settings...)
		db.URL = db.Server.NewDatabase(t)
	}
	return db
}

// Kind is the kind of store.
func (db Database) Kind() string { return db.store.Kind }

// Has reports whether the store has a capability.
func (db Database) Has(c Capability) bool { return db.store.has(c) }

// File is the path of the database's file. Needs File.
func (db Database) File() string { return strings.TrimPrefix(db.URL, sqlitePrefix) }

// PublishSQL publishes a frame as an application does, in a transaction of its
// own. Needs SQL.
func (db Database) PublishSQL(t testing.TB, s backlog.StreamName, payload string) (p backlog.Position) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), statementTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a connection for one statement
	err = conn.QueryRow(ctx, "select epoch, sequence from fanfare.publish($1, $2, $3)", s.Channel, s.Scope, []byte(payload)).
		Scan(&p.Epoch, &p.Sequence)
	if err != nil {
		t.Fatalf("publish by SQL: %v", err)
	}
	return p
}

// SetHead makes the head of an existing stream sequence, without its earlier
// frames, as if it had been trimmed. No subscription of the stream may be open
// or lingering.
func (db Database) SetHead(t testing.TB, s backlog.StreamName, sequence uint64) {
	t.Helper()
	db.exec(t, "delete from channel_frames where stream_id = (select stream_id from streams where channel = $1 and scope = $2)", s.Channel, s.Scope)
	db.exec(t, "update streams set head = $1, floor = $1, floor_origin = head_origin, stored_bytes = 0 where channel = $2 and scope = $3",
		int64(sequence), s.Channel, s.Scope)
}

// StepClock makes everything stored look as if the store's clock had been
// stepped by d since. No replica may run.
func (db Database) StepClock(t testing.TB, d time.Duration) {
	t.Helper()
	if err := db.TryStepClock(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// TryStepClock is StepClock for other goroutines than the test's, and while
// applications publish by SQL.
func (db Database) TryStepClock(ctx context.Context, d time.Duration) error {
	if db.store.Kind == SQLite {
		for _, shift := range clockShifts("%s - $1") {
			if err := db.tryExec(ctx, shift, d.Microseconds()); err != nil {
				return err
			}
		}
		return nil
	}
	return db.Try(ctx, "step the clock", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local search_path = fanfare"); err != nil {
				return err
			}
			for _, shift := range clockShifts("%s - $1::bigint * interval '1 microsecond'") {
				if _, err := tx.Exec(ctx, shift, d.Microseconds()); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// clockShifts are statements that shift all times in the store.
func clockShifts(shift string) (statements []string) {
	for table, columns := range map[string][]string{
		"channel_frames":   {"created"},
		"streams":          {"created", "updated", "closed_at"},
		"retired_streams":  {"created", "retired"},
		"idempotency_keys": {"created"},
	} {
		set := make([]string, len(columns))
		for i, c := range columns {
			set[i] = c + " = " + strings.ReplaceAll(shift, "%s", c)
		}
		statements = append(statements, "update "+table+" set "+strings.Join(set, ", "))
	}
	return statements
}

// exec executes a statement that names tables without the schema.
func (db Database) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	if err := db.tryExec(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

func (db Database) tryExec(ctx context.Context, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	run := db.execPostgreSQL
	if db.store.Kind == SQLite {
		run = db.execSQLite
	}
	if err := run(ctx, statement, args); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

func (db Database) execPostgreSQL(ctx context.Context, statement string, args []any) error {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a connection for one statement
	if _, err := conn.Exec(ctx, "set search_path = fanfare"); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement, args...)
	return err
}

func (db Database) execSQLite(ctx context.Context, statement string, args []any) error {
	conn, err := sql.Open("sqlite", "file:"+db.File()+"?_pragma=busy_timeout(30000)")
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // a connection for one statement
	_, err = conn.ExecContext(ctx, statement, args...)
	return err
}
