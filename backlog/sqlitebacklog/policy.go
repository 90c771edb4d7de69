package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// policyCache holds the policies of the file, which nobody but this process
// changes. Its zero value has none.
type policyCache struct {
	set atomic.Pointer[policySet]
	// versions counts the sets that were made. Whoever has the writing connection
	// may use it.
	versions uint64
}

// next makes a set that is newer than all before.
func (c *policyCache) next(all []backlog.Policy) *policySet {
	c.versions++
	return newPolicySet(all, c.versions)
}

// replace makes set apply, unless a newer one does: those who have committed do
// not get here in the order of their commits.
func (c *policyCache) replace(set *policySet) {
	for {
		current := c.set.Load()
		if current != nil && current.version > set.version || c.set.CompareAndSwap(current, set) {
			return
		}
	}
}

// policySet is all policies at one time. Nobody changes it.
type policySet struct {
	version uint64
	all     []backlog.Policy // in the order of backlog.ComparePolicies
	// exact has those of channels, prefixes those of prefixes, by channel.
	exact, prefixes map[string]backlog.Policy
	// lengths has the lengths of the prefixes, in bytes.
	lengths []int
}

func newPolicySet(all []backlog.Policy, version uint64) *policySet {
	set := &policySet{version: version, all: all, exact: map[string]backlog.Policy{}, prefixes: map[string]backlog.Policy{}}
	for _, p := range all {
		if !p.Prefix {
			set.exact[p.Channel] = p
			continue
		}
		set.prefixes[p.Channel] = p
		if !slices.Contains(set.lengths, len(p.Channel)) {
			set.lengths = append(set.lengths, len(p.Channel))
		}
	}
	return set
}

// bounds resolves what applies to a channel, from the few policies that match it.
func (set *policySet) bounds(channel string) backlog.Bounds {
	var matching []backlog.Policy
	if p, ok := set.exact[channel]; ok {
		matching = append(matching, p)
	}
	for _, length := range set.lengths {
		if length <= len(channel) {
			if p, ok := set.prefixes[channel[:length]]; ok {
				matching = append(matching, p)
			}
		}
	}
	return backlog.BoundsOf(matching, channel, false)
}

// bounds returns what applies to the streams of a channel.
func (s *Store) bounds(channel string) backlog.Bounds {
	set := s.reading.policies.set.Load()
	if set == nil {
		return backlog.DefaultBounds
	}
	return set.bounds(channel)
}

// Policies implements backlog.Store.
func (s *Store) Policies(ctx context.Context) ([]backlog.Policy, error) {
	if err := ctx.Err(); err != nil {
		return nil, readError(ctx, "read policies", err)
	}
	if set := s.reading.policies.set.Load(); set != nil {
		return clonePolicies(set.all), nil
	}
	return nil, nil
}

