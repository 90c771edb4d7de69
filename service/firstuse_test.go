package service_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S160, symptom: the first subscriber of a stream that nobody had
// published to failed. Cause: nothing was there yet, which developers never see.
// Every call on names that were never used is answered, and then they are used.
func TestFirstUse(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("first", "use")
		readers := []*reader{
			subscribe(t, w.b, fromOldest(s)), subscribe(t, w.b, live(s)), subscribe(t, w.b, after(s, &fanfarev1.Position{})),
			subscribe(t, w.b, &fanfarev1.SubscribeRequest{Channel: s.Channel, Scope: s.Scope, Start: &fanfarev1.SubscribeRequest_Last{Last: 3}}),
		}
		for i, r := range readers {
			if got := r.subscribed; got.GetHead().GetSequence() != 0 || got.GetResumeAfter().GetSequence() != 0 {
				t.Errorf("subscription %d: %v", i, got)
			}
			r.untilCaughtUp()
		}
		closed, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
		if err != nil || !closed.GetAlreadyClosed() || closed.GetLast().GetSequence() != 0 {
			t.Errorf("CloseStream: %v, %v", closed, err)
		}
		page, err := w.a.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope})
		if err != nil || len(page.GetFrames()) != 0 || page.GetGap() != nil {
			t.Errorf("ReadFrames: %v, %v", page, err)
		}
		if _, err := w.a.Client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: s.Channel, Scope: s.Scope}); status.Code(err) != codes.NotFound {
			t.Errorf("GetStream: %v", err)
		}
		list, err := w.a.Client.ListStreams(t.Context(), &fanfarev1.ListStreamsRequest{})
		if err != nil || len(list.GetStreams()) != 0 {
			t.Errorf("ListStreams: %v, %v", list, err)
		}
		policies, err := w.a.Client.ListPolicies(t.Context(), &fanfarev1.ListPoliciesRequest{})
		if err != nil || len(policies.GetPolicies()) != 1 { // the backlog of newWorld
			t.Errorf("ListPolicies: %v, %v", policies, err)
		}
		publish(t, w.a, newFrame(s, "first"))
		for i, r := range readers {
			if f := r.take(1)[0]; f.GetPosition().GetSequence() != 1 || string(f.GetPayload()) != "first" {
				t.Errorf("subscription %d got %v", i, f)
			}
		}
	})
}
