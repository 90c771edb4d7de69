package sqlitebacklog

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
)

// PublishBatch implements backlog.Store. The batch waits in the queue of single
// publications, so that its frames keep the order in which their streams' frames
// were submitted, and shares a transaction with them.
func (s *Store) PublishBatch(ctx context.Context, batch []backlog.Publication) ([]backlog.Outcome, error) {
	if err := backlog.ValidateBatch(batch, s.maxFrameBytes); err != nil {
		return nil, err
	}
	it := &item{publications: make([]publication, len(batch)), atomic: true}
	for i := range batch {
		it.publications[i] = newPublication(batch[i])
		it.size += int64(batch[i].Size())
	}
	if err := s.submitAndWait(ctx, it); err != nil {
		return nil, err
	}
	outcomes := make([]backlog.Outcome, len(batch))
	for i := range it.publications {
		outcomes[i] = it.publications[i].outcome
	}
	return outcomes, nil
}
