package pgbacklog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// Outcomes of the schema's _close.
const (
	closeDone      = 0
	closeNothing   = 1 // closed before, or never existed
	closeUnwelcome = 3 // the head has another epoch
)

// closeStream closes a stream; see backlog.Store. It is not retried when its
// outcome is unknown, because it could close what was published in between.
func (c *committer) closeStream(ctx context.Context, stream backlog.StreamName, epoch *uint64) (backlog.CloseOutcome, error) {
	var expected *int64
	if epoch != nil {
		e := int64(*epoch)
		expected = &e
	}
	var outcome int16
	var headEpoch, headSequence int64
	err := c.runCall(ctx, &call{
		streams: []backlog.StreamName{stream},
		size:    itemBytes,
		run: func(ctx context.Context, conn *pgxpool.Conn, w waits) error {
			return c.transact(ctx, conn, w, []any{&outcome, &headEpoch, &headSequence}, c.closeSQL,
				stream.Channel, stream.Scope, expected, c.rowTimeoutMillis(w))
		},
	})
	if err != nil {
		return backlog.CloseOutcome{}, err
	}
	last := position(headEpoch, headSequence)
	switch outcome {
	case closeDone, closeNothing:
		return backlog.CloseOutcome{Last: last, AlreadyClosed: outcome == closeNothing}, nil
	case closeUnwelcome:
		return backlog.CloseOutcome{}, &backlog.ExpectationError{Head: last}
	default:
		return backlog.CloseOutcome{}, fmt.Errorf("the database answered with the unknown outcome %d", outcome)
	}
}
