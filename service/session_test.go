package service_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// overSession returns a client of a replica whose subscriptions share a Session.
func overSession(t *testing.T, r *servicetest.Replica) fanfarev1.FanfareServiceClient {
	t.Helper()
	s := servicetest.NewSessions(r.Client)
	t.Cleanup(s.Close)
	return s
}

// Subscriptions of one session begin where each of them asked, and get what follows.
func TestStartsInASession(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s, other := stream("starts", ""), stream("other", "")
		positions := publishMany(t, w.a, s, 100, numbered)
		client := overSession(t, w.b)
		last := &fanfarev1.SubscribeRequest{Channel: s.Channel, Start: &fanfarev1.SubscribeRequest_Last{Last: 3}}
		for _, tt := range []struct {
			name    string
			request *fanfarev1.SubscribeRequest
			first   int
		}{
			{"oldest", fromOldest(s), 0}, {"live", live(s), 100}, {"after", after(s, positions[41]), 42}, {"last", last, 97},
		} {
			r := subscribeWith(t, client, tt.request)
			for i, f := range r.take(100 - tt.first) {
				if got := string(f.GetPayload()); got != numbered(tt.first+i) {
					t.Fatalf("%s: frame %d is %q", tt.name, i, got)
				}
			}
			r.untilCaughtUp()
			defer func() {
				if got := r.payloads(1)[0]; got != "more" {
					t.Errorf("%s: the next frame is %q", tt.name, got)
				}
			}()
		}
		r := subscribeWith(t, client, live(other))
		publish(t, w.a, newFrame(other, "other"))
		if got := r.payloads(1)[0]; got != "other" {
			t.Errorf("the frame of another stream is %q", got)
		}
		publish(t, w.a, newFrame(s, "more"))
	})
}
var _ = context.Background
var _ = fmt.Sprint
var _ backlog.StreamName
