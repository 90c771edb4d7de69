package pgbacklog

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// directFunc runs one transaction on conn.
type directFunc func(ctx context.Context, conn *pgxpool.Conn, w waits) error

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

// direct runs a transaction for one caller until it is committed or refused, or
// is found to wait for a stream, or ctx ends, which has a deadline. It is
// attempted again, each time in one of the slots, while locks are in its way,
// and, if it is repeatable, while its outcome is unknown.
func (c *committer) direct(ctx context.Context, slots slots, it *item, run directFunc) error {
	var l line // for its pauses
	for first := true; ; first = false {
		needed, err := slots.take(ctx)
		if err != nil {
			return it.certain(err)
		}
		if !first {
			needed = minRetryTime
		}
		start := time.Now()
		f, err := c.attempt(ctx, needed, run)
		<-slots
		l.learn(f, 1)
		var held *heldError
		switch {
		case f == fateCommitted, errors.As(err, &held):
			return err
		case f == fateUnknown && !it.repeatable():
			return backlog.ErrOutcomeUnknown
		case f == fateUnknown:
			it.unresolved = true
		case errors.Is(err, errTooLate):
			return it.certain(context.DeadlineExceeded)
		case f == fateLocked, it.unresolved && f != fateData: // again
		case ctx.Err() != nil:
			return it.certain(ctx.Err())
		default:
			return it.certain(err)
		}
		if !pause(ctx, l.pause(time.Since(start))) {
			return it.certain(ctx.Err())
		}
	}
}

// errTooLate: the caller's deadline leaves no time for an attempt.
var errTooLate = errors.New("the deadline leaves no time for an attempt")

// attempt runs one transaction, if ctx leaves as much time as is needed.
func (c *committer) attempt(ctx context.Context, needed time.Duration, run directFunc) (fate, error) {
	deadline, bound := ctx.Deadline()
	if bound && time.Until(deadline) < needed {
		return judge(&notSentError{errTooLate})
	}
	conn, err := c.acquire(ctx)
	if err != nil {
		return judge(err)
	}
	defer conn.Release()
	if err := ctx.Err(); err != nil {
		return judge(&notSentError{err})
	}
	var w waits
	if bound {
		w.limit = waitUnder(time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	return judge(run(ctx, conn, w))
}

// withDefaultTimeout gives ctx a deadline if it has none.
func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// explainTimeout is what a caller without a deadline gets for err when the
// default one has passed: locked.
func explainTimeout(ctx context.Context, err, locked error) error {
	_, bound := ctx.Deadline()
	if !bound && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, backlog.ErrUnavailable) {
		return unavailable(locked)
	}
	return err
}
