package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
)

const (
	// admissionNeeds is what a store and a listener connect at once.
	admissionNeeds = 4
	// admissionTimeout bounds the wait for others who are being admitted: one that
	// stands still must not keep everybody out.
	admissionTimeout = 3 * time.Second
	// admissionPause is between attempts to be the next.
	admissionPause = 25 * time.Millisecond
)

// admissionLockSQL: 7 tells this lock from the schema's other advisory locks. It is of
// the transaction, which a pooler takes for a whole.
const admissionLockSQL = `select pg_try_advisory_xact_lock(hashtextextended($1::text, 7))`

// freeConnectionsSQL counts as any role may: pg_stat_activity says less of others'.
const freeConnectionsSQL = `
select m.allowed, m.allowed - (select coalesce(sum(numbackends), 0) from pg_stat_database)::int
  from (select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
               - coalesce(current_setting('reserved_connections', true), '0')::int) m(allowed)`

// Admit calls open, which opens a store and a listener, if the server has connections
// to spare: afterwards a tenth of them, and five at least, must be left for others.
// Otherwise, and if the server has none at all, the error is backlog.ErrUnavailable.
// Processes that come at the same time are admitted one by one, so that each counts
// those before it; when that takes too long, they are not waited for.
//
// It is for processes of which many may come at the same time, uninvited: without it
// they would take the connections that the applications of the database need.
func Admit(ctx context.Context, cfg Config, open func(context.Context) error) error {
	cfg = cfg.withDefaults()
	pool, err := cfg.poolConfig("admit", 1)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, pool.ConnConfig)
	if err != nil {
		return explainConnect(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has done its work
	tx, err := conn.Begin(ctx)
	if err != nil {
		return explainConnect(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it changes nothing
	if err := awaitAdmission(ctx, tx, cfg.Schema); err != nil {
		return unlessLost(err)
	}
	var allowed, free int
	if err := tx.QueryRow(ctx, freeConnectionsSQL).Scan(&allowed, &free); err != nil {
		return unlessLost(fmt.Errorf("count connections: %w", err))
	}
	if keep := max(5, allowed/10); free < keep+admissionNeeds {
		return fmt.Errorf("%w: PostgreSQL has %d of %d connections left, of which %d are kept for others; raise max_connections",
			backlog.ErrUnavailable, free, allowed, keep)
	}
	return open(ctx)
}

// awaitAdmission waits until those who came before have been admitted, within bounds.
func awaitAdmission(ctx context.Context, tx pgx.Tx, schema string) error {
	for deadline := time.Now().Add(admissionTimeout); ; {
		var next bool
		if err := tx.QueryRow(ctx, admissionLockSQL, schema).Scan(&next); err != nil {
			return fmt.Errorf("wait for admission: %w", err)
		}
		if next || time.Now().After(deadline) {
			return nil
		}
		pause := time.NewTimer(admissionPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(backlog.ErrUnavailable, ctx.Err())
		}
	}
}
