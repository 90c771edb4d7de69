package pgbacklog

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
)

// A fate is what became of a transaction.
type fate uint8

const (
	// fateCommitted: the outcomes say what became of each item.
	fateCommitted fate = iota
	// fateNotSent: there was no connection. Nothing was stored, and what waits
	// would fare no better.
	fateNotSent
	// fateLocked: rolled back because another transaction held a lock.
	fateLocked
	// fateData: rolled back, possibly because of what one item contains.
	fateData
	// fateRefused: rolled back for a reason that concerns no item in particular.
	fateRefused
	// fateUnknown: sent, and then nothing more was heard, or not enough.
	fateUnknown
)

func (f fate) String() string {
	return [...]string{"committed", "not sent", "locked", "data", "refused", "unknown"}[f]
}

// notSentError says that there was no connection to send a transaction on.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// beginError is what a transaction failed with before its statement.
type beginError struct{ err error }

func (e *beginError) Error() string { return "begin: " + e.err.Error() }
func (e *beginError) Unwrap() error { return e.err }

// commitError is what COMMIT failed with, when everything before had succeeded.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// errRolledBack: COMMIT answered that the transaction was rolled back.
var errRolledBack = errors.New("the transaction was rolled back")

// errOutOfTime: the statement exceeded the limit that its callers' deadlines set.
// It was rolled back.
var errOutOfTime = errors.New("the callers' deadlines left no more time")

// Codes of errors, by the names of PostgreSQL's manual, appendix A.
const (
	codeReadOnly           = "25006" // read_only_sql_transaction
	codeSerializationError = "40001" // serialization_failure
	codeCompletionUnknown  = "40003" // statement_completion_unknown
	codeDiskFull           = "53100" // disk_full
	codeProgramLimit       = "54000" // program_limit_exceeded
	codeQueryCanceled      = "57014" // query_canceled
)

// judge says what became of a transaction that ended with err, and what callers
// are told about it.
func judge(err error) (fate, error) {
	var notSent *notSentError
	var refused *refusedError
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return fateCommitted, nil
	case errors.As(err, &refused):
		return fateCommitted, refused.err // an answer
	case errors.As(err, &notSent):
		return fateNotSent, unavailable(err)
	case errors.Is(err, errOutOfTime):
		return fateLocked, unavailable(err)
	case errors.Is(err, errRolledBack):
		return fateRefused, unavailable(err)
	case !errors.As(err, &pg) || pg.SeverityUnlocalized != "ERROR" || strings.HasPrefix(pg.Code, "08"):
		// Class 08 comes from poolers that have lost the server. FATAL ends the
		// session, possibly between the commit and its answer.
		return fateUnknown, fmt.Errorf("%w: %w", backlog.ErrOutcomeUnknown, err)
	}
	return judgeError(pg, err)
}

// judgeError judges an error of severity ERROR: the server has rolled back.
func judgeError(pg *pgconn.PgError, err error) (fate, error) {
	var atCommit *commitError
	switch pg.Code {
	case codeLockNotAvailable, codeDeadlockDetected, codeSerializationError:
		return fateLocked, unavailable(err)
	case codeCompletionUnknown:
		return fateUnknown, fmt.Errorf("%w: %w", backlog.ErrOutcomeUnknown, err)
	case codeDiskFull:
		return fateRefused, fmt.Errorf("%w: %w", backlog.ErrDiskFull, err)
	case codeProgramLimit:
		// Notifications enter their queue at the commit.
		if errors.As(err, &atCommit) {
			return fateRefused, fmt.Errorf("%w: %w", backlog.ErrNotificationQueueFull, err)
		}
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "21", "22", "23", "40", "44", "54", "P0", "XX", "FN":
		// XX: a damaged page of one stream must not stop the others.
		return fateData, fmt.Errorf("the database refused the frame: %w", err)
	}
	return fateRefused, unavailable(err)
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", backlog.ErrUnavailable, err) }

// unlessLost returns the error of a start, as backlog.ErrUnavailable if the
// connection was lost or refused meanwhile: whoever starts waits for the server then,
// and gives up for any other reason.
func unlessLost(err error) error {
	var pg *pgconn.PgError
	var network *net.OpError
	switch {
	case err == nil, errors.Is(err, backlog.ErrUnavailable):
		return err
	case errors.As(err, &pg):
		if !endsSessions(pg.Code) {
			return err
		}
		return unavailable(err)
	case isTLSAlert(err):
		return err // the server has answered, and will so again
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, driver.ErrBadConn), errors.Is(err, pgconn.ErrConnClosed): // lost before
		return unavailable(err)
	}
	return err
}

// endsSessions reports whether a server sends the code because of its own state, and
// may soon accept what it refused: it shuts down, starts, has crashed, has no room for
// a session, or a pooler has lost it.
func endsSessions(code string) bool {
	return code != codeProtocolViolation && (strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53"))
}

// isTLSAlert reports whether the server refused the TLS session, as it does one whose
// client certificate it does not trust.
func isTLSAlert(err error) bool {
	// crypto/tls has no other sign of an alert of the other side.
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "remote error"
}
