package service_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A subscriber that takes nothing is seen from outside: behind rises for the replica
// that it is at, in both calls that describe a stream, and falls when it reads on. One
// that keeps up beside it changes nothing.
func TestBehindIsOfTheSlowestSubscriber(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("behind", "s")
		publishMany(t, w.a, s, 1, numbered)
		slow := subscribeWith(t, fanfarev1.NewFanfareServiceClient(dial(t, w.b.Addr, narrow)), live(s))
		fast := subscribe(t, w.b, live(s))
		slow.untilCaughtUp()
		fast.untilCaughtUp()
		if got := described(t, w.b, s); got.GetBehind() != 0 || got.GetSubscribers() != 2 {
			t.Errorf("before anything is published: %v", got)
		}
		// What the connection holds on its way is far less than half of it.
		const frames = 60
		publishMany(t, w.a, s, frames, func(i int) string { return numbered(i) + string(make([]byte, 100_000)) })
		fast.take(frames)
		if got := described(t, w.b, s).GetBehind(); got < frames/2 || got > frames {
			t.Errorf("of %d frames the slow one is said to be %d behind", frames, got)
		}
		if db.Has(servicetest.Replicas) {
			if got := described(t, w.a, s); got.GetBehind() != 0 || got.GetSubscribers() != 0 {
				t.Errorf("the replica without subscribers says %v", got)
			}
		}
		slow.take(frames)
		eventually(t, "the slow one has caught up", func() bool { return described(t, w.b, s).GetBehind() == 0 })
	})
}

// described is what both calls say of a stream while nothing moves.
func described(t *testing.T, r *servicetest.Replica, s backlog.StreamName) *fanfarev1.Stream {
	t.Helper()
	list, err := r.Client.ListStreams(t.Context(), &fanfarev1.ListStreamsRequest{Channel: s.Channel})
	if err != nil || len(list.GetStreams()) != 1 {
		t.Fatalf("ListStreams: %v, %v", list, err)
	}
	got, err := r.Client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: s.Channel, Scope: s.Scope})
	if err != nil {
		t.Fatal(err)
	}
	// A subscriber that reads moves on between the two.
	if listed := list.GetStreams()[0].GetBehind(); listed < got.GetStream().GetBehind() {
		t.Errorf("ListStreams says %d behind, GetStream then %d", listed, got.GetStream().GetBehind())
	}
	return got.GetStream()
}

// What the hub holds is in the document of the health page, and what was published.
func TestHealthzTellsWhatTheHubHolds(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("held", "s")
		one, two := subscribe(t, w.a, live(s)), subscribe(t, w.a, live(s))
		publishMany(t, w.a, s, 3, numbered)
		announce(t, w.a, ephemeral(s, "e"))
		for _, r := range []*reader{one, two} {
			r.take(4)
		}
		document := healthzOf(t, w.a)
		if document.Published != 4 {
			t.Errorf("%d frames are said to be published, want 4", document.Published)
		}
		want := heldByHub{Streams: 1, Subscribers: 2, Frames: 4, Ephemeral: 1}
		if got := document.Hub; got.TailBytes < 100 || got.TailBytes > 10_000 {
			t.Errorf("tails hold %d bytes", got.TailBytes)
		} else if got.TailBytes = 0; got != want {
			t.Errorf("the hub is said to hold %+v, want %+v", got, want)
		}
		one.cancel()
		eventually(t, "a subscriber is gone", func() bool { return healthzOf(t, w.a).Hub.Subscribers == 1 })
	})
}

type heldByHub struct {
	Streams     int
	Subscribers int
	TailBytes   int64 `json:"tail_bytes"`
	Frames      uint64
	Ephemeral   uint64
}

type healthzDocument struct {
	Hub       heldByHub
	Published uint64
}

func healthzOf(t *testing.T, r *servicetest.Replica) (document healthzDocument) {
	t.Helper()
	answer := httptest.NewRecorder()
	r.Server.HTTPHandler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", http.NoBody))
	if err := json.Unmarshal(answer.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	return document
}
