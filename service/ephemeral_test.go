package service_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// ephemeral is an ephemeral frame of a stream.
func ephemeral(s backlog.StreamName, payload string) *fanfarev1.NewFrame {
	f := newFrame(s, payload)
	f.Ephemeral = true
	return f
}

// announce publishes an ephemeral frame.
func announce(t testing.TB, r *servicetest.Replica, f *fanfarev1.NewFrame) {
	t.Helper()
	f.Ephemeral = true
	if p := publish(t, r, f); p != nil {
		t.Errorf("an ephemeral frame is answered with the position %v", p)
	}
}

// shown is a frame as tests compare it: payload, and whether it is ephemeral.
func shown(t testing.TB, frames []*fanfarev1.Frame) []string {
	t.Helper()
	var out []string
	for _, f := range frames {
		kind := "durable "
		if f.GetEphemeral() {
			kind = "ephemeral "
		}
		if f.GetEphemeral() == (f.GetPosition() != nil) {
			t.Errorf("a %sframe has the position %v", kind, f.GetPosition())
		}
		if !f.GetCreated().IsValid() || f.GetCreated().AsTime().Year() < 2000 {
			t.Errorf("a %sframe was created %v", kind, f.GetCreated())
		}
		out = append(out, kind+shorten(string(f.GetPayload())))
	}
	return out
}

// Ephemeral frames come live, once each, equal ones too, in order with durable
// frames of their stream, by every way of publishing; they are never part of a
// position, and nobody gets them later.
func TestEphemeralFrames(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ephemeral", "live")
		readers := []*reader{subscribe(t, w.a, live(s)), subscribe(t, w.b, fromOldest(s))}

		announce(t, w.a, newFrame(s, "before all"))
		for _, r := range readers {
			if got := shown(t, r.take(1)); got[0] != "ephemeral before all" {
				t.Errorf("got %q", got)
			}
		}
		first := publish(t, w.a, newFrame(s, "one"))
		for range 2 {
			whole := newFrame(s, "same")
			whole.ContentType, whole.EventType, whole.Headers = "text/plain", "typing", map[string]string{"a": "1"}
			announce(t, w.a, whole)
		}
		batch := []*fanfarev1.NewFrame{ephemeral(s, "in a batch"), newFrame(s, "two"), ephemeral(s, "in a batch"), ephemeral(s, "")}
		answer, err := w.a.Client.PublishBatch(t.Context(), &fanfarev1.PublishBatchRequest{Frames: batch})
		if err != nil {
			t.Fatal(err)
		}
		for i, result := range answer.GetResults() {
			if (result.GetPosition() == nil) != batch[i].GetEphemeral() || result.GetDuplicate() {
				t.Errorf("frame %d of the batch: %v", i, result)
			}
		}
		if got := answer.GetResults()[1].GetPosition().GetSequence(); got != 2 {
			t.Errorf("the second durable frame has sequence %d", got)
		}
		last := publish(t, w.a, newFrame(s, "three"))

		want := []string{
			"durable one", "ephemeral same", "ephemeral same",
			"ephemeral in a batch", "durable two", "ephemeral in a batch", "ephemeral ", "durable three",
		}
		for i, r := range readers {
			frames := r.take(len(want))
			if got := shown(t, frames); !slices.Equal(got, want) {
				t.Errorf("reader %d got\n%q, want\n%q", i, got, want)
			}
			same := frames[1]
			if same.GetContentType() != "text/plain" || same.GetEventType() != "typing" || same.GetHeaders()["a"] != "1" {
				t.Errorf("reader %d got %v", i, same)
			}
		}
		neverAgain(t, w, s, first, []string{"durable one", "durable two", "durable three"}, last)
	})
}

// neverAgain checks that nobody gets ephemeral frames of a stream afterwards.
func neverAgain(t *testing.T, w *world, s backlog.StreamName, first *fanfarev1.Position, durable []string, last *fanfarev1.Position) {
	t.Helper()
	page, err := w.b.Client.ReadFrames(t.Context(), &fanfarev1.ReadFramesRequest{Channel: s.Channel, Scope: s.Scope})
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(t, page.GetFrames()); !slices.Equal(got, durable) || page.GetHead().GetSequence() != last.GetSequence() {
		t.Errorf("ReadFrames returned %q, head %v", got, page.GetHead())
	}
	for name, request := range map[string]*fanfarev1.SubscribeRequest{"oldest": fromOldest(s), "resumed": after(s, first)} {
		late := subscribe(t, w.b, request)
		late.untilCaughtUp()
		n := len(durable)
		if name == "resumed" {
			n--
		}
		if got := shown(t, late.frames); !slices.Equal(got, durable[len(durable)-n:]) {
			t.Errorf("%s: a later subscription got %q", name, got)
		}
		late.frames = nil
		late.silent("marker", func() { announce(t, w.a, newFrame(s, "marker")) })
	}
}

