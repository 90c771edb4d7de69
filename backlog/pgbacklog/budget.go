package pgbacklog

import (
	"context"
	"fmt"
	"log/slog"
)

// listenerConns is what a replica holds beside the store's pools.
const listenerConns = 1

// sharedPublishConns are for what is not the committer: the janitor, and Ping
// or Notify. They must not wait for lanes that wait for foreign transactions.
const sharedPublishConns = 2

// policyConns sets policies, one at a time as the schema does.
const policyConns = 1

// publishConns is the size of the pool for publishing: the batch, the lanes, the
// atomic batches, the policies, and what else shares it.
func (c Config) publishConns() int {
	return 1 + c.Lanes + c.BatchConns + policyConns + sharedPublishConns
}

// connections is the most that a replica with this configuration holds.
func (c Config) connections() int {
	return c.publishConns() + c.LoadConns + c.PageConns + listenerConns
}

// connectionLimit is how many connections may be held, and what says so.
type connectionLimit struct {
	allowed int
	setting string
}

// connectionLimits are those that apply to the role: its own and the database's
// are -1 if there is none, and nothing for superusers.
type connectionLimits struct {
	max, reserved, role, database int
	superuser                     bool
}

// connectionLimitsSQL: reserved_connections came with PostgreSQL 16.
const connectionLimitsSQL = `
select current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true), '0')::int,
       r.rolconnlimit, d.datconnlimit, r.rolsuper
  from pg_roles r, pg_database d where r.rolname = current_user and d.datname = current_database()`

// checkBudget warns if the replicas may need more connections than they can get:
// a replica that lacks some would find out under load.
func checkBudget(ctx context.Context, q querier, cfg Config, logger *slog.Logger) error {
	var l connectionLimits
	if err := q.QueryRow(ctx, connectionLimitsSQL).Scan(&l.max, &l.reserved, &l.role, &l.database, &l.superuser); err != nil {
		return explainConnect(err)
	}
	limit := l.lowest()
	each := cfg.connections()
	if needed := cfg.Replicas * each; needed > limit.allowed {
		logger.Warn("the replicas may need more connections than the server allows; raise "+limit.setting+", or run fewer replicas",
			"replicas", cfg.Replicas, "connections_of_each", each, "needed", needed, "allowed", limit.allowed, "limit", limit.setting)
	}
	return nil
}

// lowest returns the limit that is met first.
func (l connectionLimits) lowest() connectionLimit {
	lowest := connectionLimit{l.max - l.reserved, fmt.Sprintf("max_connections (%d, of which %d are reserved)", l.max, l.reserved)}
	if l.superuser {
		return lowest
	}
	for _, other := range []connectionLimit{
		{l.role, fmt.Sprintf("the role's CONNECTION LIMIT (%d)", l.role)},
		{l.database, fmt.Sprintf("the database's CONNECTION LIMIT (%d)", l.database)},
	} {
		if other.allowed >= 0 && other.allowed < lowest.allowed {
			lowest = other
		}
	}
	return lowest
}
