package service

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Subscribe implements FanfareService.
func (s *Server) Subscribe(req *fanfarev1.SubscribeRequest, stream fanfarev1.FanfareService_SubscribeServer) error {
	d, err := s.begin(req, stream)
	if err != nil {
		return err
	}
	return d.serve()
}

// begin begins the delivery of a call, to be served.
func (s *Server) begin(req *fanfarev1.SubscribeRequest, stream grpc.ServerStream) (*delivery, error) {
	name, start, err := subscribeTo(req)
	if err != nil {
		return nil, failureOf(err)
	}
	if err := s.permit(stream.Context(), auth.Subscribe, name); err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	return s.newDelivery(stream, name, start), nil
}

// noticeProto is the message of a notice. With numbers after it, it is a
// SessionResponse.
func noticeProto(n hub.Notice) *fanfarev1.SubscribeResponse {
	switch n := n.(type) {
	case hub.Subscribed:
		return subscribedProto(n)
	case hub.Gap:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: gapProto(n)}}
	case hub.CaughtUp:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{
			CaughtUp: &fanfarev1.CaughtUp{Position: positionProto(n.Position)},
		}}
	case hub.Status:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Status{
			Status: &fanfarev1.Status{Listening: n.Listening},
		}}
	case hub.Closed:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closed{
			Closed: &fanfarev1.Closed{Last: positionProto(n.Last)},
		}}
	default:
		panic(fmt.Sprintf("a notice of type %T", n))
	}
}

func subscribedProto(n hub.Subscribed) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{Subscribed: &fanfarev1.Subscribed{
		Head:        positionProto(n.Head),
		Oldest:      n.Oldest,
		ResumeAfter: positionProto(n.ResumeAfter),
		Resumed:     n.Resumed,
		Ephemeral:   n.Ephemeral,
	}}}
}

func progressProto(p backlog.Position) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Progress{
		Progress: &fanfarev1.Progress{Position: positionProto(p)},
	}}
}

func closingProto(last backlog.Position, retryIn time.Duration) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closing{Closing: &fanfarev1.Closing{
		ResumeAfter: positionProto(last),
		RetryIn:     durationpb.New(retryIn),
	}}}
}

func gapProto(g hub.Gap) *fanfarev1.Gap {
	return &fanfarev1.Gap{
		Reason:      gapReason(g.Reason),
		Requested:   positionProto(g.Requested),
		Oldest:      g.Oldest,
		Head:        positionProto(g.Head),
		ResumeAfter: positionProto(g.ResumeAfter),
	}
}

// gapReason is UNSPECIFIED, which clients treat as loss, for a reason that the
// protocol does not have.
func gapReason(r hub.GapReason) fanfarev1.GapReason {
	switch r {
	case hub.GapTrimmed:
		return fanfarev1.GapReason_GAP_REASON_TRIMMED
	case hub.GapEpochChanged:
		return fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED
	case hub.GapAhead:
		return fanfarev1.GapReason_GAP_REASON_AHEAD
	case hub.GapEphemeralMaybeMissed:
		return fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED
	default:
		return fanfarev1.GapReason_GAP_REASON_UNSPECIFIED
	}
}
