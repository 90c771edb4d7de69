package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S06, symptom: a frame whose transaction committed after later ones
// was never delivered. Cause: the position moved past numbers that were given
// but not committed. Here numbers are given in commit order.
func TestATransactionThatCommitsLate(t *testing.T) {
	for name, disturb := range map[string]func(w *world, r *reader){
		"caught up":             func(_ *world, r *reader) { r.untilCaughtUp() },
		"replaying":             func(*world, *reader) {},
		"listener reconnecting": func(w *world, r *reader) { r.untilCaughtUp(); w.killListeners(w.sql()) },
	} {
		t.Run(name, func(t *testing.T) {
			servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
				w := newWorld(t, db)
				s := stream("gate", "")
				publish(t, w.a, newFrame(s, "before"))
				tx, err := w.sql().Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(t.Context(), "select fanfare.publish($1, $2, $3)", s.Channel, s.Scope, []byte("late")); err != nil {
					t.Fatal(err)
				}
				var g errgroup.Group
				for i := range 10 {
					g.Go(func() error {
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						defer cancel()
						_, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, numbered(i))})
						return err
					})
				}
				r := subscribe(t, w.b, fromOldest(s))
				disturb(w, r)
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				frames := r.take(12)
				contiguous(t, frames, 1)
				if !slices.ContainsFunc(frames, func(f *fanfarev1.Frame) bool { return string(f.GetPayload()) == "late" }) {
					t.Error("the frame of the late transaction is missing")
				}
				if err := g.Wait(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Scenario S17, symptom: rows that shared a timestamp at a page's border were
// dropped. Cause: paging by time; the frames of one transaction share theirs.
func TestManyFramesOfOneTransaction(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("transaction", "")
		publishMany(t, w.a, s, backlog.MaxBatchFrames, numbered)
		resumeThroughout(w, s, backlog.MaxBatchFrames)
	})
}

// The same of an application's transaction, which may publish more.
func TestManyFramesOfAnApplicationsTransaction(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("transaction", "")
		conn := w.sql()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err := tx.Exec(t.Context(), `select count(*) from fanfare.publish_batch(array_fill($1::text, array[750]),
			array_fill(''::text, array[750]), array_fill('x'::bytea, array[750]))`, s.Channel)
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		resumeThroughout(w, s, 1500)
	})
}

// resumeThroughout replays the n frames of a stream from places all over it.
func resumeThroughout(w *world, s backlog.StreamName, n int) {
	w.t.Helper()
	frames := subscribe(w.t, w.b, fromOldest(s)).take(n)
	contiguous(w.t, frames, 1)
	for i := 37; i < n; i += 75 {
		r := subscribe(w.t, w.b, after(s, frames[i].GetPosition()))
		contiguous(w.t, r.take(n-i-1), uint64(i)+2)
		r.cancel()
	}
}

// Scenario S27 with a transaction that has published and not yet committed: the
// close waits for it, and its frame comes before Closed.
func TestCloseWaitsForATransaction(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("gated", "")
		publish(t, w.a, newFrame(s, "first"))
		r := subscribe(t, w.b, fromOldest(s))
		tx, err := w.sql().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "select fanfare.publish($1, $2, $3)", s.Channel, s.Scope, []byte("gated")); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() {
			_, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
			closed <- err
		}()
		select {
		case err := <-closed:
			t.Fatalf("the close did not wait: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		if code := r.end(); code != codes.OK {
			t.Errorf("the subscription ended %s", code)
		}
		if len(r.frames) != 2 || !strings.HasPrefix(string(r.frames[1].GetPayload()), "gated") {
			t.Errorf("delivered before the close: %v", r.frames)
		}
	})
}

// Scenario S27 from the other side: the close has not committed yet. A publish
// waits for it, and then begins the next numbering, or goes on with this one if
// the close is rolled back. Nothing comes after Closed.
func TestPublishWaitsForAClose(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
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
	})
}