// clonePolicies makes copies that callers may change.
func clonePolicies(all []backlog.Policy) []backlog.Policy {
	cloned := slices.Clone(all)
	for i := range cloned {
		p := &cloned[i]
		p.Backlog, p.RetentionAge, p.StreamRetention = clonePointer(p.Backlog), clonePointer(p.RetentionAge), clonePointer(p.StreamRetention)
	}
	return cloned
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// SetPolicy implements backlog.Store. The hub is told to read its streams' states
// again.
func (s *Store) SetPolicy(ctx context.Context, p backlog.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return s.changePolicies(ctx, func(ctx context.Context, conn *sql.Conn) error { return setPolicy(ctx, conn, p) })
}

// changePolicies runs change in a transaction, and has the policies that it leaves
// apply once they are committed.
func (s *Store) changePolicies(ctx context.Context, change func(context.Context, *sql.Conn) error) error {
	var changed *policySet
	err := s.exclusively(ctx, func(ctx context.Context, conn *sql.Conn) error {
		if err := change(ctx, conn); err != nil {
			return err
		}
		all, err := readPolicies(ctx, conn)
		changed = s.reading.policies.next(all)
		return err
	})
	if err != nil {
		return err
	}
	s.reading.policies.replace(changed)
	s.bus.hint()
	return nil
}

// loadPolicies stores the configured backlog and reads the policies.
func (s *Store) loadPolicies(ctx context.Context) error {
	if s.cfg.Backlog != nil {
		return s.setDefaultBacklog(ctx, *s.cfg.Backlog)
	}
	return s.changePolicies(ctx, func(context.Context, *sql.Conn) error { return nil })
}

// setDefaultBacklog changes the backlog of the default policy and nothing else of
// it.
func (s *Store) setDefaultBacklog(ctx context.Context, frames int64) error {
	var before sql.NullInt64
	err := s.changePolicies(ctx, func(ctx context.Context, conn *sql.Conn) error {
		err := conn.QueryRowContext(ctx, defaultBacklogSQL).Scan(&before)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if before.Valid && before.Int64 == frames {
			return nil // also when the disk is full
		}
		_, err = conn.ExecContext(ctx, setDefaultBacklogSQL, frames)
		return err
	})
	if err == nil && (!before.Valid || before.Int64 != frames) {
		s.logger.Info("the default backlog was changed", "frames", frames)
	}
	return err
}

const (
	defaultBacklogSQL    = `select backlog from policies where channel = '' and prefix = 1`
	setDefaultBacklogSQL = `insert into policies (channel, prefix, backlog) values ('', 1, ?1)
		on conflict (channel, prefix) do update set backlog = excluded.backlog`
	policiesSQL     = `select channel, prefix, backlog, retention_age, stream_retention from policies order by channel, prefix`
	countOthersSQL  = `select count(*) from policies where (channel, prefix) <> (?1, ?2)`
	deletePolicySQL = `delete from policies where channel = ?1 and prefix = ?2`
	setPolicySQL    = `replace into policies (channel, prefix, backlog, retention_age, stream_retention) values (?1, ?2, ?3, ?4, ?5)`
)

// setPolicy stores or removes a policy in the caller's transaction.
func setPolicy(ctx context.Context, conn *sql.Conn, p backlog.Policy) error {
	if !p.Sets() {
		_, err := conn.ExecContext(ctx, deletePolicySQL, p.Channel, p.Prefix)
		return err
	}
	var others int
	if err := conn.QueryRowContext(ctx, countOthersSQL, p.Channel, p.Prefix).Scan(&others); err != nil {
		return err
	}
	if others >= backlog.MaxPolicies {
		return backlog.ErrTooManyPolicies
	}
	_, err := conn.ExecContext(ctx, setPolicySQL, p.Channel, p.Prefix, nullable(p.Backlog, bigint),
		nullable(p.RetentionAge, time.Duration.Microseconds), nullable(p.StreamRetention, time.Duration.Microseconds))
	return err
}

// nullable converts what p points to, and nil to null.
func nullable[T any](p *T, convert func(T) int64) any {
	if p == nil {
		return nil
	}
	return convert(*p)
}

// readPolicies reads all policies, in their order.
func readPolicies(ctx context.Context, conn *sql.Conn) ([]backlog.Policy, error) {
	rows, err := conn.QueryContext(ctx, policiesSQL)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []backlog.Policy
	for rows.Next() {
		var p backlog.Policy
		var frames, age, retention sql.NullInt64
		if err := rows.Scan(&p.Channel, &p.Prefix, &frames, &age, &retention); err != nil {
			return nil, err
		}
		p.Backlog = pointer(frames, func(n int64) uint64 { return uint64(n) })
		p.RetentionAge = pointer(age, microseconds)
		p.StreamRetention = pointer(retention, microseconds)
		all = append(all, p)
	}
	return all, rows.Err()
}

func pointer[T any](v sql.NullInt64, convert func(int64) T) *T {
	if !v.Valid {
		return nil
	}
	converted := convert(v.Int64)
	return &converted
}

// microseconds converts without overflowing: ages may have been written by hand.
func microseconds(n int64) time.Duration {
	return time.Duration(min(n, int64(backlog.MaxPolicyAge/time.Microsecond))) * time.Microsecond
}
