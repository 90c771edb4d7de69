package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
)

// subscribers are those of a stream on the replica.
func (w *world) subscribers(s clientlib.Stream) int {
	return w.replica.Hub.Subscribers(backlog.StreamName{Channel: s.Channel, Scope: s.Scope})
}

// Scenario S24, symptom: what was published right after a subscription began never came.
// Cause: the start of the call was taken for the acknowledgement. And one that ended
// before its acknowledgement leaves nothing on the server.
func TestNothingIsMissedAfterSubscribed(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("acknowledged")
		for i := range 100 {
			r := w.subscribe(s, clientlib.Live())
			until[*clientlib.Subscribed](r)
			w.publishFew(s, i, i)
			if got := r.frames(1); got[0] != fmt.Sprint(i) {
				t.Fatalf("got %q, want %d", got, i)
			}
			if err := w.client.Subscribe(t.Context(), s, clientlib.Live()).Close(); err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the server has no subscription", func() bool { return w.subscribers(s) == 0 })
	})
}

// Scenario S29, symptom: the replay of a call that had ended went on beside the next, so
// frames came twice and the position went back. The connection breaks while frames are
// read ahead.
func TestReplayOfABrokenCallIsOver(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("replay")
		const frames = 50
		w.publishFew(s, 1, frames)
		r := w.subscribe(s, clientlib.Oldest(), clientlib.WithReadAhead(100))
		var last uint64
		for i := 1; i <= frames; i++ {
			if i%5 == 0 {
				w.proxy.Reset()
			}
			f := until[*clientlib.Frame](r)
			if string(f.Payload) != fmt.Sprint(i) || r.Position() != f.Position || f.Position.Sequence <= last {
				t.Fatalf("got %q at %s, position %s; want %d", f.Payload, f.Position, r.Position(), i)
			}
			last = f.Position.Sequence
		}
		w.publishFew(s, frames+1, frames+1)
		if got := r.frames(1); got[0] != fmt.Sprint(frames+1) {
			t.Errorf("after all frames came %q", got)
		}
	})
}

// Scenario S30, symptom: a handler that closed its subscription and subscribed again got
// the frame again that it was handling.
func TestSubscribingAgainWhileHandlingAFrame(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("again")
		w.publishFew(s, 1, 5)
		var handled []string
		r := w.subscribe(s, clientlib.Oldest())
		for len(handled) < 5 {
			handled = append(handled, r.frames(1)...)
			if len(handled) == 3 {
				position := r.Position()
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				r = w.subscribe(s, clientlib.After(position))
			}
		}
		if want := []string{"1", "2", "3", "4", "5"}; !slices.Equal(handled, want) {
			t.Errorf("handled %q", handled)
		}
	})
}

// Scenario S35, symptom: after n reconnects each frame came n times. Cause: the calls
// before were still there.
func TestReconnectsLeaveNothingBehind(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("reconnects")
		r := w.subscribe(s, clientlib.Oldest())
		until[*clientlib.CaughtUp](r)
		for i := range 6 {
			w.proxy.Reset()
			if i%2 == 0 { // half of them while it is interrupted
				until[*clientlib.Interrupted](r)
			}
			until[*clientlib.Subscribed](r)
		}
		w.publishFew(s, 1, 20)
		for i, got := range r.frames(20) {
			if got != fmt.Sprint(i+1) {
				t.Fatalf("frame %d is %q", i+1, got)
			}
		}
		eventually(t, "the server has one subscription", func() bool { return w.subscribers(s) == 1 })
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the server has none", func() bool { return w.subscribers(s) == 0 })
	})
}

// Scenario S80, symptom: a client waited for ever on a connection that was dead. Nothing
// comes, no heartbeat either, so the call is given up, and the next one goes on. Ephemeral
// frames of the time between are missed, and the subscription says so.
func TestSilenceEndsACall(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("silence")
		const patience = 3 * time.Second
		c := newClient(t, []string{w.proxy.Addr()}, append(w.options, clientlib.WithIdleTimeout(patience))...)
		ephemeral := frame(s, "before")
		ephemeral.Ephemeral = true
		r := read(t, c.Subscribe(t.Context(), s, clientlib.Live()))
		until[*clientlib.CaughtUp](r)
		quiet := time.NewTimer(patience + patience/2)
		<-quiet.C // heartbeats come
		publish(t, w.direct, ephemeral)
		r.expect("ephemeral before")
		w.proxy.Blackhole(pgtest.BothWays)
		publish(t, w.direct, frame(s, "durable"))
		interrupted := until[*clientlib.Interrupted](r)
		var e *clientlib.Error
		if !errors.As(interrupted.Err, &e) || !strings.Contains(e.Message, "heartbeat") {
			t.Errorf("got %v", interrupted.Err)
		}
		w.proxy.Reset() // as the pings of a connection do, or the network
		w.proxy.Restore()
		until[*clientlib.Subscribed](r)
		r.expect("gap EPHEMERAL_MAYBE_MISSED after 0", "1 durable")
	})
}

