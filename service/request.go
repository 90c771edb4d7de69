package service

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Errors of this file are *backlog.LimitError, but for errEphemeralUnavailable.

// streamName reads and checks a request's channel and scope.
func streamName(channel, scope string) (backlog.StreamName, error) {
	if err := checkText(text{"channel", channel}, text{"scope", scope}); err != nil {
		return backlog.StreamName{}, err
	}
	name := backlog.StreamName{Channel: channel, Scope: scope}
	return name, name.Validate()
}

// position reads and checks a position; nil is 0-0, as in protobuf an absent
// message equals an empty one.
func position(field string, p *fanfarev1.Position) (backlog.Position, error) {
	if p.GetEpoch() > backlog.MaxPositionValue {
		return backlog.Position{}, &backlog.LimitError{Field: field + ".epoch", Message: "must be below 2^63"}
	}
	if p.GetSequence() > backlog.MaxPositionValue {
		return backlog.Position{}, &backlog.LimitError{Field: field + ".sequence", Message: "must be below 2^63"}
	}
	return backlog.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}, nil
}

// subscribeTo reads what to subscribe to, and from where.
func subscribeTo(req *fanfarev1.SubscribeRequest) (backlog.StreamName, hub.Start, error) {
	name, err := streamName(req.GetChannel(), req.GetScope())
	if err != nil {
		return name, hub.Start{}, err
	}
	start, err := subscribeStart(req)
	return name, start, err
}

// subscribeStart reads where a subscription begins.
func subscribeStart(req *fanfarev1.SubscribeRequest) (hub.Start, error) {
	switch start := req.GetStart().(type) {
	case nil:
		return hub.Oldest(), nil
	case *fanfarev1.SubscribeRequest_Oldest:
		if !start.Oldest {
			return hub.Start{}, &backlog.LimitError{Field: "oldest", Message: "must be true if it is set"}
		}
		return hub.Oldest(), nil
	case *fanfarev1.SubscribeRequest_Live:
		if !start.Live {
			return hub.Start{}, &backlog.LimitError{Field: "live", Message: "must be true if it is set"}
		}
		return hub.Live(), nil
	case *fanfarev1.SubscribeRequest_After:
		p, err := position("after", start.After)
		return hub.After(p), err
	case *fanfarev1.SubscribeRequest_Last:
		return hub.Last(start.Last), nil
	default:
		return hub.Start{}, &backlog.LimitError{Field: "start", Message: fmt.Sprintf("has a form that this server does not know: %T", start)}
	}
}

// publication reads and checks a frame to publish. path is where in the request
// the frame stands; it begins the names of fields in errors.
func (s *Server) publication(path string, f *fanfarev1.NewFrame) (backlog.Publication, error) {
	if f == nil {
		return backlog.Publication{}, &backlog.LimitError{Field: path, Message: "must be set"}
	}
	p := backlog.Publication{
		Stream:         backlog.StreamName{Channel: f.GetChannel(), Scope: f.GetScope()},
		Ephemeral:      f.GetEphemeral(),
		Payload:        f.GetPayload(),
		ContentType:    f.GetContentType(),
		EventType:      f.GetEventType(),
		Headers:        f.GetHeaders(),
		IdempotencyKey: f.GetIdempotencyKey(),
	}
	if f.ExpectedSequence != nil {
		p.Expected = &backlog.Expectation{Sequence: f.GetExpectedSequence(), Epoch: f.ExpectedEpoch}
	}
	if err := checkPublication(f, &p, s.cfg.MaxFrameBytes); err != nil {
		return p, within(path, err)
	}
	if p.Ephemeral && s.cfg.RefuseEphemeral {
		return p, errEphemeralUnavailable
	}
	return p, nil
}

// within says that the field at fault is one of the message at path. Errors that
// name no field stay as they are.
func within(path string, err error) error {
	if limit, ok := err.(*backlog.LimitError); ok { //nolint:errorlint // never wrapped
		return &backlog.LimitError{Field: path + "." + limit.Field, Message: limit.Message}
	}
	return err
}

func checkPublication(f *fanfarev1.NewFrame, p *backlog.Publication, maxFrameBytes int) error {
	if f.ExpectedEpoch != nil && f.ExpectedSequence == nil {
		return &backlog.LimitError{Field: "expected_epoch", Message: "needs expected_sequence"}
	}
	err := checkText(
		text{"channel", p.Stream.Channel},
		text{"scope", p.Stream.Scope},
		text{"content_type", p.ContentType},
		text{"event_type", p.EventType},
		text{"idempotency_key", p.IdempotencyKey},
	)
	if err != nil {
		return err
	}
	for name, value := range p.Headers {
		if err := checkText(text{"headers", name}, text{"headers", value}); err != nil {
			return err
		}
	}
	return p.Validate(maxFrameBytes)
}

// batch reads and checks the frames of a PublishBatch.
func (s *Server) batch(frames []*fanfarev1.NewFrame) ([]backlog.Publication, error) {
	if len(frames) == 0 || len(frames) > backlog.MaxBatchFrames {
		return nil, &backlog.LimitError{
			Field:   "frames",
			Message: fmt.Sprintf("has %d elements, it must have 1 to %d", len(frames), backlog.MaxBatchFrames),
		}
	}
	batch := make([]backlog.Publication, len(frames))
	size := 0
	for i, f := range frames {
		p, err := s.publication("frames["+strconv.Itoa(i)+"]", f)
		if errors.Is(err, errEphemeralUnavailable) {
			return nil, &backlog.BatchError{Index: i, Err: err}
		}
		if err != nil {
			return nil, err
		}
		batch[i] = p
		size += p.Size()
	}
	if size > backlog.MaxBatchBytes {
		return nil, &backlog.LimitError{
			Field:   "frames",
			Message: fmt.Sprintf("have %d bytes together, the limit is %d", size, backlog.MaxBatchBytes),
		}
	}
	return batch, nil
}
