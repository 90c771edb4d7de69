package service_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// sessionCall is a Session as its client sees it.
type sessionCall struct {
	t      testing.TB
	call   fanfarev1.FanfareService_SessionClient
	cancel context.CancelFunc
	// frames and notices are what came for a number; those for all are under 0. Progress
	// is left out.
	frames  map[uint32][]*fanfarev1.Frame
	notices map[uint32][]*fanfarev1.SessionResponse
	// messages counts those with frames.
	messages int
}

func openSession(t testing.TB, client fanfarev1.FanfareServiceClient) *sessionCall {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	call, err := client.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &sessionCall{
		t: t, call: call, cancel: cancel,
		frames:  make(map[uint32][]*fanfarev1.Frame),
		notices: make(map[uint32][]*fanfarev1.SessionResponse),
	}
}

func subscribing(number uint32, request *fanfarev1.SubscribeRequest) *fanfarev1.SessionRequest {
	return &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{
		Subscribe: &fanfarev1.SessionSubscribe{Number: number, Request: request},
	}}
}

func unsubscribing(number uint32) *fanfarev1.SessionRequest {
	return &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Unsubscribe{
		Unsubscribe: &fanfarev1.SessionUnsubscribe{Number: number},
	}}
}

func (s *sessionCall) send(r *fanfarev1.SessionRequest) {
	s.t.Helper()
	if err := s.call.Send(r); err != nil {
		s.t.Fatal(err)
	}
}

// recv takes one response.
func (s *sessionCall) recv() error {
	r, err := s.call.Recv()
	if err != nil {
		return err
	}
	numbers := r.GetNumbers()
	if len(numbers) == 0 {
		numbers = []uint32{0}
	}
	if len(r.GetFrames()) > 0 {
		s.messages++
	}
	for _, number := range numbers {
		s.frames[number] = append(s.frames[number], r.GetFrames()...)
		if r.GetNotice() != nil && r.GetProgress() == nil {
			s.notices[number] = append(s.notices[number], r)
		}
	}
	return nil
}

// until takes responses until something is so.
func (s *sessionCall) until(what string, is func() bool) {
	s.t.Helper()
	for !is() {
		if err := s.recv(); err != nil {
			s.t.Fatalf("waiting until %s: %v", what, err)
		}
	}
}

// subscribed subscribes and waits for Subscribed.
func (s *sessionCall) subscribed(number uint32, request *fanfarev1.SubscribeRequest) {
	s.t.Helper()
	delete(s.frames, number)
	delete(s.notices, number)
	s.send(subscribing(number, request))
	s.until("it is subscribed", func() bool { return len(s.notices[number]) > 0 })
	if s.notices[number][0].GetSubscribed() == nil {
		s.t.Fatalf("the first response is %v", s.notices[number][0])
	}
}

func (s *sessionCall) caughtUp(number uint32) {
	s.t.Helper()
	s.until("it has caught up", func() bool {
		return slices.ContainsFunc(s.notices[number], func(r *fanfarev1.SessionResponse) bool { return r.GetCaughtUp() != nil })
	})
}

// payloads returns the first n of a number, and that there are no more is not said.
func (s *sessionCall) payloads(number uint32, n int) (payloads []string) {
	s.t.Helper()
	s.until("the frames have come", func() bool { return len(s.frames[number]) >= n })
	for _, f := range s.frames[number] {
		payloads = append(payloads, string(f.GetPayload()))
	}
	return payloads
}

// end reads to the end of the call and returns how it ended.
func (s *sessionCall) end() error {
	for {
		if err := s.recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func closeStream(t testing.TB, r *servicetest.Replica, s backlog.StreamName) {
	t.Helper()
	if _, err := r.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope}); err != nil {
		t.Fatal(err)
	}
}

// position is where a subscription stands after what came.
func (s *sessionCall) position(number uint32) *fanfarev1.Position {
	if n := len(s.frames[number]); n > 0 {
		return s.frames[number][n-1].GetPosition()
	}
	return s.notices[number][0].GetSubscribed().GetResumeAfter()
}

func withCredit(r *fanfarev1.SessionRequest, credit uint64) *fanfarev1.SessionRequest {
	r.GetSubscribe().Credit = proto.Uint64(credit)
	return r
}
