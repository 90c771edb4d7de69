package pgbacklog

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// Errors that _publish raises for an atomic batch.
const (
	codeKeyConflict       = "FN001"
	codeExpectationFailed = "FN002"
	codePartlyDuplicate   = "FN003"
	codeExhausted         = "FN004"
)

// publishBatch publishes all of batch or nothing, in a transaction of its own;
// see backlog.Store. It returns at the latest when ctx ends. A batch of unknown
// outcome is retried if every frame has a key.
func (c *committer) publishBatch(ctx context.Context, batch []backlog.Publication) ([]backlog.Outcome, error) {
	items := make([]*item, len(batch))
	keyed := true
	for i, p := range batch {
		items[i] = newItem(p, nil)
		keyed = keyed && p.IdempotencyKey != ""
	}
	var results []result
	err := c.direct(ctx, c.batchSlots, keyed, func(ctx context.Context, conn *pgxpool.Conn, lockTimeout time.Duration) (err error) {
		results, err = c.publish(ctx, conn, modeAtomic, items, lockTimeout)
		return batchRefusal(err)
	})
	if err != nil {
		return nil, err
	}
	outcomes := make([]backlog.Outcome, len(results))
	for i, r := range results {
		if outcomes[i], err = r.outcome(); err != nil {
			return nil, &backlog.BatchError{Index: i, Err: err}
		}
	}
	return outcomes, nil
}

// refusedError is an outcome of a transaction of the caller's own: it was rolled
// back, and err says why.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }

// batchRefusal turns the errors by which _publish refuses an atomic batch into
// a *refusedError and returns others as they are.
func batchRefusal(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case codePartlyDuplicate:
		return &refusedError{backlog.ErrPartlyDuplicate}
	case codeKeyConflict, codeExpectationFailed, codeExhausted:
		var detail struct {
			Index    int
			Status   int16
			Epoch    int64 // absent or null: 0
			Sequence int64
		}
		if json.Unmarshal([]byte(pg.Detail), &detail) != nil {
			return err
		}
		return &refusedError{&backlog.BatchError{Index: detail.Index, Err: refusal(detail.Status, position(detail.Epoch, detail.Sequence))}}
	}
	return err
}

// directFunc runs one transaction on conn.
type directFunc func(ctx context.Context, conn *pgxpool.Conn, lockTimeout time.Duration) error

// slots bound the transactions of a kind that run at a time: each sends an
// element, and receives one when it is done.
type slots chan struct{}

// take waits for a slot, and returns how much time a caller needs for its first
// attempt.
func (s slots) take(ctx context.Context) (time.Duration, error) {
	select {
	case s <- struct{}{}:
		return minAttemptTime, nil
	default:
	}
	select {
	case s <- struct{}{}:
		return minRetryTime, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// direct runs a transaction for one caller, in one of the slots, until it is
// committed or refused or ctx ends. It is retried while locks are in its way, and, if repeatable is
// true, while its outcome is unknown, for the retry timeout at most if ctx has
// no deadline.
func (c *committer) direct(ctx context.Context, slots slots, repeatable bool, run directFunc) error {
	needed, err := slots.take(ctx)
	if err != nil {
		return err
	}
	defer func() { <-slots }()
	var l line // for its pauses
	unresolved := false
	certain := func(err error) error {
		if unresolved {
			return backlog.ErrOutcomeUnknown
		}
		return err
	}
	for {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < needed {
			return certain(context.DeadlineExceeded)
		}
		needed = minRetryTime
		start := time.Now()
		f, err := c.attempt(ctx, run)
		l.learn(f, 1)
		switch {
		case f == fateCommitted:
			return err
		case f == fateUnknown && !repeatable:
			return backlog.ErrOutcomeUnknown
		case f == fateUnknown && !unresolved:
			unresolved = true
			var cancel context.CancelFunc
			ctx, cancel = withDefaultTimeout(ctx, c.cfg.RetryTimeout)
			defer cancel()
		case f == fateLocked, f == fateUnknown, unresolved && f != fateData: // again
		case ctx.Err() != nil:
			return certain(ctx.Err())
		default:
			return certain(err)
		}
		if !pause(ctx, l.pause(time.Since(start))) {
			return certain(ctx.Err())
		}
	}
}

// withDefaultTimeout gives ctx a deadline if it has none.
func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// attempt runs one transaction. A *refusedError counts as committed: it is an
// answer.
func (c *committer) attempt(ctx context.Context, run directFunc) (fate, error) {
	conn, err := c.acquire(ctx)
	if err != nil {
		return judge(err)
	}
	defer conn.Release()
	if err := ctx.Err(); err != nil {
		return judge(&notSentError{err})
	}
	var lockTimeout time.Duration
	if deadline, ok := ctx.Deadline(); ok {
		lockTimeout = waitUnder(time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	err = run(ctx, conn, lockTimeout)
	if refused := (*refusedError)(nil); errors.As(err, &refused) {
		return fateCommitted, refused.err
	}
	return judge(err)
}
