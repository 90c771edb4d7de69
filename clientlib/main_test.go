package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(run(func() int { return pgtest.Run(m) })) }

// run is what goleak wants of a testing.M.
type run func() int

func (r run) Run() int { return r() }

// patience bounds what tests wait for.
const patience = 20 * time.Second

// quick are pauses for tests that are interrupted often.
func quick() clientlib.Option {
	return clientlib.WithBackoff(5*time.Millisecond, 100*time.Millisecond)
}

// connect returns a connection to addresses, which it calls in turn.
func connect(t testing.TB, addresses ...string) *grpc.ClientConn {
	t.Helper()
	conn, err := clientlib.Connect(addresses, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// newClient returns a client of addresses, with quick pauses.
func newClient(t testing.TB, addresses []string, options ...clientlib.Option) *clientlib.Client {
	t.Helper()
	c := clientlib.New(connect(t, addresses...), append([]clientlib.Option{quick()}, options...)...)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func stream(scope string) clientlib.Stream { return clientlib.Stream{Channel: "orders", Scope: scope} }

func frame(s clientlib.Stream, payload string) clientlib.NewFrame {
	return clientlib.NewFrame{Stream: s, Payload: []byte(payload)}
}

func publish(t testing.TB, c *clientlib.Client, frames ...clientlib.NewFrame) (last clientlib.Position) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, f := range frames {
		p, err := c.Publish(ctx, f)
		if err != nil {
			t.Fatalf("publish %q: %v", f.Payload, err)
		}
		last = p.Position
	}
	return last
}

// reader reads a subscription.
type reader struct {
	*clientlib.Subscription
	t testing.TB
	// seen are all events, as text.
	seen []string
}

func read(t testing.TB, s *clientlib.Subscription) *reader {
	t.Helper()
	t.Cleanup(func() { _ = s.Close() })
	return &reader{Subscription: s, t: t}
}

// next returns the next event within the time for it.
func (r *reader) next() (clientlib.Event, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("nothing came in time"))
	defer cancel()
	e, err := r.Next(ctx)
	if err == nil {
		r.seen = append(r.seen, text(e))
	}
	return e, err
}

// text is an event for comparisons, without what differs from run to run.
func text(e clientlib.Event) string {
	switch e := e.(type) {
	case *clientlib.Frame:
		if e.Ephemeral {
			return "ephemeral " + string(e.Payload)
		}
		return fmt.Sprintf("%d %s", e.Position.Sequence, e.Payload)
	case *clientlib.Subscribed:
		return fmt.Sprintf("subscribed after %d, resumed %t", e.ResumeAfter.Sequence, e.Resumed)
	case *clientlib.CaughtUp:
		return fmt.Sprintf("caught up at %d", e.Position.Sequence)
	case *clientlib.Gap:
		return fmt.Sprintf("gap %s after %d", e.Reason, e.ResumeAfter.Sequence)
	case *clientlib.Status:
		return fmt.Sprintf("listening %t", e.Listening)
	case *clientlib.Closed:
		return fmt.Sprintf("closed at %d", e.Last.Sequence)
	case *clientlib.Interrupted:
		return "interrupted"
	default:
		return fmt.Sprintf("%T", e)
	}
}

// expect reads events and compares all of them.
func (r *reader) expect(want ...string) {
	r.t.Helper()
	var got []string
	for range want {
		e, err := r.next()
		if err != nil {
			r.t.Fatalf("got %q and then %v, want %q; before: %q", got, err, want, r.seen)
		}
		got = append(got, text(e))
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("got %q, want %q; all: %q", got, want, r.seen)
	}
}

// until reads up to an event of a kind.
func until[E clientlib.Event](r *reader) E {
	r.t.Helper()
	for {
		e, err := r.next()
		if err != nil {
			r.t.Fatalf("waiting for a %T: %v; before: %q", *new(E), err, r.seen)
		}
		if e, ok := e.(E); ok {
			return e
		}
	}
}

// frames reads n frames, and skips notices.
func (r *reader) frames(n int) (payloads []string) {
	r.t.Helper()
	for range n {
		payloads = append(payloads, string(until[*clientlib.Frame](r).Payload))
	}
	return payloads
}

// ends reads to the end and returns what it was.
func (r *reader) ends() error {
	r.t.Helper()
	for {
		if _, err := r.next(); err != nil {
			return err
		}
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		<-look.C
	}
}
