package sqlitebacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// ReadPage implements backlog.Store. The state of a page of a numbering that has
// been replaced is that numbering's: closed, with its last position as head and
// what is still stored of it after the base.
func (s *Store) ReadPage(ctx context.Context, origin uint64, request backlog.PageRequest) (backlog.Page, error) {
	if err := request.Stream.Validate(); err != nil {
		return backlog.Page{}, err
	}
	if err := s.checkOrigin(origin); err != nil {
		return backlog.Page{}, err
	}
	var page backlog.Page
	after := backlog.Position{Sequence: request.After.Sequence} // as the store knows it
	err := s.read(ctx, s.reading.lanes.pages, "read a page", func(n *snapshot) error {
		row, wanted, err := s.numbering(ctx, n, &request)
		if err != nil {
			return err
		}
		if err := n.resolve(ctx, append(wanted, wantedPosition{of: row, at: &after})); err != nil {
			return err
		}
		page = backlog.Page{State: row.state()}
		page.Frames, err = n.framesAfter(ctx, row, &request)
		return err
	})
	if err != nil {
		return backlog.Page{}, err
	}
	if err := request.Judge(&page, after); err != nil {
		return backlog.Page{}, err
	}
	return page, nil
}

// numbering finds the one that a page is asked for.
func (s *Store) numbering(ctx context.Context, n *snapshot, request *backlog.PageRequest) (*numbering, []wantedPosition, error) {
	rows, err := n.streams(ctx, []backlog.StreamName{request.Stream})
	if err != nil {
		return nil, nil, err
	}
	if request.OwnEpoch == 0 || uint64(rows[0].epoch) == request.OwnEpoch {
		wanted, err := s.bind(ctx, n, rows)
		return &rows[0], wanted, err
	}
	row := numbering{name: request.Stream}
	args := []any{request.Stream.Channel, request.Stream.Scope, bigint(request.OwnEpoch)}
	err = n.each(ctx, n.statements.retired, args, row.columns(), func() error {
		row.exists = true
		row.base = row.position(row.floor, row.floorOrigin)
		return nil
	})
	return &row, nil, err
}

// framesAfter reads the oldest frames that follow the request's position.
func (n *snapshot) framesAfter(ctx context.Context, row *numbering, request *backlog.PageRequest) ([]backlog.Frame, error) {
	after := bigint(request.After.Sequence)
	if after < row.floor || after >= row.head {
		return nil, nil
	}
	maxFrames := min(int64(max(request.MaxFrames, 1)), row.head-after)
	last := after + maxFrames
	if row.storedBytes > int64(request.MaxBytes) {
		var err error
		if last, err = n.fit(ctx, n.statements.oldestSizes, row.id, after, maxFrames, request.MaxBytes); err != nil {
			return nil, err
		}
	}
	var frames []backlog.Frame
	err := n.frames(ctx, []frameRange{{of: row, after: after, last: last, frames: &frames}})
	return frames, err
}
