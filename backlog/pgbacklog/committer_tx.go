package pgbacklog

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// Modes of the schema's _publish; migrations/00001_init.sql describes them.
const (
	modeBatch  = "batch"
	modeLane   = "lane"
	modeAtomic = "atomic"
)

// Casts let poolers without prepared statements work (default_query_exec_mode).
const (
	publishCall = "._publish($1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::boolean[], $11::text, $12::int)"
	closeCall   = "._close($1::text, $2::text, $3::bigint, $4::int)"
	awaitCall   = "._await_stream($1::text, $2::text, $3::int)"
	heldCall    = "._held_streams($1::text[], $2::text[])"
	prepareCall = "._remember_origin()"
)

// beginSQL pins the isolation level that the functions rely on, whatever the
// role's default is.
const beginSQL = "begin isolation level read committed"

// limitSQL bounds the statements that follow in the transaction, in
// milliseconds: lock_timeout alone bounds each of several waits. commitLockSQL
// sets how long COMMIT may wait for the lock of all notifying commits.
const (
	limitSQL      = "select set_config('statement_timeout', $1::text, true)"
	commitLockSQL = "select set_config('lock_timeout', $1::text, true)"
)

// A lock is waited for at most this long before an attempt is given up and
// repeated, and at most this part of deadlock_timeout, so that the deadlock
// detector never runs for Fanfare and never picks the application as its victim.
const (
	maxLockTimeout      = 800 * time.Millisecond
	deadlockTimeoutPart = 0.8
)

// callFunc runs one transaction. It calls take once there is a connection, so
// that callers can withdraw until then and what came meanwhile goes along. take
// returns the items, none for no transaction, and the longest wait for a lock
// that they allow, 0 for any. The results are those of the items, in order.
type callFunc func(ctx context.Context, mode string, take func() ([]*item, time.Duration)) ([]result, error)

// Statuses of an item, as _publish returns them.
const (
	statusStored     = 0
	statusDuplicate  = 1
	statusConflict   = 2
	statusUnexpected = 3
	statusExhausted  = 4
	statusBusy       = 5
	statusEphemeral  = 6
)

// result is what a committed transaction did with one item.
type result struct {
	status   int16
	position backlog.Position
}

func (r result) outcome() (backlog.Outcome, error) {
	if err := refusal(r.status, r.position); err != nil {
		return backlog.Outcome{}, err
	}
	if r.status == statusEphemeral {
		return backlog.Outcome{}, nil // the position is the head's
	}
	return backlog.Outcome{Position: r.position, Duplicate: r.status == statusDuplicate}, nil
}

// refusal is the error that a status stands for, nil if it is none.
func refusal(status int16, position backlog.Position) error {
	switch status {
	case statusStored, statusDuplicate, statusEphemeral:
		return nil
	case statusConflict:
		return &backlog.KeyConflictError{Position: position}
	case statusUnexpected:
		return &backlog.ExpectationError{Head: position}
	case statusExhausted:
		return backlog.ErrSequenceExhausted
	default:
		return fmt.Errorf("the database answered with the unknown status %d", status)
	}
}

// runPublish is the committer's callFunc. What was taken is finished even if
// ctx ends, within the call timeout.
func (c *committer) runPublish(ctx context.Context, mode string, take func() ([]*item, time.Duration)) ([]result, error) {
	conn, err := c.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	items, limit := take()
	if len(items) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.CallTimeout)
	defer cancel()
	if items[0].call != nil {
		return nil, c.runHeld(ctx, conn, items[0], limit)
	}
	w := waits{limit: limit}
	if mode == modeLane {
		w.rows = c.laneTimeout()
	} else if limit == 0 {
		return c.publishBatched(ctx, conn, items)
	}
	return c.publish(ctx, conn, mode, items, w)
}

// acquire returns a connection that works as far as the pool knows, and is
// prepared. Errors are *notSentError.
func (c *committer) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return nil, &notSentError{err}
	}
	if err := c.prepare(ctx, conn); err != nil {
		conn.Release()
		return nil, &notSentError{err}
	}
	return conn, nil
}

