package pgbacklog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

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
// outcome is retried if every durable frame has a key, and there is one: if they
// are duplicates then nothing is announced again, ephemeral frames neither.
func (c *committer) publishBatch(ctx context.Context, batch []backlog.Publication) ([]backlog.Outcome, error) {
	items := make([]*item, len(batch))
	var keys, keyless int
	var size int64
	var streams []backlog.StreamName
	for i, p := range batch {
		items[i] = newItem(p, nil)
		switch {
		case p.IdempotencyKey != "":
			keys++
		case !p.Ephemeral:
			keyless++
		}
		size += items[i].size + itemBytes
		streams = append(streams, p.Stream)
	}
	slices.SortFunc(streams, compareStreams)
	var results []result
	err := c.runCall(ctx, &call{
		streams:    slices.Compact(streams),
		size:       size,
		repeatable: keys > 0 && keyless == 0,
		run: func(ctx context.Context, conn *pgxpool.Conn, w waits) (err error) {
			results, err = c.publish(ctx, conn, modeAtomic, items, w)
			return batchRefusal(err)
		},
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

func compareStreams(a, b backlog.StreamName) int {
	return cmp.Or(strings.Compare(a.Channel, b.Channel), strings.Compare(a.Scope, b.Scope))
}
