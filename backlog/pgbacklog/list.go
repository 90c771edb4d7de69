package pgbacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// The lists follow the primary key (channel, scope), both collated by bytes.
const (
	listAllSQL = `select ` + stateColumns + ` from fanfare.stream_states s
		where (s.channel, s.scope) > ($1::text, $2::text) order by s.channel, s.scope limit $3`
	listChannelSQL = `select ` + stateColumns + ` from fanfare.stream_states s
		where s.channel = $1::text and s.scope >= $2::text and ($3::boolean or s.scope > $2::text) order by s.scope limit $4::bigint`
)

// ListStreams implements backlog.Store.
func (s *Store) ListStreams(ctx context.Context, channel string, after backlog.StreamName, limit int) ([]backlog.StreamState, error) {
	if err := backlog.ValidateList(channel, after, limit); err != nil {
		return nil, err
	}
	sql, args := s.sql.listAll, []any{after.Channel, after.Scope, limit}
	if channel != "" {
		switch {
		case after.Channel > channel:
			return nil, nil
		case after.Channel < channel:
			sql, args = s.sql.listChannel, []any{channel, "", true, limit}
		default:
			sql, args = s.sql.listChannel, []any{channel, after.Scope, false, limit}
		}
	}
	return s.list(ctx, sql, args)
}

func (s *Store) list(ctx context.Context, sql string, args []any) ([]backlog.StreamState, error) {
	var states []backlog.StreamState
	err := attempt(func() error {
		states = nil
		// An error of Query is returned by eachRow.
		rows, _ := s.loading.Query(ctx, sql, args...)
		return eachRow(rows, func(r *row) { states = append(states, r.state(0)) })
	})
	if err != nil {
		return nil, readError(ctx, "list streams", err)
	}
	return states, nil
}