// Scenario S157, symptom: a position above the head, after a store had lost commits, was
// an error that the client took for final. It is a Gap, and delivery goes on.
func TestPositionsBeyondTheHead(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("beyond")
		head := w.publishFew(s, 1, 2)
		r := w.subscribe(s, clientlib.After(clientlib.Position{Epoch: head.Epoch, Sequence: head.Sequence + 1000}))
		r.expect("subscribed after 1002, resumed false", "gap AHEAD after 0", "1 1", "2 2", "caught up at 2")
	})
}

// Scenario S165, symptom: an invalid request was sent again and again, and the
// application never heard of it.
func TestInvalidRequestsAreFinal(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		r := w.subscribe(clientlib.Stream{}, clientlib.Oldest())
		var e *clientlib.Error
		if err := r.ends(); !errors.As(err, &e) || len(r.seen) > 0 {
			t.Errorf("got %q, %v", r.seen, err)
		}
		if err := r.ends(); !errors.As(err, &e) {
			t.Errorf("and then %v", err)
		}
	})
}

// Scenario S170, symptom: an application could not know that its subscription was
// interrupted, or only the first time. And closing one does not wait for the server.
func TestEveryInterruptionIsTold(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("told")
		r := w.subscribe(s, clientlib.Oldest())
		for range 3 {
			until[*clientlib.Subscribed](r)
			w.proxy.Reset()
			until[*clientlib.Interrupted](r)
		}
		w.proxy.Refuse()
		w.proxy.Reset()
		for range 3 {
			until[*clientlib.Interrupted](r)
		}
		begun := time.Now()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("Close took %s", took)
		}
		if err := r.ends(); !errors.Is(err, io.EOF) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// Scenario S171, symptom: frames that had been read ahead were handed to a subscription
// after its end, and moved its position.
func TestCloseDropsWhatWasReadAhead(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("dropped")
		w.publishFew(s, 1, 100)
		r := w.subscribe(s, clientlib.Oldest())
		r.frames(10)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if e, err := r.next(); !errors.Is(err, io.EOF) {
			t.Errorf("after Close came %v, %v", e, err)
		}
		if got := r.Position().Sequence; got != 10 {
			t.Errorf("the position is at %d", got)
		}
		if got := w.subscribe(s, clientlib.After(r.Position())).frames(1); got[0] != "11" {
			t.Errorf("the next subscription begins with %q", got)
		}
	})
}

// A position of a numbering that was closed is answered with its end, and once the stream
// is reopened with a Gap; who waits for the reopening gets it, also after an interruption.
func TestReopenedStreams(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("reopened")
		w.publishFew(s, 1, 1)
		early := w.publishFew(s, 2, 2)
		w.closeStream(s)
		w.subscribe(s, clientlib.After(early)).expect("subscribed after 2, resumed true", "caught up at 2", "closed at 2")
		waits := w.subscribe(s, clientlib.Oldest())
		waits.expect("subscribed after 0, resumed false", "caught up at 0")
		w.proxy.Reset()
		until[*clientlib.Interrupted](waits)
		until[*clientlib.Subscribed](waits)
		waits.expect("caught up at 0")
		w.publishFew(s, 3, 4)
		waits.expect("1 3", "2 4")
		w.subscribe(s, clientlib.After(early)).expect("subscribed after 2, resumed false", "gap EPOCH_CHANGED after 0", "1 3", "2 4", "caught up at 2")
	})
}

func TestSubscriptionEndsWithItsContextAndItsClient(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		s := stream("ends")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := read(t, w.client.Subscribe(ctx, s, clientlib.Live()))
		closed := w.subscribe(s, clientlib.Live())
		until[*clientlib.Subscribed](ended)
		until[*clientlib.Subscribed](closed)
		cause := errors.New("the cause")
		cancel(cause)
		if err := ended.ends(); !errors.Is(err, cause) {
			t.Errorf("with its context: %v", err)
		}
		if err := w.client.Close(); err != nil {
			t.Fatal(err)
		}
		if err := closed.ends(); !errors.Is(err, clientlib.ErrClosed) {
			t.Errorf("with its client: %v", err)
		}
		if err := w.subscribe(s, clientlib.Live()).ends(); !errors.Is(err, clientlib.ErrClosed) {
			t.Errorf("of a closed client: %v", err)
		}
		eventually(t, "the server has no subscription", func() bool { return w.subscribers(s) == 0 })
	})
}
