package service_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A subscriber that does not take ephemeral frames is ended with the reason and
// its position, and nothing that it got was thinned; one that reads gets all.
func TestSlowSubscriberOfEphemeralFrames(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.TailFrames = 100 })
		s := stream("ephemeral", "slow")
		at := publish(t, w.a, newFrame(s, "durable"))
		slow, quick := subscribe(t, w.b, fromOldest(s)), subscribe(t, w.b, fromOldest(s))
		quick.take(1)
		slow.take(1)
		const n = 200
		filler := strings.Repeat("x", 100_000) // more than a transport takes unread
		var reading errgroup.Group
		reading.Go(func() error {
			for i := 0; i < n; {
				if err := quick.recv(); err != nil {
					return fmt.Errorf("after %d frames: %w", i, err)
				}
				for ; i < n && i < len(quick.frames); i++ {
					if got := string(quick.frames[i].GetPayload()); got != numbered(i)+filler {
						return fmt.Errorf("frame %d is %q", i, shorten(got))
					}
				}
			}
			return nil
		})
		for i := range n {
			announce(t, w.a, newFrame(s, numbered(i)+filler))
		}
		if err := reading.Wait(); err != nil {
			t.Error(err)
		}
		var err error
		for err == nil {
			err = slow.recv()
		}
		info := infoOf(err)
		if status.Code(err) != codes.ResourceExhausted || info.GetReason() != "SLOW_SUBSCRIBER" || info.GetMetadata()["position"] != position(at).String() {
			t.Errorf("the slow subscriber was ended with %v, %v", err, info)
		}
		for i, f := range slow.frames {
			if got := string(f.GetPayload()); got != numbered(i)+filler {
				t.Fatalf("frame %d is %q", i, shorten(got))
			}
		}
		if len(slow.frames) == n {
			t.Error("it got everything: nothing was tested")
		}
		again := subscribe(t, w.b, after(s, at))
		again.silent("marker", func() { announce(t, w.a, newFrame(s, "marker")) })
	})
}

// infoOf is the ErrorInfo of an error; nil if it has none.
func infoOf(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// Whoever may have missed ephemeral frames is told so, where they would have been;
// subscriptions of streams that carry none are told that it listens again, and
// nothing else.
func TestEphemeralFramesMayBeMissed(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages, servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		carries, durable := stream("missed", "carries"), stream("missed", "durable")
		var at *fanfarev1.Position
		var told, others []*reader
		for _, r := range []*servicetest.Replica{w.a, w.b} {
			told = append(told, subscribe(t, r, fromOldest(carries)))
			others = append(others, subscribe(t, r, fromOldest(durable)))
		}
		announce(t, w.a, newFrame(carries, "ephemeral"))
		at = publish(t, w.a, newFrame(carries, "durable"))
		publish(t, w.a, newFrame(durable, "durable"))
		for i := range told {
			told[i].take(2)
			others[i].take(1)
		}
		if n := w.killListeners(w.sql()); n != 2 {
			t.Fatalf("%d listeners were killed", n)
		}
		listening := func(m *fanfarev1.SubscribeResponse) bool { return m.GetStatus().GetListening() }
		for _, r := range told {
			gap := r.untilGap()
			if gap.GetReason() != fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED ||
				position(gap.GetResumeAfter()) != position(at) || position(gap.GetRequested()) != position(at) || position(gap.GetHead()) != position(at) {
				t.Errorf("told %v, the position is %v", gap, at)
			}
		}
		for _, r := range others {
			r.until("listening again", listening)
		}
		// The marker is behind whatever else they are told.
		publish(t, w.a, newFrame(carries, "marker"))
		publish(t, w.a, newFrame(durable, "marker"))
		gaps := func(r *reader) (n int) {
			for _, m := range r.notices {
				if m.GetGap() != nil {
					n++
				}
			}
			return n
		}
		for i := range told {
			if got := told[i].payloads(1)[0]; got != "marker" || gaps(told[i]) != 1 {
				t.Errorf("got %q, %d gaps", got, gaps(told[i]))
			}
			if got := others[i].payloads(1)[0]; got != "marker" || gaps(others[i]) != 0 {
				t.Errorf("a stream without ephemeral frames got %q, %d gaps", got, gaps(others[i]))
			}
		}
	})
}

// Symptom: of a burst that began a stream, those who waited for it got a part, and a
// gap. Cause: what is announced before the stream has been read was held within
// bounds far below those of a tail. It comes whole and in order, before what was
// published after it, and nothing is told.
func TestFirstBurstOfEphemeralFrames(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		const most = 1000 // of one transaction
		for round, n := range []int{900, 900, 900, 4000} {
			s := stream("burst", fmt.Sprint(round))
			r := subscribe(t, w.b, live(s))
			for from := 0; from < n; from += most {
				frames := make([]*fanfarev1.NewFrame, min(most, n-from))
				for i := range frames {
					frames[i] = ephemeral(s, numbered(from+i))
				}
				if _, err := w.a.Client.PublishBatch(t.Context(), &fanfarev1.PublishBatchRequest{Frames: frames}); err != nil {
					t.Fatal(err)
				}
			}
			publish(t, w.a, newFrame(s, "marker"))
			for i, f := range r.take(n + 1) {
				want := numbered(i)
				if i == n {
					want = "marker"
				}
				if got := string(f.GetPayload()); got != want || f.GetEphemeral() != (i < n) {
					t.Fatalf("round %d: frame %d of %d is %q, ephemeral: %t", round, i, n, got, f.GetEphemeral())
				}
			}
			for _, m := range r.notices {
				if m.GetGap() != nil {
					t.Errorf("round %d: told %v", round, m)
				}
			}
			r.cancel()
		}
	})
}
