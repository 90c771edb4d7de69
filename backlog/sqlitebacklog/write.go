package sqlitebacklog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fanfare-io/fanfare/backlog"
)

// exclusively runs work in a transaction of its own, in turn with the committer,
// and commits it unless work returns an error. work may be run twice, see
// transact. ctx bounds the wait for the turn;
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

// transact runs work in a transaction, and once more in another one if COMMIT
// meets an error of the disk. An error means that this process sees nothing of
// either; a *commitError that is unknown, that a restart may.
//
// Such an unknown error may come when all pages of the transaction, with the mark of the
// commit, are in the log, so they may get to the disk. But SQLite has rolled back
// by then: no connection sees what is behind the end of the log that they share in
// memory (PATH-shm), which moves after the flush, and the next transaction is
// written over it. So if that does the same and succeeds, everything is there
// once. If the process ends in between, the next one finds in the log the first
// transaction, or the second, or neither, never both: each page's checksum covers
// all pages before it, so none of the first counts behind one of the second. To
// callers that is an end in the middle of a COMMIT like any other. The flush that
// succeeds covers the pages of the one that failed, which are written again.
//
// There is no second time if the connection had to be discarded. The end of the
// log would be read from the file if no other connection had it open, and what
// is behind it would count.
func (s *Store) transact(ctx context.Context, conn *sql.Conn, work func() error) error {
	usable, err := s.transactOnce(ctx, conn, work)
	var first *commitError
	if !errors.As(err, &first) || !usable {
		return err
	}
	if _, err = s.transactOnce(ctx, conn, work); err != nil && first.unknown {
		// Whatever it met: the first one may not have been written over.
		return &commitError{fmt.Errorf("%w; again: %w", first.err, err), true}
	} else if err != nil {
		return err
	}
	s.logger.Warn("the disk failed a commit, which was then made again", "file", s.path, "error", first)
	return nil
}

// transactOnce runs work between BEGIN and COMMIT. After an error this process
// sees nothing of the transaction, unless the files are gone; usable is then
// whether another one may follow.
func (s *Store) transactOnce(ctx context.Context, conn *sql.Conn, work func() error) (usable bool, err error) {
	defer func() { s.noteDamage(err) }()
	if err := s.checkFiles(); err != nil {
		return false, fmt.Errorf("%w: %w", backlog.ErrUnavailable, err)
	}
	if err := s.begin(ctx, conn); err != nil {
		return true, err
	}
	if err = work(); err == nil {
		if _, err = conn.ExecContext(ctx, "commit"); err == nil {
			return s.committed()
		}
		if primaryCode(err) == sqlite3.SQLITE_IOERR {
			err = newDiskError(err)
		} else {
			err = fmt.Errorf("commit: %w", err)
		}
	}
	return s.rollback(ctx, conn), err
}

// committed makes sure, before anybody is answered, that the files which got a
// transaction are those that the next process will open.
func (s *Store) committed() (usable bool, err error) {
	if err := s.checkFiles(); err != nil {
		return false, &commitError{err, true}
	}
	return true, nil
}

// rollback ends a failed transaction, which SQLite may have ended by itself. It
// reports whether the connection is still there.
func (s *Store) rollback(ctx context.Context, conn *sql.Conn) bool {
	_, err := conn.ExecContext(ctx, "rollback")
	if err == nil || code(err) == sqlite3.SQLITE_ERROR || s.cfg.inMemory() { // ERROR: there is none
		return true
	}
	// A connection that is stuck in a transaction would fail all that follow.
	s.committer.closeStatements(conn)
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	return false
}
