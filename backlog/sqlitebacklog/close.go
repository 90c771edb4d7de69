package sqlitebacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// CloseStream implements backlog.Store. The close follows, in the queue, what was
// submitted for the stream before it.
func (s *Store) CloseStream(ctx context.Context, stream backlog.StreamName, epoch *uint64) (backlog.CloseOutcome, error) {
	if err := backlog.ValidateClose(stream, epoch); err != nil {
		return backlog.CloseOutcome{}, err
	}
	c := &closing{stream: stream, epoch: clonePointer(epoch)}
	it := &item{closing: c, size: int64(len(stream.Channel) + len(stream.Scope))}
	if err := s.submitAndWait(ctx, it); err != nil {
		return backlog.CloseOutcome{}, err
	}
	return c.outcome, nil
}
