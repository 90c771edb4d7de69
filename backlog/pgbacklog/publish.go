package pgbacklog

import (
	"context"
	"fmt"

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

// PublishBatch implements backlog.Store.
func (s *Store) PublishBatch(ctx context.Context, batch []backlog.Publication) ([]backlog.Outcome, error) {
	if err := validateBatch(batch, s.maxFrameBytes); err != nil {
		return nil, err
	}
	return s.committer.publishBatch(ctx, batch)
}

// CloseStream implements backlog.Store.
func (s *Store) CloseStream(ctx context.Context, stream backlog.StreamName, epoch *uint64) (backlog.CloseOutcome, error) {
	if err := stream.Validate(); err != nil {
		return backlog.CloseOutcome{}, err
	}
	if epoch != nil && *epoch > backlog.MaxPositionValue {
		return backlog.CloseOutcome{}, &backlog.LimitError{Field: "expected_epoch", Message: "must be below 2^63"}
	}
	return s.committer.closeStream(ctx, stream, epoch)
}

func validateBatch(batch []backlog.Publication, maxFrameBytes int) error {
	if len(batch) == 0 {
		return &backlog.LimitError{Field: "frames", Message: "must not be empty"}
	}
	if len(batch) > backlog.MaxBatchFrames {
		return &backlog.LimitError{Field: "frames", Message: fmt.Sprintf("has %d entries, the limit is %d", len(batch), backlog.MaxBatchFrames)}
	}
	bytes := 0
	for i := range batch {
		if err := batch[i].Validate(maxFrameBytes); err != nil {
			return &backlog.BatchError{Index: i, Err: err}
		}
		bytes += batch[i].Size()
	}
	if bytes > backlog.MaxBatchBytes {
		return &backlog.LimitError{Field: "frames", Message: fmt.Sprintf("has %d bytes, the limit is %d", bytes, backlog.MaxBatchBytes)}
	}
	return nil
}