// preparedMark is the custom data of connections that prepare has seen.
const preparedMark = "fanfare.committer.prepared"

// prepare does what must be done once on each new connection: the server may
// have been restarted, or be another one. It makes the schema remember the
// server's origin, without which every publish computes it, and derives the lock
// timeout from the server's settings.
func (c *committer) prepare(ctx context.Context, conn *pgxpool.Conn) error {
	data := conn.Conn().PgConn().CustomData()
	if data[preparedMark] != nil {
		return nil
	}
	var deadlockMillis int64
	if err := c.transact(ctx, conn, waits{}, []any{&deadlockMillis}, c.prepareSQL); err != nil {
		return fmt.Errorf("prepare a connection: %w", err)
	}
	part := time.Duration(deadlockTimeoutPart * float64(time.Duration(deadlockMillis)*time.Millisecond))
	c.lockTimeout.Store(int64(max(min(part, maxLockTimeout), time.Millisecond)))
	data[preparedMark] = true
	return nil
}

// waits says how long a transaction may wait for locks. The zero value is what
// the server's settings allow.
type waits struct {
	// limit bounds each statement and each wait, 0: none.
	limit time.Duration
	// rows bounds the wait for each row, 0: as for other locks.
	rows time.Duration
	// first, if not nil, is waited for before the transaction holds any lock, for
	// firstRow at most, 0: as for other locks.
	first    *backlog.StreamName
	firstRow time.Duration
}

// lockTimeoutMillis is what the server is told; limit 0 means none.
func (c *committer) lockTimeoutMillis(limit time.Duration) int32 {
	d := time.Duration(c.lockTimeout.Load())
	if limit > 0 {
		d = min(d, limit)
	}
	return int32(max(d.Milliseconds(), 1)) // 0 would wait for ever
}

// rowTimeoutMillis is lockTimeoutMillis for rows.
func (c *committer) rowTimeoutMillis(w waits) int32 {
	if w.rows > 0 && (w.limit == 0 || w.rows < w.limit) {
		return c.lockTimeoutMillis(w.rows)
	}
	return c.lockTimeoutMillis(w.limit)
}

// publish runs one transaction with items.
func (c *committer) publish(ctx context.Context, conn *pgxpool.Conn, mode string, items []*item, w waits) ([]result, error) {
	p := newParameters(items)
	var status []int16
	var epoch, sequence []pgtype.Int8 // null for what was not stored
	err := c.transact(ctx, conn, w, []any{&status, &epoch, &sequence}, c.publishSQL,
		p.channel, p.scope, p.payload, p.contentType, p.eventType, p.headers, p.key, p.expected, p.expectedEpoch, p.ephemeral,
		mode, c.rowTimeoutMillis(w))
	if err != nil {
		return nil, err
	}
	if len(status) != len(items) || len(epoch) != len(items) || len(sequence) != len(items) {
		return nil, fmt.Errorf("the database answered for %d frames instead of %d", len(status), len(items))
	}
	results := make([]result, len(items))
	for i := range results {
		results[i] = result{status[i], position(epoch[i].Int64, sequence[i].Int64)}
	}
	return results, nil
}

func position(epoch, sequence int64) backlog.Position {
	return backlog.Position{Epoch: uint64(epoch), Sequence: uint64(sequence)}
}

// parameters are the arrays that _publish takes, one element an item.
type parameters struct {
	channel, scope, contentType, eventType []string
	payload                                [][]byte
	headers, key                           []*string
	expected, expectedEpoch                []*int64
	ephemeral                              []bool // nil if all are durable
}

