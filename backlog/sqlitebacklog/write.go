package sqlitebacklog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fanfare-io/fanfare/backlog"
)

// exclusively runs work in a transaction of its own, in turn with the committer,
// and commits it unless work returns an error. ctx bounds the wait for the turn;
// what has begun is finished, and work's context does not end: half a
// transaction would be rolled back for nothing. work keeps everybody's publishes
// waiting, so it must be short.
//
// Errors of SQLite become those of the store, others stay as they are.
func (s *Store) exclusively(ctx context.Context, work func(ctx context.Context, conn *sql.Conn) error) error {
	conn, err := s.writer.Conn(ctx)
	if err != nil {
		return turnError(ctx, err)
	}
	defer conn.Close() // gives the turn to the next
	ctx = context.WithoutCancel(ctx)
	err = s.transact(ctx, conn, func() error { return work(ctx, conn) })
	if err == nil {
		s.checkpoint(ctx, conn)
	}
	return writeError("write", err)
}

// turnError is why there was no connection to write on.
func turnError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: connect: %w", backlog.ErrUnavailable, err)
}

// transact runs work between BEGIN and COMMIT. IMMEDIATE takes SQLite's lock for
// writing first, so that a program which holds it is waited for here and not in
// the middle. After an error nothing is left of the transaction.
func (s *Store) transact(ctx context.Context, conn *sql.Conn, work func() error) error {
	if _, err := conn.ExecContext(ctx, "begin immediate"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	err := work()
	if err == nil {
		if _, err = conn.ExecContext(ctx, "commit"); err == nil {
			return nil
		}
		err = &commitError{err}
	}
	s.rollback(ctx, conn)
	return err
}

// rollback ends a failed transaction, which SQLite may have ended by itself.
func (s *Store) rollback(ctx context.Context, conn *sql.Conn) {
	_, err := conn.ExecContext(ctx, "rollback")
	if err == nil || code(err) == sqlite3.SQLITE_ERROR || s.cfg.inMemory() { // ERROR: there is none
		return
	}
	// A connection that is stuck in a transaction would fail all that follow.
	s.committer.closeStatements(conn)
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}
