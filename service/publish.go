package service

import (
	"context"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// Publish implements FanfareService.
func (s *Server) Publish(ctx context.Context, req *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	p, err := s.publication("frame", req.GetFrame())
	if err != nil {
		return nil, failureOf(err)
	}
	if err := s.permit(ctx, auth.Publish, p.Stream); err != nil {
		return nil, err
	}
	outcome, err := backlog.Publish(ctx, s.store, p)
	if err != nil {
		return nil, publishFailureOf(err, p)
	}
	return s.published(outcome), nil
}

// PublishBatch implements FanfareService.
func (s *Server) PublishBatch(ctx context.Context, req *fanfarev1.PublishBatchRequest) (*fanfarev1.PublishBatchResponse, error) {
	batch, err := s.batch(req.GetFrames())
	if err != nil {
		return nil, failureOf(err)
	}
	for i, p := range batch {
		if err := s.permit(ctx, auth.Publish, p.Stream); err != nil {
			return nil, inBatch(&backlog.BatchError{Index: i, Err: err})
		}
	}
	outcomes, err := s.store.PublishBatch(ctx, batch)
	if err != nil {
		return nil, publishFailureOf(err, batch...)
	}
	results := make([]*fanfarev1.PublishResponse, len(outcomes))
	for i, o := range outcomes {
		results[i] = s.published(o)
	}
	return &fanfarev1.PublishBatchResponse{Results: results}, nil
}

// publishFailureOf is failureOf for what was published together. Without keys, which
// ephemeral frames never have, a retry tells nothing.
func publishFailureOf(err error, publications ...backlog.Publication) *failure {
	f := failureOf(err)
	for _, p := range publications {
		if p.IdempotencyKey == "" {
			return f.saying(fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN,
				"the outcome of the publish is unknown; without an idempotency key a retry may publish again what was published")
		}
	}
	return f
}

// CloseStream implements FanfareService.
func (s *Server) CloseStream(ctx context.Context, req *fanfarev1.CloseStreamRequest) (*fanfarev1.CloseStreamResponse, error) {
	stream, err := streamName(req.GetChannel(), req.GetScope())
	if err != nil {
		return nil, failureOf(err)
	}
	if err := backlog.ValidateClose(stream, req.ExpectedEpoch); err != nil {
		return nil, failureOf(err)
	}
	outcome, err := s.store.CloseStream(ctx, stream, req.ExpectedEpoch)
	if err != nil {
		return nil, closeFailureOf(err)
	}
	return &fanfarev1.CloseStreamResponse{
		Last:          positionProto(outcome.Last),
		AlreadyClosed: outcome.AlreadyClosed,
	}, nil
}

// closeFailureOf is failureOf for CloseStream.
func closeFailureOf(err error) *failure {
	return failureOf(err).saying(fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN,
		"the stream may or may not have been closed; closing it again is safe with expected_epoch")
}
