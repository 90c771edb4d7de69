package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a hub over the fakes.
type rig struct {
	t     testing.TB
	store *fakeStore
	bus   *fakeBus
	hub   *Hub
}

// messageBytes is what the tests' subscriptions take at once.
const messageBytes = 64 << 10

// ephemeralMark begins the encoding of an ephemeral frame.
const ephemeralMark = "ephemeral "

func encodeForTest(f backlog.Frame) []byte {
	if f.Ephemeral {
		return fmt.Appendf(nil, "%s%s %s", ephemeralMark, f.Position, f.Payload)
	}
	return fmt.Appendf(nil, "%s %s", f.Position, f.Payload)
}

// newRig starts a hub that listens; it is stopped at cleanup.
func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, store: newFakeStore()}
	r.bus = newFakeBus(r.store)
	r.hub = New(r.bus, r.store, encodeForTest, cfg)
	r.bus.sink = r.hub
	r.bus.listen()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	// The refresh for the first listening is over before a test counts queries.
	eventually(t, "the listening is noticed", func() bool { return len(r.hub.relistened) == 0 })
	return r
}

// bubble runs a test with the clock of testing/synctest.
func bubble(t *testing.T, cfg Config, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, cfg)) })
}

func (r *rig) subscribe(name backlog.StreamName, start Start) *reader {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	sub, subscribed, err := subscribe(ctx, r.hub, name, start)
	if err != nil {
		r.t.Fatalf("Subscribe %v: %v", name, err)
	}
	r.t.Cleanup(sub.Close)
	return &reader{rig: r, name: name, sub: sub, subscribed: subscribed, position: subscribed.ResumeAfter}
}

// subscribe waits until a new subscription has begun.
func subscribe(ctx context.Context, h *Hub, name backlog.StreamName, start Start) (*Subscription, Subscribed, error) {
	sub := h.Subscribe(name, start)
	d, err := sub.Next(ctx, 1)
	if err != nil {
		sub.Close()
		return nil, Subscribed{}, err
	}
	subscribed, ok := d.Notice.(Subscribed)
	if !ok {
		sub.Close()
		return nil, Subscribed{}, fmt.Errorf("the first delivery is %+v", d)
	}
	return sub, subscribed, nil
}

// reader reads a subscription and checks it against the model.
type reader struct {
	*rig
	name       backlog.StreamName
	sub        *Subscription
	subscribed Subscribed
	position   backlog.Position
	// payloads are those of durable frames, ephemeral those of ephemeral ones, all
	// those of both.
	payloads, ephemeral, all []string
	notices                  []Notice
	// loose: what an ephemeral frame follows may be missing.
	loose bool
}

// next reads one delivery, checked, and returns its error.
func (r *reader) next(ctx context.Context) (Delivery, error) {
	d, err := r.sub.Next(ctx, messageBytes)
	if err != nil {
		return d, err
	}
	return d, r.take(d)
}

// take checks that a delivery follows and notes it.
func (r *reader) take(d Delivery) error {
	if (d.Notice == nil) == (len(d.Frames) == 0) {
		return fmt.Errorf("delivery has both or neither: %+v", d)
	}
	for _, frame := range d.Frames {
		text, ephemeral := strings.CutPrefix(string(frame), ephemeralMark)
		text, payload, _ := strings.Cut(text, " ")
		p, err := backlog.ParsePosition(text)
		if err != nil {
			return err
		}
		r.all = append(r.all, payload)
		if ephemeral {
			if p.Sequence > r.position.Sequence && !r.loose {
				return fmt.Errorf("ephemeral frame %q, which follows %s, at %s", payload, p, r.position)
			}
			r.ephemeral = append(r.ephemeral, payload)
			continue
		}
		if p.Sequence != r.position.Sequence+1 {
			return fmt.Errorf("frame %s follows %s", p, r.position)
		}
		if !r.store.wasPublished(r.name, p, payload) {
			return fmt.Errorf("frame %s was never published with this payload", p)
		}
		r.position = p
		r.payloads = append(r.payloads, payload)
	}
	switch n := d.Notice.(type) {
	case nil:
	case Gap:
		if n.Requested != r.position {
			return fmt.Errorf("gap for %s at %s", n.Requested, r.position)
		}
		r.position = n.ResumeAfter
	case CaughtUp:
		if n.Position != r.position {
			return fmt.Errorf("caught up at %s, position is %s", n.Position, r.position)
		}
	case Closed:
		if n.Last.Sequence != r.position.Sequence {
			return fmt.Errorf("closed after %s, position is %s", n.Last, r.position)
		}
	}
	if d.Notice != nil {
		r.notices = append(r.notices, d.Notice)
	}
	if d.Last.Sequence != r.position.Sequence || r.sub.Position() != d.Last {
		return fmt.Errorf("delivery ends at %s, subscription at %s, frames at %s", d.Last, r.sub.Position(), r.position)
	}
	return nil
}

// until reads until done.
func (r *reader) until(what string, done func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for !done() {
		if _, err := r.next(ctx); err != nil {
			r.t.Fatalf("waiting for %s at %s after %d frames, notices %v: %v", what, r.position, len(r.payloads), r.notices, err)
		}
	}
}

// frames reads until there are n payloads in all.
func (r *reader) frames(n int) []string {
	r.t.Helper()
	r.until(fmt.Sprintf("%d frames", n), func() bool { return len(r.payloads) >= n })
	return r.payloads
}

// notice reads up to the next notice.
func (r *reader) notice() Notice {
	r.t.Helper()
	n := len(r.notices)
	r.until("a notice", func() bool { return len(r.notices) > n })
	return r.notices[n]
}

// caughtUp reads to the next CaughtUp, which must be the next notice.
func (r *reader) caughtUp() {
	r.t.Helper()
	if n, ok := r.notice().(CaughtUp); !ok {
		r.t.Fatalf("notice %+v, want CaughtUp", n)
	}
}

// gap reads the next notice, a Gap with the reason.
func (r *reader) gap(reason GapReason) Gap {
	r.t.Helper()
	n := r.notice()
	g, ok := n.(Gap)
	if !ok || g.Reason != reason {
		r.t.Fatalf("notice %T %+v, want a gap: %s", n, n, reason)
	}
	return g
}

// closed reads a Closed and the end.
func (r *reader) closed() backlog.Position {
	r.t.Helper()
	n := r.notice()
	c, ok := n.(Closed)
	if !ok {
		r.t.Fatalf("notice %T %+v, want Closed", n, n)
	}
	if _, _, err := r.sub.TryNext(messageBytes); !errors.Is(err, io.EOF) {
		r.t.Fatalf("after Closed: %v, want io.EOF", err)
	}
	return c.Last
}

// silent checks that nothing follows now.
func (r *reader) silent() {
	r.t.Helper()
	if d, ok, err := r.sub.TryNext(messageBytes); ok || err != nil {
		r.t.Fatalf("unexpected %+v, %v", d, err)
	}
}

func (r *rig) publishMany(name backlog.StreamName, from, n int) {
	for i := range n {
		r.bus.publish(name, fmt.Sprint(from+i))
	}
}

// numbers is what publishMany published.
func numbers(from, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(from + i)
	}
	return list
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}
