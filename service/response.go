package service

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func positionProto(p backlog.Position) *fanfarev1.Position {
	return &fanfarev1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

// timestampProto is nil for the zero time.
func timestampProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func frameProto(f backlog.Frame) *fanfarev1.Frame {
	frame := &fanfarev1.Frame{
		Payload:     f.Payload,
		ContentType: f.ContentType,
		EventType:   f.EventType,
		Headers:     f.Headers,
		Created:     timestampProto(f.Created),
		Ephemeral:   f.Ephemeral,
	}
	if !f.Ephemeral {
		frame.Position = positionProto(f.Position)
	}
	return frame
}

// published counts a frame that the store has taken, and makes its answer, which is
// without a position if the outcome is: that of an ephemeral frame. Durable frames
// have a sequence of at least 1.
func (s *Server) published(o backlog.Outcome) *fanfarev1.PublishResponse {
	if !o.Duplicate {
		s.publishes.Add(1)
	}
	answer := &fanfarev1.PublishResponse{Duplicate: o.Duplicate}
	if !o.Position.IsZero() {
		answer.Position = positionProto(o.Position)
	}
	return answer
}

func (s *Server) streamProto(state backlog.StreamState) *fanfarev1.Stream {
	oldest := state.Base.Sequence + 1
	if state.Closed {
		// A new subscription waits for the next numbering.
		oldest = state.Head.Sequence + 1
	}
	return &fanfarev1.Stream{
		Channel:     state.Stream.Channel,
		Scope:       state.Stream.Scope,
		Head:        positionProto(state.Head),
		Oldest:      oldest,
		Closed:      state.Closed,
		Subscribers: uint32(s.hub.Subscribers(state.Stream)), //nolint:gosec // bounded by memory far below 2^32
		Created:     timestampProto(state.Created),
		Updated:     timestampProto(state.Updated),
		Behind:      s.hub.Behind(&state),
	}
}
