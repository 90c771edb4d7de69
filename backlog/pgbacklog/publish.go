package pgbacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// Submit implements backlog.Store.
func (s *Store) Submit(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
	if err := p.Validate(s.maxFrameBytes); err != nil {
		done(backlog.Outcome{}, err)
		return
	}
	s.committer.submit(ctx, p, done)
}

// PublishBatch implements backlog.Store. It waits for transactions of applications
// that hold a stream, until ctx ends; if that has no deadline, for 30 seconds at
// most, and then the error is backlog.ErrUnavailable. What waits is in the bounds
// of the publish queue, beyond which the error is backlog.ErrPublishQueueFull.
func (s *Store) PublishBatch(ctx context.Context, batch []backlog.Publication) ([]backlog.Outcome, error) {
	if err := backlog.ValidateBatch(batch, s.maxFrameBytes); err != nil {
		return nil, err
	}
	return s.committer.publishBatch(ctx, batch)
}

// CloseStream implements backlog.Store. It waits as PublishBatch does.
func (s *Store) CloseStream(ctx context.Context, stream backlog.StreamName, epoch *uint64) (backlog.CloseOutcome, error) {
	if err := backlog.ValidateClose(stream, epoch); err != nil {
		return backlog.CloseOutcome{}, err
	}
	return s.committer.closeStream(ctx, stream, epoch)
}
