package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// onEachWay runs a test with a client that has a call for each subscription, and with one
// that has a session, of a replica behind a proxy on the embedded store.
func onEachWay(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, session := range map[string]bool{"subscribe": false, "session": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := servicetest.Start(t, "sqlite::memory:", func(c *servicetest.Config) { c.Service.Heartbeat = 500 * time.Millisecond })
			w := &world{t: t, replica: r, direct: newClient(t, []string{r.Addr})}
			if session {
				w.options = []clientlib.Option{clientlib.WithSession()}
			}
			w.proxy = pgtest.Proxy(t, r.Addr)
			w.client = newClient(t, []string{w.proxy.Addr()}, w.options...)
			test(t, w)
		})
	}
}

// world is a replica, and a client that reaches it through a proxy.
type world struct {
	t       *testing.T
	replica *servicetest.Replica
	proxy   *pgtest.ProxyServer
	options []clientlib.Option
	client  *clientlib.Client
	// direct publishes, whatever the proxy does.
	direct *clientlib.Client
}

func (w *world) subscribe(s clientlib.Stream, start clientlib.Start, options ...clientlib.SubscribeOption) *reader {
	w.t.Helper()
	return read(w.t, w.client.Subscribe(w.t.Context(), s, start, options...))
}

func (w *world) closeStream(s clientlib.Stream) {
	w.t.Helper()
	_, err := w.replica.Client.CloseStream(w.t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
	if err != nil {
		w.t.Fatal(err)
	}
}

// publishFew publishes frames first to last, each with its number as payload.
func (w *world) publishFew(s clientlib.Stream, first, last int) (position clientlib.Position) {
	w.t.Helper()
	for i := first; i <= last; i++ {
		position = publish(w.t, w.direct, frame(s, fmt.Sprint(i)))
	}
	return position
}

func TestSubscribeFromEachStart(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("starts")
		second := w.publishFew(s, 1, 2)
		w.publishFew(s, 3, 4)
		oldest := w.subscribe(s, clientlib.Oldest())
		oldest.expect("subscribed after 0, resumed false", "1 1", "2 2", "3 3", "4 4", "caught up at 4")
		after := w.subscribe(s, clientlib.After(second))
		if got := after.Position(); got != second {
			t.Errorf("before Subscribed the position is %s, want that of the start, %s", got, second)
		}
		after.expect("subscribed after 2, resumed true", "3 3", "4 4", "caught up at 4")
		last := w.subscribe(s, clientlib.Last(1))
		last.expect("subscribed after 3, resumed false", "4 4", "caught up at 4")
		live := w.subscribe(s, clientlib.Live())
		live.expect("subscribed after 4, resumed false", "caught up at 4")
		w.publishFew(s, 5, 5)
		for _, r := range []*reader{oldest, after, last, live} {
			r.expect("5 5")
		}
	})
}

func TestAFrameArrivesAsItWasPublished(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("whole")
		sent := clientlib.NewFrame{
			Stream: s, Payload: []byte{0, 0xff, '\n'}, ContentType: "application/octet-stream", EventType: "paid",
			Headers: map[string]string{"a": "1", "b": ""},
		}
		position := publish(t, w.direct, sent)
		got := until[*clientlib.Frame](w.subscribe(s, clientlib.Oldest()))
		if string(got.Payload) != string(sent.Payload) || got.ContentType != sent.ContentType || got.EventType != sent.EventType ||
			fmt.Sprint(got.Headers) != fmt.Sprint(sent.Headers) || got.Position != position || got.Created.IsZero() || got.Ephemeral {
			t.Errorf("got %+v of %+v at %s", got, sent, position)
		}
	})
}

func TestClosedStreamEndsTheSubscription(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("closed")
		w.publishFew(s, 1, 1)
		r := w.subscribe(s, clientlib.Oldest())
		r.expect("subscribed after 0, resumed false", "1 1", "caught up at 1")
		w.closeStream(s)
		r.expect("closed at 1")
		for range 2 {
			if err := r.ends(); !errors.Is(err, io.EOF) {
				t.Errorf("after Closed: %v", err)
			}
		}
		for e, err := range r.All(t.Context()) {
			t.Errorf("after the end All yielded %v, %v", e, err)
		}
	})
}

// A subscription goes on after its connection broke: with what it had not had, and
// nothing twice.
func TestSubscriptionResumes(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("resume")
		w.publishFew(s, 1, 2)
		r := w.subscribe(s, clientlib.Oldest())
		r.expect("subscribed after 0, resumed false", "1 1", "2 2", "caught up at 2")
		w.proxy.Refuse()
		w.proxy.Reset()
		interrupted := until[*clientlib.Interrupted](r)
		if interrupted.RetryIn <= 0 || interrupted.Err == nil {
			t.Errorf("got %+v", interrupted)
		}
		w.publishFew(s, 3, 3) // before it is back
		w.proxy.Restore()
		subscribed := until[*clientlib.Subscribed](r)
		if !subscribed.Resumed {
			t.Errorf("got %+v", subscribed)
		}
		r.expect("3 3", "caught up at 3")
	})
}

// Symptom: frames published while a subscription from live was interrupted never came.
// Cause: live was asked for again. Nothing had come but Subscribed.
func TestLiveIsNotAskedForTwice(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("live")
		w.publishFew(s, 1, 1)
		r := w.subscribe(s, clientlib.Live())
		r.expect("subscribed after 1, resumed false", "caught up at 1")
		w.proxy.Refuse()
		w.proxy.Reset()
		until[*clientlib.Interrupted](r)
		w.publishFew(s, 2, 2)
		w.proxy.Restore()
		until[*clientlib.Subscribed](r)
		r.expect("2 2", "caught up at 2")
	})
}

func TestNextsContextLosesNothing(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("context")
		r := w.subscribe(s, clientlib.Oldest())
		r.expect("subscribed after 0, resumed false", "caught up at 0")
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			var e clientlib.Event
			go func() {
				var err error
				e, err = r.Next(ctx)
				ended <- err
			}()
			w.publishFew(s, i+1, i+1)
			cancel()
			switch err := <-ended; {
			case err == nil:
				if got, want := text(e), fmt.Sprintf("%d %d", i+1, i+1); got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
				continue
			case !errors.Is(err, context.Canceled):
				t.Fatal(err)
			}
			if _, err := r.Next(gone); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			r.expect(fmt.Sprintf("%d %d", i+1, i+1))
		}
	})
}
