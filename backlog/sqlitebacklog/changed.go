package sqlitebacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// Changed implements backlog.Store.
func (s *Store) Changed(ctx context.Context, origin uint64, known []backlog.StreamState) ([]int, error) {
	if err := backlog.ValidateKnown(known); err != nil {
		return nil, err
	}
	if err := s.checkOrigin(origin); err != nil {
		return nil, err
	}
	names := make([]backlog.StreamName, len(known))
	for i := range known {
		names[i] = known[i].Stream
	}
	var changed []int
	err := s.read(ctx, s.reading.lanes.loads, "look for changes", func(n *snapshot) error {
		rows, err := n.streams(ctx, names)
		changed = nil
		for i := range rows {
			rows[i].bounds = s.bounds(rows[i].name.Channel)
			if state := rows[i].state(); state.ChangedFrom(&known[i]) {
				changed = append(changed, i)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}
