package pgbacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// SetPolicy implements backlog.Store.
func (s *Store) SetPolicy(ctx context.Context, p backlog.Policy) error { return backlog.ErrUnavailable }

// Policies implements backlog.Store.
func (s *Store) Policies(ctx context.Context) ([]backlog.Policy, error) {
	return nil, backlog.ErrUnavailable
}
