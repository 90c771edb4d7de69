package sqlitebacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// Submit implements backlog.Store. It copies what p refers to.
func (s *Store) Submit(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
	if err := p.Validate(s.maxFrameBytes); err != nil {
		done(backlog.Outcome{}, err)
		return
	}
	s.committer.submit(ctx, &item{
		publications: []publication{newPublication(p)},
		size:         int64(p.Size()),
		done: func(it *item) {
			if it.err != nil {
				done(backlog.Outcome{}, it.err)
				return
			}
			done(it.publications[0].outcome, nil)
		},
	})
}

// submitAndWait submits an item and returns its error.
func (s *Store) submitAndWait(ctx context.Context, it *item) error {
	// Buffered, so that done never blocks.
	answered := make(chan error, 1)
	it.done = func(it *item) { answered <- it.err }
	s.committer.submit(ctx, it)
	return <-answered
}
