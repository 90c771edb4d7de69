package service_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// The path of a frame: published through one replica, or by SQL, replayed and
// delivered live by the other.
func TestPublishHereSubscribeThere(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("orders", "1")
		first := publish(t, w.a, newFrame(s, "stored"))

		r := subscribe(t, w.b, fromOldest(s))
		if got := r.payloads(1); got[0] != "stored" {
			t.Errorf("replayed %q", got)
		}
		r.untilCaughtUp()
		publish(t, w.a, newFrame(s, "live"))
		want := []string{"live", "last"}
		if db.Has(servicetest.SQL) {
			db.PublishSQL(t, s, "last")
		} else {
			publish(t, w.a, newFrame(s, "last"))
		}
		if got := r.payloads(2); !slices.Equal(got, want) {
			t.Errorf("delivered %q", got)
		}

		resumed := subscribe(t, w.a, after(s, first))
		if !resumed.subscribed.GetResumed() {
			t.Error("it was not resumed")
		}
		if got := resumed.payloads(2); !slices.Equal(got, want) {
			t.Errorf("resumed with %q", got)
		}

		answer, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
		if err != nil || answer.GetLast().GetSequence() != 3 || answer.GetAlreadyClosed() {
			t.Errorf("close: %v, %v", answer, err)
		}
		for _, reader := range []*reader{r, resumed} {
			if code := reader.end(); code != codes.OK {
				t.Errorf("the subscription ended %s", code)
			}
			if last := reader.notices[len(reader.notices)-1].GetClosed().GetLast().GetSequence(); last != 3 {
				t.Errorf("closed after %d", last)
			}
		}
	})
}

// Everything that describes a stream agrees on it.
func TestStreamsAreDescribed(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("orders", "1")
		get := func() (*fanfarev1.Stream, error) {
			answer, err := w.b.Client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: s.Channel, Scope: s.Scope})
			return answer.GetStream(), err
		}
		if _, err := get(); status.Code(err) != codes.NotFound {
			t.Errorf("a stream that was never published to: %v", err)
		}
		positions := publishMany(t, w.a, s, 3, numbered)
		subscribe(t, w.b, live(s))
		got, err := get()
		if err != nil {
			t.Fatal(err)
		}
		if got.GetHead().GetSequence() != 3 || got.GetHead().GetEpoch() != positions[2].GetEpoch() || got.GetOldest() != 1 ||
			got.GetClosed() || got.GetSubscribers() != 1 || !got.GetCreated().IsValid() || !got.GetUpdated().IsValid() {
			t.Errorf("GetStream: %v", got)
		}
		list, err := w.a.Client.ListStreams(t.Context(), &fanfarev1.ListStreamsRequest{Channel: "orders"})
		if err != nil || len(list.GetStreams()) != 1 || list.GetStreams()[0].GetHead().GetSequence() != 3 {
			t.Errorf("ListStreams: %v, %v", list, err)
		}
		if list, err = w.a.Client.ListStreams(t.Context(), &fanfarev1.ListStreamsRequest{Channel: "other"}); err != nil || len(list.GetStreams()) != 0 {
			t.Errorf("ListStreams of another channel: %v, %v", list, err)
		}
		page, err := w.a.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope, Limit: 2})
		if err != nil || len(page.GetFrames()) != 2 || page.GetNext().GetSequence() != 2 || page.GetHead().GetSequence() != 3 {
			t.Errorf("ReadFrames: %v, %v", page, err)
		}
	})
}

func TestReadFramesPages(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("pages", "")
		// 40 frames of 100 kB: about ten to a page.
		positions := publishMany(t, w.a, s, 40, func(i int) string { return numbered(i) + string(make([]byte, 100_000)) })
		var got []*fanfarev1.Frame
		request := &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope}
		for pages := 0; ; pages++ {
			page, err := w.b.Client.ReadFrames(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if page.GetGap() != nil {
				t.Errorf("a gap: %v", page.GetGap())
			}
			if len(page.GetFrames()) == 0 {
				break
			}
			if n := len(page.GetFrames()); n > 10 || pages > 40 {
				t.Fatalf("page %d has %d frames", pages, n)
			}
			got = append(got, page.GetFrames()...)
			request.After = page.GetNext()
		}
		if len(got) != 40 {
			t.Fatalf("%d of 40 frames were read", len(got))
		}
		contiguous(t, got, 1)

		wrong := &fanfarev1.Position{Epoch: positions[0].GetEpoch() + 1, Sequence: 7}
		page, err := w.b.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope, After: wrong, Limit: 1})
		if err != nil || page.GetGap().GetReason() != fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED || page.GetFrames()[0].GetPosition().GetSequence() != 1 {
			t.Errorf("after a position of another epoch: %v, %v", page.GetGap(), err)
		}
		page, err = w.b.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: "never"})
		if err != nil || len(page.GetFrames()) != 0 || page.GetNext().GetSequence() != 0 || page.GetClosed() {
			t.Errorf("of a stream that does not exist: %v, %v", page, err)
		}
	})
}

// Outcomes of publishing that are told by codes and details.
func TestPublishOutcomes(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("outcomes", "")
		keyed := func(payload string) *fanfarev1.PublishRequest {
			f := newFrame(s, payload)
			f.IdempotencyKey = "key"
			return &fanfarev1.PublishRequest{Frame: f}
		}
		first, err := w.a.Client.Publish(t.Context(), keyed("x"))
		if err != nil || first.GetDuplicate() {
			t.Fatalf("%v, %v", first, err)
		}
		again, err := w.b.Client.Publish(t.Context(), keyed("x"))
		if err != nil || !again.GetDuplicate() || again.GetPosition().GetSequence() != 1 {
			t.Errorf("the same key again: %v, %v", again, err)
		}
		if _, err := w.b.Client.Publish(t.Context(), keyed("y")); status.Code(err) != codes.AlreadyExists {
			t.Errorf("another content: %v", err)
		}
		expected := newFrame(s, "z")
		expected.ExpectedSequence = new(uint64(7))
		if _, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: expected}); status.Code(err) != codes.Aborted {
			t.Errorf("an expectation that fails: %v", err)
		}
		mixed := &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{keyed("x").GetFrame(), newFrame(s, "new")}}
		if _, err := w.a.Client.PublishBatch(t.Context(), mixed); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a batch that is partly a duplicate: %v", err)
		}
		large := newFrame(s, string(make([]byte, 1<<20+1)))
		if _, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: large}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a payload above the limit: %v", err)
		}
		if got := publish(t, w.a, newFrame(s, "last")); got.GetSequence() != 2 {
			t.Errorf("refused publishes left a hole: %v", got)
		}
	})
}
