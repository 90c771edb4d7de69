package service_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S15, symptom: a client that resumed from an id the server had never
// seen got neither an error nor the rest. Cause: the position was matched by
// equality instead of by order.
func TestResumeFromPositionsThatMeanNothing(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s, other := stream("resume", "mine"), stream("resume", "other")
		stored := publishMany(t, w.a, s, 3, numbered)
		foreign := publishMany(t, w.a, other, 2, numbered)[1]
		epoch := stored[0].GetEpoch()
		for name, test := range map[string]struct {
			after  *fanfarev1.Position
			reason fanfarev1.GapReason
		}{
			"above the head":         {&fanfarev1.Position{Epoch: epoch, Sequence: 999}, fanfarev1.GapReason_GAP_REASON_AHEAD},
			"of another stream":      {foreign, fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED},
			"of another epoch":       {&fanfarev1.Position{Epoch: epoch + 1, Sequence: 2}, fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED},
			"of epoch 0":             {&fanfarev1.Position{Sequence: 2}, fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED},
			"the greatest there are": {&fanfarev1.Position{Epoch: 1<<63 - 1, Sequence: 1<<63 - 1}, fanfarev1.GapReason_GAP_REASON_AHEAD},
		} {
			t.Run(name, func(t *testing.T) {
				r := subscribe(t, w.b, after(s, test.after))
				r.t = t
				if r.subscribed.GetResumed() {
					t.Error("it says that it resumed")
				}
				gap := r.untilGap()
				if gap.GetReason() != test.reason || gap.GetRequested().GetSequence() != test.after.GetSequence() ||
					gap.GetOldest() != 1 || gap.GetHead().GetSequence() != 3 || gap.GetResumeAfter().GetSequence() != 0 {
					t.Errorf("the gap is %v", gap)
				}
				if got := r.payloads(3); !slices.Equal(got, []string{"frame 0", "frame 1", "frame 2"}) {
					t.Errorf("after the gap came %q", got)
				}
				r.cancel()
			})
		}
		r := subscribe(t, w.b, after(s, &fanfarev1.Position{Epoch: epoch, Sequence: 999}))
		r.take(3)
		r.silent("live", func() { publish(t, w.a, newFrame(s, "live")) })
	})
}

// Scenario S157, symptom: a position above the end was an internal error, and the
// client took what came instead for final. It is answered like any other that
// cannot be resumed, and delivery goes on; above 2^63 no position can be.
func TestPositionsBeyondTheHead(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("beyond", "")
		head := publishMany(t, w.a, s, 3, numbered)[2]
		for _, sequence := range []uint64{4, 1003, 1<<63 - 1} {
			beyond := &fanfarev1.Position{Epoch: head.GetEpoch(), Sequence: sequence}
			page, err := w.b.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, After: beyond})
			if err != nil || page.GetGap().GetReason() != fanfarev1.GapReason_GAP_REASON_AHEAD || len(page.GetFrames()) != 3 {
				t.Errorf("ReadFrames after %d: %v, %v", sequence, page, err)
			}
			r := subscribe(t, w.b, after(s, beyond))
			if gap := r.untilGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_AHEAD || gap.GetHead().GetSequence() != head.GetSequence() {
				t.Errorf("after %d: %v", sequence, gap)
			}
			contiguous(t, r.take(3), 1)
			r.silent("live", func() { head = publish(t, w.a, newFrame(s, "live")) })
			if _, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel}); err != nil {
				t.Fatal(err)
			}
			head = publishMany(t, w.a, s, 3, numbered)[2]
			r.cancel()
		}
		for _, sequence := range []uint64{1 << 63, 1<<64 - 1} {
			beyond := &fanfarev1.Position{Epoch: head.GetEpoch(), Sequence: sequence}
			_, err := w.b.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, After: beyond})
			if code := open(t, w.b.Client, after(s, beyond)).end(); code != codes.InvalidArgument || status.Code(err) != codes.InvalidArgument {
				t.Errorf("after %d: %s and %v", sequence, code, err)
			}
		}
	})
}

// Scenario S28, symptom: a notification that came twice let frames through
// twice, or too early. Cause: notifications taken to arrive once per row.
func TestRepeatedNotifications(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("repeat", "")
		conn := w.sql()
		w.exec(conn, "listen fanfare_fanfare")
		publish(t, w.a, newFrame(s, "one"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		second := publish(t, w.a, newFrame(s, "two"))
		past := subscribe(t, w.b, fromOldest(s))
		past.take(2)
		beyond := subscribe(t, w.b, after(s, second))
		for range 5 {
			w.exec(conn, "select pg_notify('fanfare_fanfare', $1)", notification.Payload)
		}
		publish(t, w.a, newFrame(s, "three"))
		for _, r := range []*reader{past, beyond} {
			if got := r.payloads(1)[0]; got != "three" {
				t.Errorf("got %q", got)
			}
		}
	})
}

// Scenario S31, symptom: items were processed again after a cut. Cause: the
// position moved only with the marker at the end of a page.
func TestResumeInTheMiddleOfAReplay(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("cut", "")
		publishMany(t, w.a, s, 10, numbered)
		r := subscribe(t, w.a, fromOldest(s))
		third := r.take(3)[2]
		r.cancel()
		resumed := subscribe(t, w.b, after(s, third.GetPosition()))
		contiguous(t, resumed.take(7), 4)
		resumed.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
	})
}