// A stream that has carried nothing else exists, with head 0; its first durable
// frame is number 1.
func TestStreamOfEphemeralFrames(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ephemeral", "only")
		// A replica that is behind may have to deliver it to who comes then.
		witness := subscribe(t, w.b, fromOldest(s))
		announce(t, w.a, newFrame(s, "too early"))
		witness.take(1)
		r := subscribe(t, w.b, fromOldest(s))
		if n := r.subscribed; n.GetHead().GetSequence() != 0 || n.GetResumeAfter().GetSequence() != 0 {
			t.Errorf("subscribed: %v", n)
		}
		announce(t, w.a, newFrame(s, "now"))
		if got := shown(t, r.take(1)); got[0] != "ephemeral now" {
			t.Errorf("got %q", got)
		}
		answer, err := w.b.Client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: s.Channel, Scope: s.Scope})
		if err != nil || answer.GetStream().GetHead().GetSequence() != 0 || answer.GetStream().GetClosed() {
			t.Errorf("the stream is %v, %v", answer, err)
		}
		if p := publish(t, w.a, newFrame(s, "durable")); p.GetSequence() != 1 {
			t.Errorf("the first durable frame is %v", p)
		}
		if got := shown(t, r.take(1)); got[0] != "durable durable" {
			t.Errorf("got %q", got)
		}
	})
}

// A pipeline's frames of both kinds are answered by their numbers, and come in
// the order in which they were sent.
func TestEphemeralFramesOfAPipeline(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ephemeral", "pipeline")
		publish(t, w.a, newFrame(s, "the stream exists"))
		r := subscribe(t, w.b, live(s))
		call, err := w.a.Client.PublishStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const n = 300
		var want []string
		for i := range n {
			f := newFrame(s, numbered(i))
			if f.Ephemeral = i%3 != 0; f.Ephemeral {
				want = append(want, "ephemeral "+numbered(i))
			} else {
				want = append(want, "durable "+numbered(i))
			}
			if err := call.Send(&fanfarev1.PublishStreamRequest{Number: uint64(i), Frame: f}); err != nil {
				t.Fatal(err)
			}
		}
		refused := ephemeral(s, "refused")
		refused.IdempotencyKey = "k"
		if err := call.Send(&fanfarev1.PublishStreamRequest{Number: n, Frame: refused}); err != nil {
			t.Fatal(err)
		}
		for range n + 1 {
			answer, err := call.Recv()
			if err != nil {
				t.Fatal(err)
			}
			number := answer.GetNumber()
			switch {
			case number == n:
				if answer.GetError().GetField() != "frame.idempotency_key" {
					t.Errorf("an ephemeral frame with a key: %v", answer)
				}
			case answer.GetPublished() == nil || (answer.GetPublished().GetPosition() == nil) != (number%3 != 0):
				t.Errorf("answer %d: %v", number, answer)
			}
		}
		if got := shown(t, r.take(n)); !slices.Equal(got, want) {
			t.Errorf("got\n%q, want\n%q", got, want)
		}
	})
}

// Those of an application's transaction come if it commits, equal ones each.
func TestEphemeralFramesOfATransaction(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ephemeral", "transaction")
		publish(t, w.a, newFrame(s, "before"))
		r := subscribe(t, w.b, live(s))
		conn := w.sql()
		for _, step := range []string{
			"begin", "select fanfare.publish_ephemeral('ephemeral', 'transaction', 'undone')", "rollback",
			"begin", "select fanfare.publish('ephemeral', 'transaction', 'stored')",
			"select fanfare.publish_ephemeral('ephemeral', 'transaction', 'same')",
			"select fanfare.publish_ephemeral('ephemeral', 'transaction', 'same')", "commit",
		} {
			w.exec(conn, step)
		}
		if got := shown(t, r.take(3)); !slices.Equal(got, []string{"durable stored", "ephemeral same", "ephemeral same"}) {
			t.Errorf("got %q", got)
		}
		r.silent("marker", func() { announce(t, w.a, newFrame(s, "marker")) })
	})
}

// An ephemeral frame that is published during a replay comes after it, with its
// neighbours, once.
func TestEphemeralFramesDuringAReplay(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ephemeral", "replay")
		const n = 2000
		publishMany(t, w.a, s, n, func(i int) string { return fmt.Sprintf("%04d", i) + strings.Repeat("x", 4000) })
		r := subscribe(t, w.b, fromOldest(s))
		r.take(100) // and stalls
		var want []string
		for i := range 20 {
			announce(t, w.a, newFrame(s, "e"+numbered(i)))
			publish(t, w.a, newFrame(s, "d"+numbered(i)))
			want = append(want, "ephemeral e"+numbered(i), "durable d"+numbered(i))
		}
		for i, f := range r.take(n - 100) {
			if f.GetEphemeral() {
				t.Fatalf("frame %d of the replay is ephemeral: %q", i, shorten(string(f.GetPayload())))
			}
		}
		if got := shown(t, r.take(len(want))); !slices.Equal(got, want) {
			t.Errorf("after the replay came\n%q, want\n%q", got, want)
		}
		r.silent("marker", func() { announce(t, w.a, newFrame(s, "marker")) })
	})
}

