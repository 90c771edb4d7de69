package sqlitebacklog

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fanfare-io/fanfare/backlog"
)

// code returns SQLite's extended result code of err, 0 if it is not SQLite's.
func code(err error) int {
	var failed *sqlite.Error
	if !errors.As(err, &failed) {
		return 0
	}
	return failed.Code()
}

// primaryCode returns SQLite's result code of err without its extension.
func primaryCode(err error) int { return code(err) & 0xff }

// commitError is what COMMIT met when everything before had succeeded: an error of
// the disk, or that the files are gone.
type commitError struct {
	err error
	// unknown: what should have been committed may be on the disk, now or when the
	// files are put back.
	unknown bool
}

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// newDiskError makes a commitError of what SQLite returned.
//
// A transaction is on the disk once its last page, which carries the mark of the
// commit, is in the write-ahead log and the log has been flushed. An error of a
// write means that the mark is not there, or not whole: nothing is written after
// it, and the flush comes last. (SQLite pads the log after the mark on disks that
// spoil what is next to a write when power fails; it takes them not to, unless the
// file's name has psow=0.) Any other error may come from the flush: whether the
// mark is on the disk is then unknown, until a transaction has written over it or
// a restart has found it.
func newDiskError(err error) *commitError {
	return &commitError{err: err, unknown: code(err) != sqlite3.SQLITE_IOERR_WRITE}
}

// writeError is what a transaction that did not succeed returns. Errors that are
// not SQLite's are outcomes, and stay as they are.
//
// SQLITE_FULL is an error of a write, too. A limit of the size of files, or a
// quota, is none that SQLite tells apart from others.
func writeError(what string, err error) error {
	var atCommit *commitError
	if errors.As(err, &atCommit) && atCommit.unknown {
		return fmt.Errorf("%w: %s: %w", backlog.ErrOutcomeUnknown, what, err)
	}
	switch primaryCode(err) {
	case 0:
		return err
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w: %s: %w", backlog.ErrDiskFull, what, err)
	}
	return fmt.Errorf("%w: %s: %w", backlog.ErrUnavailable, what, err)
}

// isAboutData reports whether a transaction failed for a reason that may lie in
// what one of its publications contains or touches.
func isAboutData(err error) bool {
	switch primaryCode(err) {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return true
	}
	return false
}
