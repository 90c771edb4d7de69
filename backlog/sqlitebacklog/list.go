package sqlitebacklog

import (
	"context"
	"database/sql"

	"github.com/fanfare-io/fanfare/backlog"
)

// The lists follow the primary key (channel, scope), both compared by bytes.
const (
	listAllSQL = `select ` + streamColumns + ` from streams s
		where (s.channel, s.scope) > (?1, ?2) order by s.channel, s.scope limit ?3`
	listChannelSQL = `select ` + streamColumns + ` from streams s
		where s.channel = ?1 and (?3 or s.scope > ?2) order by s.scope limit ?4`
)

// ListStreams implements backlog.Store.
func (s *Store) ListStreams(ctx context.Context, channel string, after backlog.StreamName, limit int) ([]backlog.StreamState, error) {
	if err := backlog.ValidateList(channel, after, limit); err != nil {
		return nil, err
	}
	if after.Channel > channel && channel != "" {
		return nil, nil
	}
	var states []backlog.StreamState
	err := s.read(ctx, s.reading.lanes.loads, "list streams", func(n *snapshot) (err error) {
		statement, args := n.statements.listAll, []any{after.Channel, after.Scope, limit}
		if channel != "" {
			// Without a stream of the channel to follow, its first one may have the
			// empty scope.
			statement, args = n.statements.listChannel, []any{channel, after.Scope, after.Channel < channel, limit}
		}
		states, err = s.list(ctx, n, statement, args)
		return err
	})
	if err != nil {
		return nil, err
	}
	return states, nil
}

func (s *Store) list(ctx context.Context, n *snapshot, statement *sql.Stmt, args []any) ([]backlog.StreamState, error) {
	var rows []numbering
	row := numbering{exists: true}
	err := n.each(ctx, statement, args, row.columns(), func() error {
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	wanted, err := s.bind(ctx, n, rows)
	if err != nil {
		return nil, err
	}
	if err := n.resolve(ctx, wanted); err != nil {
		return nil, err
	}
	var states []backlog.StreamState
	for i := range rows {
		states = append(states, rows[i].state())
	}
	return states, nil
}