// Scenarios S32 and S36, symptom: an item was delivered again, or each replica
// numbered frames by itself. Cause: a start taken for inclusive; counters per
// connection used as positions.
func TestPositionsAreExclusiveAndTheSameEverywhere(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("exclusive", "")
		positions := publishMany(t, w.a, s, 5, numbered)
		starts := append([]*fanfarev1.Position{{}}, positions...)
		for n, start := range starts {
			for _, replica := range []*servicetest.Replica{w.a, w.b} {
				r := subscribe(t, replica, after(s, start))
				if !r.subscribed.GetResumed() || r.subscribed.GetResumeAfter().GetSequence() != uint64(n) {
					t.Errorf("after %d: %v", n, r.subscribed)
				}
				got := r.take(5 - n)
				r.untilCaughtUp()
				if len(r.frames) != 0 {
					t.Errorf("after %d: %d frames too many", n, len(r.frames))
				}
				page, err := replica.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope, After: start})
				if err != nil || len(page.GetFrames()) != 5-n {
					t.Fatalf("ReadFrames after %d: %d frames, %v", n, len(page.GetFrames()), err)
				}
				for i := range got {
					want := position(positions[n+i])
					if position(got[i].GetPosition()) != want || position(page.GetFrames()[i].GetPosition()) != want {
						t.Errorf("after %d: frame %d stands at %v and %v, published at %v", n, i,
							got[i].GetPosition(), page.GetFrames()[i].GetPosition(), positions[n+i])
					}
				}
				r.cancel()
			}
		}
	})
}

// What the backlog no longer holds is announced, never skipped.
func TestTrimmedHistoryIsAnnounced(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Backlog = new(int64(5)) })
		s := stream("trimmed", "")
		first := publishMany(t, w.a, s, 20, numbered)[0]
		oldest := subscribe(t, w.b, fromOldest(s))
		contiguous(t, oldest.take(5), 16)
		r := subscribe(t, w.b, after(s, first))
		if gap := r.untilGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_TRIMMED || gap.GetOldest() != 16 {
			t.Errorf("the gap is %v", gap)
		}
		contiguous(t, r.take(5), 16)
		last := subscribe(t, w.b, &fanfarev1.SubscribeRequest{Channel: s.Channel, Start: &fanfarev1.SubscribeRequest_Last{Last: 2}})
		contiguous(t, last.take(2), 19)
	})
}

// Closing, reopening and positions of the numbering before.
func TestCloseAndReopen(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("closed", "")
		old := publishMany(t, w.a, s, 3, numbered)
		reader := subscribe(t, w.b, fromOldest(s))
		reader.take(3)
		closing := &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope, ExpectedEpoch: new(old[2].GetEpoch())}
		if _, err := w.a.Client.CloseStream(t.Context(), closing); err != nil {
			t.Fatal(err)
		}
		if code := reader.end(); code != codes.OK {
			t.Errorf("the subscription ended %s", code)
		}
		late := subscribe(t, w.b, after(s, old[1]))
		contiguous(t, late.take(1), 3)
		if code := late.end(); code != codes.OK || late.notices[len(late.notices)-1].GetClosed().GetLast().GetSequence() != 3 {
			t.Errorf("a position of the closed numbering: %s, %v", code, late.notices)
		}

		waiting := subscribe(t, w.b, fromOldest(s))
		reopened := publish(t, w.a, newFrame(s, "reopened"))
		if reopened.GetSequence() != 1 || reopened.GetEpoch() == old[0].GetEpoch() {
			t.Errorf("reopened at %v", reopened)
		}
		if got := waiting.payloads(1)[0]; got != "reopened" {
			t.Errorf("got %q", got)
		}
		for _, start := range []*fanfarev1.Position{old[1], {}} {
			r := subscribe(t, w.b, after(s, start))
			if gap := r.untilGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED {
				t.Errorf("after %v: %v", start, gap)
			}
			if got := r.payloads(1)[0]; got != "reopened" {
				t.Errorf("after %v: %q", start, got)
			}
		}
		if _, err := w.a.Client.CloseStream(t.Context(), closing); err == nil {
			t.Error("a late retry closed the next numbering")
		}
	})
}

// Scenario S27, symptom: a publish that overlapped a close left a frame behind
// in a stream that no longer was. Here a frame is before Closed, or of the next
// numbering.
func TestPublishAndCloseOverlap(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		for round := range 100 {
			s := stream("overlap", fmt.Sprint(round))
			first := publish(t, w.a, newFrame(s, "first"))
			r := subscribe(t, w.b, fromOldest(s))
			published := make(chan *fanfarev1.Position, 1)
			go func() { published <- publish(t, w.a, newFrame(s, "second")) }()
			if round%2 == 0 {
				<-time.After(time.Duration(round) * 20 * time.Microsecond) // a moment, not a wait
			}
			answer, err := w.b.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
			if err != nil {
				t.Fatal(err)
			}
			if code := r.end(); code != codes.OK {
				t.Fatalf("the subscription ended %s", code)
			}
			second := <-published
			delivered := len(r.frames) == 2
			if before := second.GetEpoch() == first.GetEpoch(); before != delivered {
				t.Fatalf("round %d: published at %v, closed after %v, %d frames delivered", round, second, answer.GetLast(), len(r.frames))
			}
			if !delivered {
				next := subscribe(t, w.a, fromOldest(s))
				if got := next.take(1)[0]; got.GetPosition().GetSequence() != 1 || string(got.GetPayload()) != "second" {
					t.Fatalf("round %d: the next numbering begins with %v", round, got)
				}
				next.cancel()
			}
		}
	})
}
