package sqlitebacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// Load implements backlog.Store.
func (s *Store) Load(ctx context.Context, origin uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	return backlog.LoadResult{}, errTODO
}

// ReadPage implements backlog.Store.
func (s *Store) ReadPage(ctx context.Context, origin uint64, request backlog.PageRequest) (backlog.Page, error) {
	return backlog.Page{}, errTODO
}

// ListStreams implements backlog.Store.
func (s *Store) ListStreams(ctx context.Context, channel string, after backlog.StreamName, limit int) ([]backlog.StreamState, error) {
	return nil, errTODO
}

// Policies implements backlog.Store.
func (s *Store) Policies(ctx context.Context) ([]backlog.Policy, error) { return nil, errTODO }

// Ping implements backlog.Store.
func (s *Store) Ping(ctx context.Context) error { return errTODO }