func newParameters(items []*item) parameters {
	n := len(items)
	p := parameters{
		channel: make([]string, n), scope: make([]string, n), contentType: make([]string, n), eventType: make([]string, n),
		payload: make([][]byte, n),
		headers: make([]*string, n), key: make([]*string, n),
		expected: make([]*int64, n), expectedEpoch: make([]*int64, n),
	}
	for i, it := range items {
		pub := &it.publication
		p.channel[i], p.scope[i], p.contentType[i], p.eventType[i] = pub.Stream.Channel, pub.Stream.Scope, pub.ContentType, pub.EventType
		p.payload[i] = it.payload()
		p.headers[i], p.key[i], p.expected[i], p.expectedEpoch[i] = it.headers, it.key(), it.expected, it.expectedEpoch
		if pub.Ephemeral {
			if p.ephemeral == nil {
				p.ephemeral = make([]bool, n)
			}
			p.ephemeral[i] = true
		}
	}
	return p
}

// transact runs one statement that returns one row, in a transaction of its own
// and in one round trip. A statement that exceeds the limit of w is given up, with
// errOutOfTime; that the statement waits for rows as w says is the caller's part.
// A nil error means that the transaction was committed; judge says what others
// mean.
func (c *committer) transact(ctx context.Context, conn *pgxpool.Conn, w waits, row []any, sql string, args ...any) error {
	err := c.attend(ctx, conn, func() error { return c.transactOnce(ctx, conn, w, row, sql, args) })
	if w.limit > 0 && hasCode(err, codeQueryCanceled) {
		return fmt.Errorf("%w: %w", errOutOfTime, err)
	}
	return err
}

// attend runs a transaction on conn, and sees to it that what its error says about
// connections is taken into account.
func (c *committer) attend(ctx context.Context, conn *pgxpool.Conn, run func() error) error {
	err := run()
	if isStaleStatement(err) { // rolled back; it was prepared before a migration
		err = run()
	}
	if hasCode(err, codeReadOnly) || conn.Conn().IsClosed() && ctx.Err() == nil {
		// A server that was demoted or is a standby, whose name may lead to another
		// one by now; or one that has gone, and the other connections with it: on
		// them, what is sent next would have an unknown outcome.
		c.pool.Reset()
	}
	return err
}

func (c *committer) transactOnce(ctx context.Context, conn *pgxpool.Conn, w waits, row []any, sql string, args []any) error {
	if w.first != nil {
		w.limit /= 2 // of which the wait before the statement may take one half
	}
	var batch pgx.Batch
	batch.Queue(beginSQL)
	if w.limit > 0 {
		batch.Queue(limitSQL, strconv.FormatInt(max(w.limit.Milliseconds(), 1), 10)) // 0 would be no limit
	}
	if w.first != nil {
		batch.Queue(c.awaitSQL, w.first.Channel, w.first.Scope, c.rowTimeoutMillis(waits{limit: w.limit, rows: w.firstRow}))
	}
	before := batch.Len()
	batch.Queue(sql, args...)
	if w.rows > 0 {
		batch.Queue(commitLockSQL, strconv.Itoa(int(c.lockTimeoutMillis(w.limit))))
	}
	batch.Queue("commit")
	results := conn.SendBatch(ctx, &batch)
	err := readTransaction(results, before, batch.Len(), row)
	// Once COMMIT has been answered, what happens to the connection is of no
	// account to the transaction.
	_ = results.Close()
	if err != nil {
		rollback(ctx, conn)
	}
	return err
}

// readTransaction reads the results of some statements before the one that
// returns row, of that, and of what follows to COMMIT, the last of all.
func readTransaction(results pgx.BatchResults, before, all int, row []any) error {
	for range before {
		if _, err := results.Exec(); err != nil {
			return &beginError{err}
		}
	}
	if err := results.QueryRow().Scan(row...); err != nil {
		return err
	}
	for range all - before - 2 {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	tag, err := results.Exec()
	if err != nil {
		return &commitError{err}
	}
	if tag.String() != "COMMIT" {
		return errRolledBack
	}
	return nil
}

// rollback ends a failed transaction, so that the pool can keep the connection.
func rollback(ctx context.Context, conn *pgxpool.Conn) {
	if conn.Conn().IsClosed() || conn.Conn().PgConn().TxStatus() == 'I' {
		return
	}
	// If this fails, Release sees the connection's state and closes it.
	_, _ = conn.Exec(ctx, "rollback")
}
