package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// policyCache holds the policies of the file, which nobody but this process
// changes.
type policyCache struct {
	// set is nil until the policies have been read.
	set atomic.Pointer[policySet]
	// changing has a token of whoever changes the policies, from before that is
	// written until it applies.
	changing chan struct{}
}

// policySet is all policies at one time. Nobody changes it.
type policySet struct {
	all []backlog.Policy // in the order of backlog.ComparePolicies
	// exact has those of channels, prefixes those of prefixes, by channel.
	exact, prefixes map[string]backlog.Policy
	// lengths has the lengths of the prefixes, in bytes.
	lengths []int
}

func newPolicySet(all []backlog.Policy) *policySet {
	set := &policySet{all: all, exact: map[string]backlog.Policy{}, prefixes: map[string]backlog.Policy{}}
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
	cache := &s.reading.policies
	select {
	case cache.changing <- struct{}{}:
		defer func() { <-cache.changing }()
	case <-ctx.Done():
		return fmt.Errorf("set a policy: %w", ctx.Err())
	}
	before := cache.set.Load().all
	after := withPolicy(before, p)
	if len(after) > max(len(before), backlog.MaxPolicies) {
		return backlog.ErrTooManyPolicies
	}
	err := s.exclusively(ctx, func(ctx context.Context, conn *sql.Conn) error { return writePolicy(ctx, conn, p) })
	if err != nil {
		return err
	}
	cache.set.Store(newPolicySet(after))
	s.bus.hint()
	return nil
}

// withPolicy returns policies, which it does not change, with p in place of what
// was set before.
func withPolicy(all []backlog.Policy, p backlog.Policy) []backlog.Policy {
	at, found := slices.BinarySearchFunc(all, p, backlog.ComparePolicies)
	rest := all[at:]
	if found {
		rest = rest[1:]
	}
	if !p.Sets() {
		return slices.Concat(all[:at], rest)
	}
	return slices.Concat(all[:at], clonePolicies([]backlog.Policy{p}), rest)
}

// loadPolicies reads the policies, and sets the configured backlog.
func (s *Store) loadPolicies(ctx context.Context) error {
	all, err := readPolicies(ctx, s.reader)
	if err != nil {
		return err
	}
	s.reading.policies.changing = make(chan struct{}, 1)
	s.reading.policies.set.Store(newPolicySet(all))
	if s.cfg.Backlog == nil {
		return nil
	}
	return s.setDefaultBacklog(ctx, uint64(*s.cfg.Backlog))
}

// setDefaultBacklog changes the backlog of the default policy and nothing else of
// it. Nothing is written if it is what it should be, so that a full disk does not
// matter then.
func (s *Store) setDefaultBacklog(ctx context.Context, frames uint64) error {
	p := s.reading.policies.set.Load().prefixes[""]
	if p.Backlog != nil && *p.Backlog == frames {
		return nil
	}
	p.Prefix, p.Backlog = true, &frames
	err := s.SetPolicy(ctx, p)
	if errors.Is(err, backlog.ErrTooManyPolicies) {
		return fmt.Errorf("set the default backlog in %q: %w; remove one, or start without a default backlog", s.Path(), err)
	}
	if err != nil {
		return err
	}
	s.logger.Info("the default backlog was changed", "file", s.Path(), "frames", frames)
	return nil
}

const (
	policiesSQL     = `select channel, prefix, backlog, retention_age, stream_retention from policies order by channel, prefix`
	deletePolicySQL = `delete from policies where channel = ?1 and prefix = ?2`
	setPolicySQL    = `replace into policies (channel, prefix, backlog, retention_age, stream_retention) values (?1, ?2, ?3, ?4, ?5)`
)

// writePolicy stores or removes a policy in the caller's transaction.
func writePolicy(ctx context.Context, conn *sql.Conn, p backlog.Policy) error {
	if !p.Sets() {
		_, err := conn.ExecContext(ctx, deletePolicySQL, p.Channel, p.Prefix)
		return err
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
func readPolicies(ctx context.Context, db *sql.DB) ([]backlog.Policy, error) {
	rows, err := db.QueryContext(ctx, policiesSQL)
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