// Frames of the largest size arrive unchanged, whatever carries them, in order
// with small ones and durable ones.
func TestLargeEphemeralFrames(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ephemeral", "large")
		r := subscribe(t, w.b, live(s))
		payload := make([]byte, backlog.DefaultMaxFrameBytes)
		for i := range payload {
			payload[i] = byte(i * 7)
		}
		for _, f := range []*fanfarev1.NewFrame{
			ephemeral(s, "small"), ephemeral(s, string(payload)), newFrame(s, string(payload)), ephemeral(s, strings.Repeat("äß\t\n", 5000)), ephemeral(s, "small"),
		} {
			publish(t, w.a, f)
			got := r.take(1)[0]
			if !bytes.Equal(got.GetPayload(), f.GetPayload()) || got.GetEphemeral() != f.GetEphemeral() {
				t.Errorf("%d bytes arrived as %d, ephemeral: %t", len(f.GetPayload()), len(got.GetPayload()), got.GetEphemeral())
			}
		}
	})
}

// The ephemeral frames before a close come before Closed. The next one opens the
// stream again, as a durable one does.
func TestEphemeralFramesAndClose(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ephemeral", "close")
		old := publish(t, w.a, newFrame(s, "one"))
		r := subscribe(t, w.b, live(s))
		announce(t, w.a, newFrame(s, "last words"))
		if _, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope}); err != nil {
			t.Fatal(err)
		}
		if err := r.untilEnd(); err != io.EOF {
			t.Errorf("the call ended with %v", err)
		}
		if got := shown(t, r.frames); !slices.Equal(got, []string{"ephemeral last words"}) {
			t.Errorf("before the close came %q", got)
		}
		if closed := r.notices[len(r.notices)-1].GetClosed(); position(closed.GetLast()) != position(old) {
			t.Errorf("closed: %v, the last position is %v", closed, old)
		}

		next := subscribe(t, w.b, fromOldest(s))
		announce(t, w.a, newFrame(s, "first words"))
		if got := shown(t, next.take(1)); got[0] != "ephemeral first words" {
			t.Errorf("got %q", got)
		}
		answer, err := w.b.Client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: s.Channel, Scope: s.Scope})
		if err != nil || answer.GetStream().GetClosed() {
			t.Errorf("after an ephemeral frame the stream is %v, %v", answer, err)
		}
		p := publish(t, w.a, newFrame(s, "two"))
		if p.GetSequence() != 1 || p.GetEpoch() == old.GetEpoch() {
			t.Errorf("after the reopening a frame is at %v, the last one before is at %v", p, old)
		}
		if got := shown(t, next.take(1)); got[0] != "durable two" {
			t.Errorf("got %q", got)
		}
	})
}

// untilEnd reads to the end of the call.
func (r *reader) untilEnd() error {
	for {
		if err := r.recv(); err != nil {
			return err
		}
	}
}

// Everything that is promised, with publishers of both kinds at once and
// subscribers that come and go.
func TestGuaranteesOfEphemeralFrames(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		f := newFollowed(t, stream("ephemeral", "guarantees"))
		const steady = 6
		for i := range 2 * steady {
			cfg := servicetest.FollowerConfig{Pick: func() fanfarev1.FanfareServiceClient { return []*servicetest.Replica{w.a, w.b}[i%2].Client }}
			if i >= steady {
				cfg.ReconnectEvery = 100 * time.Millisecond
			}
			f.start(fmt.Sprint("follower ", i), cfg)
		}
		f.awaitSubscribed(steady)
		var publishing errgroup.Group
		for p := range 4 {
			publishing.Go(func() error {
				for i := range 250 {
					frame := newFrame(f.stream, fmt.Sprint(p, "/", i, strings.Repeat(" ", i%7*2000)))
					frame.Ephemeral = i%4 != 0
					if _, err := record(f.ctx, f.recorder, fmt.Sprint("publisher ", p), w.a, frame); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := publishing.Wait(); err != nil {
			t.Fatal(err)
		}
		f.awaitLast(recordedBatch(t, f.recorder, w.a, f.stream, 1, -1))
		end := ephemeral(f.stream, "end")
		if _, err := record(f.ctx, f.recorder, "last", w.a, end); err != nil {
			t.Fatal(err)
		}
		for _, follower := range f.followers[:steady] {
			if err := follower.AwaitEphemeral(f.ctx, servicetest.ContentOf(end)); err != nil {
				t.Fatal(err)
			}
		}
		f.finish()
	})
}

// record publishes a frame and records it.
func record(ctx context.Context, recorder *servicetest.Recorder, publisher string, r *servicetest.Replica, f *fanfarev1.NewFrame) (*fanfarev1.Position, error) {
	attempt := recorder.Publishing(publisher, f)
	answer, err := r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
	if err != nil {
		return nil, err
	}
	attempt.Confirmed(position(answer.GetPosition()), answer.GetDuplicate())
	return answer.GetPosition(), nil
}
