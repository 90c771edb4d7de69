package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S36 with a restart, symptom: after it every client was sent everything
// again. Cause: positions counted by the process that served them. A position got
// from a replica that is gone is good at its successor and at any other.
func TestPositionsOutliveTheirReplica(t *testing.T) {
	url := pgtest.NewDatabase(t)
	gone := servicetest.Start(t, url, wholeBacklog)
	s := stream("restarted", "")
	publishMany(t, gone, s, 10, numbered)
	read := subscribe(t, gone, fromOldest(s)).take(10)
	if err := gone.Stop(); err != nil {
		t.Fatal(err)
	}
	for name, replica := range map[string]*servicetest.Replica{
		"successor": servicetest.Start(t, url, wholeBacklog), "other": servicetest.Start(t, url, wholeBacklog),
	} {
		page, err := replica.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope})
		if err != nil || len(page.GetFrames()) != 10 {
			t.Fatalf("%s: ReadFrames returns %d frames, %v", name, len(page.GetFrames()), err)
		}
		for i, f := range read {
			if got := page.GetFrames()[i].GetPosition(); position(got) != position(f.GetPosition()) {
				t.Errorf("%s: frame %d stands at %v, and stood at %v", name, i, got, f.GetPosition())
			}
			r := subscribe(t, replica, after(s, f.GetPosition()))
			if !r.subscribed.GetResumed() {
				t.Errorf("%s: after %v: %v", name, f.GetPosition(), r.subscribed)
			}
			r.untilCaughtUp()
			if len(r.frames) != 9-i {
				t.Errorf("%s: %d frames follow frame %d", name, len(r.frames), i)
			}
			contiguous(t, r.frames, uint64(i)+2)
			r.cancel()
		}
	}
}

// Scenario S27 from the other side: the close has not committed yet. A publish
// waits for it, and then begins the next numbering, or goes on with this one if
// the close is rolled back. Nothing comes after Closed.
func TestPublishWaitsForAClose(t *testing.T) {
	w := newWorld(t)
	for _, end := range []string{"commit", "rollback"} {
		t.Run(end, func(t *testing.T) {
			s := stream("closing", end)
			first := publish(t, w.a, newFrame(s, "first"))
			r := subscribe(t, w.b, fromOldest(s))
			conn := w.sql()
			w.exec(conn, "begin")
			w.exec(conn, "select fanfare.close_stream($1, $2)", s.Channel, s.Scope)
			published := make(chan *fanfarev1.Position, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				answer, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, "second")})
				if err != nil {
					t.Errorf("publish: %v", err)
				}
				published <- answer.GetPosition()
			}()
			select {
			case p := <-published:
				t.Fatalf("the publish did not wait: %v", p)
			case <-time.After(200 * time.Millisecond):
			}
			w.exec(conn, end)
			second := <-published
			if end == "rollback" {
				if second.GetEpoch() != first.GetEpoch() || second.GetSequence() != 2 {
					t.Errorf("published at %v after %v", second, first)
				}
				contiguous(t, r.take(2), 1)
				return
			}
			if second.GetEpoch() == first.GetEpoch() || second.GetSequence() != 1 {
				t.Errorf("published at %v after %v was closed", second, first)
			}
			if code := r.end(); code != codes.OK || len(r.frames) != 1 {
				t.Errorf("the subscription ended %s after %d frames", code, len(r.frames))
			}
			if got := fmt.Sprint(subscribe(t, w.b, fromOldest(s)).payloads(1)); got != "[second]" {
				t.Errorf("the next numbering begins with %s", got)
			}
		})
	}
}
