package sqlitebacklog

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/fanfare-io/fanfare/backlog"
)

// reading is what the reading half of a Store keeps.
type reading struct {
	lanes      lanes
	statements readStatements
	policies   policyCache
}

// readStatements are prepared on each connection of the reader once.
type readStatements struct {
	streams, retired, young, origins                    *sql.Stmt
	newestSizes, oldestSizes, frames                    *sql.Stmt
	listAll, listChannel, candidates, windows, readable *sql.Stmt
}

// openReading prepares what reads need. Open calls it last, when there is a
// database of this version.
func (s *Store) openReading(ctx context.Context) error {
	r := &s.reading.statements
	for _, p := range []struct {
		statement **sql.Stmt
		sql       string
	}{
		{&r.streams, streamsSQL}, {&r.retired, retiredSQL}, {&r.young, youngSQL}, {&r.origins, originsSQL},
		{&r.newestSizes, newestSizesSQL}, {&r.oldestSizes, oldestSizesSQL}, {&r.frames, framesSQL},
		{&r.listAll, listAllSQL}, {&r.listChannel, listChannelSQL}, {&r.candidates, candidatesSQL},
		{&r.windows, sweepWindowsSQL}, {&r.readable, readableSQL},
	} {
		var err error
		if *p.statement, err = s.reader.PrepareContext(ctx, p.sql); err != nil {
			return err
		}
	}
	return s.loadPolicies(ctx)
}

// snapshot is a read transaction: all its statements see the database as it was
// when the first of them began, whatever is committed meanwhile.
type snapshot struct {
	tx         *sql.Tx
	statements *readStatements
}

// read runs do in a snapshot. It waits for its turn in a lane, and never for a
// writer: in WAL mode those who read and who writes do not wait for each other.
// Only in memory there is one connection for both. what is for the error.
func (s *Store) read(ctx context.Context, lane lane, what string, do func(*snapshot) error) error {
	err := s.readInLane(ctx, lane, do)
	if err != nil {
		s.noteDamage(err)
		return readError(ctx, what, err)
	}
	return nil
}

func (s *Store) readInLane(ctx context.Context, lane lane, do func(*snapshot) error) error {
	if err := lane.enter(ctx); err != nil {
		return err
	}
	defer lane.leave()
	tx, err := s.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	// A rollback ends a transaction that has only read, and cannot fail usefully.
	defer tx.Rollback()
	return do(&snapshot{tx: tx, statements: &s.reading.statements})
}

// readError is what a failed read returns: the context's error if that ended,
// otherwise backlog.ErrUnavailable.
func readError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	return fmt.Errorf("%w: %s: %w", backlog.ErrUnavailable, what, err)
}

// each runs a statement and calls do for each row, which has been scanned into
// into.
func (n *snapshot) each(ctx context.Context, statement *sql.Stmt, args, into []any, do func() error) error {
	rows, err := n.tx.StmtContext(ctx, statement).QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := do(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// asked is what a statement that works on many things at once is asked: a tuple
// of values for each of them.
type asked[T any] struct {
	tuples [][]any
	of     []T // by index in tuples
}

func (a *asked[T]) add(of T, tuple ...any) {
	a.tuples = append(a.tuples, tuple)
	a.of = append(a.of, of)
}

// eachAsked runs a statement whose parameter is a's tuples, and calls do for each
// row with what it is about: its first column is the index of a tuple, the others
// have been scanned into into. It does nothing if nothing is asked.
//
// The parameter is an array of arrays in JSON, which has all integers of 64 bits
// and all texts that are valid UTF-8.
func eachAsked[T any](ctx context.Context, n *snapshot, statement *sql.Stmt, a *asked[T], into []any, do func(of T) error) error {
	if len(a.tuples) == 0 {
		return nil
	}
	parameter, err := json.Marshal(a.tuples)
	if err != nil {
		return err
	}
	var i int
	return n.each(ctx, statement, []any{string(parameter)}, append([]any{&i}, into...), func() error { return do(a.of[i]) })
}

// checkOrigin refuses a read that is for another server. A store has one origin
// from its opening to its end.
func (s *Store) checkOrigin(origin uint64) error {
	if origin != 0 && origin != s.origin {
		return backlog.ErrOtherServer
	}
	return nil
}
