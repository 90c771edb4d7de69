package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fanfare-io/fanfare/backlog"
)

// errLocked: writes wait for a lock in vain. Fanfare's own never do.
var errLocked = errors.New("another program holds a lock on the file; end it, and let nobody write to the file while fanfare uses it")

// maxTurnWait is how long a ping waits for the writing connection.
const maxTurnWait = 100 * time.Millisecond

// begin begins a transaction that writes. IMMEDIATE takes SQLite's lock for writing
// first, so that a program which holds it is waited for here and not in the
// middle.
func (s *Store) begin(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "begin immediate")
	s.locked.Store(primaryCode(err) == sqlite3.SQLITE_BUSY)
	switch {
	case err == nil:
		return nil
	case s.locked.Load():
		return fmt.Errorf("begin: %w: %w", errLocked, err)
	}
	return fmt.Errorf("begin: %w", err)
}

// pingLocked fails while another program keeps the store from writing, which it
// finds out by itself once a transaction has failed for that reason: nobody may
// publish to a store that is not ready.
func (s *Store) pingLocked(ctx context.Context) error {
	if !s.locked.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxTurnWait)
	defer cancel()
	conn, err := s.writer.Conn(ctx)
	if err != nil { // whoever has it may be waiting for the lock
		return s.lockedError()
	}
	defer conn.Close()
	whole := context.WithoutCancel(ctx)
	s.setBusyTimeout(whole, conn, 0)
	defer s.setBusyTimeout(whole, conn, busyTimeout)
	if s.begin(whole, conn) == nil {
		s.rollback(whole, conn)
	}
	return s.lockedError()
}

// lockedError is what a ping returns if the last attempt to write met a lock.
func (s *Store) lockedError() error {
	if s.locked.Load() {
		return fmt.Errorf("%w: ping: %q: %w", backlog.ErrUnavailable, s.path, errLocked)
	}
	return nil
}
