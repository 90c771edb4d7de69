package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// codeTooManyPolicies is raised by the schema's _set_policy.
const codeTooManyPolicies = "FN005"

// setBacklogWait bounds the wait for a transaction that has set a policy and not
// ended, at start.
const setBacklogWait = 5 * time.Second

const (
	policiesSQL = `select channel, prefix, backlog, (extract(epoch from retention_age) * 1000000)::bigint, (extract(epoch from stream_retention) * 1000000)::bigint
		from fanfare.policies`
	setPolicyCall        = "._set_policy($1::text, $2::boolean, $3::bigint, $4::interval, $5::interval, $6::int)"
	setDefaultBacklogSQL = "select fanfare._set_default_backlog($1::bigint, $2::int)"
)

// errPoliciesLocked says why a policy could not be set.
var errPoliciesLocked = errors.New("a transaction that has set a policy has not ended")

// SetPolicy implements backlog.Store. It waits for transactions of applications
// that have set a policy and not ended, until ctx ends; if that has no deadline,
// for 30 seconds at most, and then the error is backlog.ErrUnavailable.
func (s *Store) SetPolicy(ctx context.Context, p backlog.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return s.committer.setPolicy(ctx, p)
}

// setPolicy sets a policy. It is retried when its outcome is unknown: setting it
// again changes nothing.
//
// One caller at a time waits in the database, the others for their turn.
func (c *committer) setPolicy(ctx context.Context, p backlog.Policy) error {
	var frames *int64
	if p.Backlog != nil {
		n := int64(*p.Backlog)
		frames = &n
	}
	bounded, cancel := withDefaultTimeout(ctx, c.cfg.RetryTimeout)
	defer cancel()
	err := c.direct(bounded, c.policySlot, &item{call: &call{repeatable: true}}, func(ctx context.Context, conn *pgxpool.Conn, w waits) error {
		var changed bool
		err := c.transact(ctx, conn, w, []any{&changed}, c.setPolicySQL,
			p.Channel, p.Prefix, frames, p.RetentionAge, p.StreamRetention, c.rowTimeoutMillis(w))
		if hasCode(err, codeTooManyPolicies) {
			return &refusedError{backlog.ErrTooManyPolicies}
		}
		return err
	})
	return explainTimeout(ctx, err, errPoliciesLocked)
}

// Policies implements backlog.Store.
func (s *Store) Policies(ctx context.Context) ([]backlog.Policy, error) {
	var policies []backlog.Policy
	err := attempt(func() error {
		// An error of Query is returned by CollectRows.
		rows, _ := s.loading.Query(ctx, s.sql.policies)
		var err error
		policies, err = pgx.CollectRows(rows, scanPolicy)
		return err
	})
	if err != nil {
		return nil, readError(ctx, "read the policies", err)
	}
	slices.SortFunc(policies, backlog.ComparePolicies)
	return policies, nil
}

func scanPolicy(row pgx.CollectableRow) (backlog.Policy, error) {
	var p backlog.Policy
	var frames, age, retention *int64
	if err := row.Scan(&p.Channel, &p.Prefix, &frames, &age, &retention); err != nil {
		return p, err
	}
	if frames != nil {
		n := uint64(*frames)
		p.Backlog = &n
	}
	p.RetentionAge, p.StreamRetention = duration(age), duration(retention)
	return p, nil
}

// duration converts microseconds; nil stays nil.
func duration(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := microseconds(*n)
	return &d
}

// setBacklog stores the configured default backlog, if there is one, and leaves
// what else the schema's default policy sets.
func (s *Store) setBacklog(ctx context.Context, conn *pgxpool.Conn) error {
	if s.cfg.Backlog == nil {
		return nil
	}
	var changed bool
	// READ COMMITTED whatever the role's default: what another replica commits
	// while this one waits for it must be seen.
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql.setDefaultBacklog, *s.cfg.Backlog, setBacklogWait.Milliseconds()).Scan(&changed)
	})
	var pg *pgconn.PgError
	switch {
	case err == nil && !changed:
	case err == nil:
		s.logger.Info("the schema's default backlog was changed", "schema", s.cfg.Schema, "backlog", *s.cfg.Backlog)
	case hasCode(err, codeTooManyPolicies):
		return fmt.Errorf("set the default backlog: %w; remove one, or start without a default backlog", backlog.ErrTooManyPolicies)
	case hasCode(err, codeLockNotAvailable) || !errors.As(err, &pg):
		return fmt.Errorf("set the default backlog: %w", unavailable(err))
	default:
		return fmt.Errorf("set the default backlog: %w", err)
	}
	return nil
}
