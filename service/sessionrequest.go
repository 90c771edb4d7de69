package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/hub"
)

// take does what a request asks for. Its error ends the session.
func (s *session) take(request *fanfarev1.SessionRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return context.Canceled
	}
	switch r := request.GetRequest().(type) {
	case *fanfarev1.SessionRequest_Subscribe:
		return s.subscribeLocked(r.Subscribe)
	case *fanfarev1.SessionRequest_Unsubscribe:
		return s.unsubscribeLocked(r.Unsubscribe.GetNumber())
	case *fanfarev1.SessionRequest_Credit:
		return s.creditLocked(r.Credit)
	default:
		return &backlog.LimitError{Field: "request", Message: "must be set, to a form that this server knows"}
	}
}

// subscribeLocked begins a subscription, or answers why not.
func (s *session) subscribeLocked(r *fanfarev1.SessionSubscribe) error {
	number := r.GetNumber()
	if err := checkNumber("subscribe", number); err != nil {
		return err
	}
	if s.members.all[number] != nil {
		return &backlog.LimitError{Field: "subscribe.number", Message: fmt.Sprintf("%d is that of a subscription that has not ended", number)}
	}
	if err := s.beginLocked(r); err != nil {
		s.endedLocked(failureOf(err), number)
	}
	return nil
}

// beginLocked begins a subscription, unless that is refused.
func (s *session) beginLocked(r *fanfarev1.SessionSubscribe) error {
	if r.GetRequest() == nil {
		return &backlog.LimitError{Field: "request", Message: "must be set"}
	}
	if r.GetCredit() > math.MaxInt64 {
		return &backlog.LimitError{Field: "credit", Message: "must be below 2^63"}
	}
	name, start, err := subscribeTo(r.GetRequest())
	if err != nil {
		return within("request", err)
	}
	if s.server.cfg.Verifier != nil {
		if err := permit(s.caller, auth.Subscribe, name); err != nil {
			return err
		}
	}
	if limit := s.server.cfg.MaxSessionSubscriptions; len(s.members.all) >= limit {
		return tooManyMembers(limit)
	}
	if !s.server.admit() {
		return tooManyCalls(s.server.cfg.MaxSubscriptions)
	}
	m := &member{number: r.GetNumber(), limited: r.Credit != nil, credit: int64(r.GetCredit())} //nolint:gosec // checked
	s.members.set(m.number, m)
	c := s.newCohortLocked(s.server.hub.Subscribe(name, start), m)
	c.paused = !m.mayTake()
	c.wake()
	return nil
}

// unsubscribeLocked ends a subscription. One that has ended by itself was answered
// then.
func (s *session) unsubscribeLocked(number uint32) error {
	if err := checkNumber("unsubscribe", number); err != nil {
		return err
	}
	if m := s.members.all[number]; m != nil {
		s.removeLocked(m)
		s.answerLocked(&fanfarev1.SessionResponse{
			Notice:  &fanfarev1.SessionResponse_Unsubscribed{Unsubscribed: &fanfarev1.Unsubscribed{}},
			Numbers: []uint32{number},
		})
	}
	return nil
}

// creditLocked gives a subscription more credit. One that needs none has enough.
func (s *session) creditLocked(r *fanfarev1.SessionCredit) error {
	if err := checkNumber("credit", r.GetNumber()); err != nil {
		return err
	}
	m := s.members.all[r.GetNumber()]
	if m == nil || !m.limited {
		return nil
	}
	if r.GetBytes() > math.MaxInt64 || int64(r.GetBytes()) > math.MaxInt64-max(0, m.credit) { //nolint:gosec // checked
		s.removeLocked(m)
		s.endedLocked(failureOf(&backlog.LimitError{Field: "credit.bytes", Message: "make the credit 2^63 or more"}), m.number)
		return nil
	}
	m.credit += int64(r.GetBytes()) //nolint:gosec // checked
	if m.cohort != s.taken.cohort {
		s.settleLocked(m.cohort)
	}
	return nil
}

func checkNumber(request string, number uint32) error {
	if number == 0 {
		return &backlog.LimitError{Field: request + ".number", Message: "must not be 0"}
	}
	return nil
}

// endingOf is what the client is told of a subscription that ended with err.
func endingOf(sub *hub.Subscription, err error) *failure {
	if errors.Is(err, hub.ErrSlowSubscriber) {
		return droppedFrames(sub.Position())
	}
	return readFailureOf(err)
}

// endedLocked tells the client why subscriptions have ended.
func (s *session) endedLocked(f *failure, numbers ...uint32) {
	s.server.logItem(s.stream.Context(), "a subscription of Session", "ended a subscription of a Session", f)
	s.answerLocked(&fanfarev1.SessionResponse{
		Notice:  &fanfarev1.SessionResponse_Ended{Ended: &fanfarev1.Ended{Error: f.item()}},
		Numbers: numbers,
	})
}

// logItem logs the failure of one item of a call as it would the end of a call that
// fails so, with who calls.
func (s *Server) logItem(ctx context.Context, method, message string, f *failure) {
	kind := callKind{method: method, code: f.code.String(), reason: reasonName(f.reason)}
	s.callLog.log(ctx, kind, slog.Level(callLevel(f.code)), message,
		append(peerFields(ctx), codeField, kind.code, reasonField, kind.reason, "grpc.error", f.Error()))
}

// tooManyMembers refuses a subscription of a session that has limit of them.
func tooManyMembers(limit int) *failure {
	return &failure{
		code:    codes.ResourceExhausted,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED,
		message: fmt.Sprintf("the session has %d subscriptions, the most that the server lets one have; end some, or open another session", limit),
	}
}

// slowSession ends a session whose client stopped reading.
func slowSession(timeout time.Duration) *failure {
	return &failure{
		code:    codes.ResourceExhausted,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER,
		message: fmt.Sprintf("nothing was taken for %s while something waited; resume each subscription with its last position", timeout),
		retryIn: retrySlow,
	}
}

func closingSession(retryIn time.Duration) *fanfarev1.SessionResponse {
	return &fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Closing{
		Closing: &fanfarev1.Closing{RetryIn: durationpb.New(retryIn)},
	}}
}

func progressSession() *fanfarev1.SessionResponse {
	return &fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Progress{Progress: &fanfarev1.Progress{}}}
}
