package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// POSTGRES.md 6 and 7, symptoms: a subscriber saw what had been rolled back; two
// equal frames became one. Cause: announcements made outside the transaction;
// PostgreSQL folds equal notifications of a transaction. All come by their
// announcements: nothing is refused as a replay after a savepoint, and nothing
// has to be read again.
func TestAnnouncementsOfATransaction(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("transaction", "announced")
		publish(t, w.a, newFrame(s, "before"))
		r := subscribe(t, w.b, live(s))
		before := w.b.Hub.Stats()
		conn := w.sql()
		const call = "select fanfare.publish('transaction', 'announced', $1)"
		for _, step := range []string{
			"begin", "undone", "rollback",
			"begin", "same", "same", "savepoint s", "undone", "undone", "rollback to s", "same", "savepoint s", "last", "release s", "commit",
		} {
			if strings.HasPrefix(step, "undone") || step == "same" || step == "last" {
				w.exec(conn, call, []byte(step))
			} else {
				w.exec(conn, step)
			}
		}
		frames := r.take(4)
		contiguous(t, frames, 2)
		for i, want := range []string{"same", "same", "same", "last"} {
			if got := string(frames[i].GetPayload()); got != want {
				t.Errorf("frame %d is %q, want %q", i, got, want)
			}
		}
		r.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
		if after := w.b.Hub.Stats(); after.Appended-before.Appended != 5 || after.Hints != 0 {
			t.Errorf("%d of 5 frames came by their announcements, %d hints", after.Appended-before.Appended, after.Hints)
		}
		if b := w.b.ListenerBus.Stats(); b.Replayed+b.Forged+b.Unreadable != 0 {
			t.Errorf("announcements were refused: %+v", b)
		}
	})
}

// The same of a batch, on any store: one that is refused announces nothing, and
// equal frames are announced each.
func TestAnnouncementsOfABatch(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("batch", "announced")
		publish(t, w.a, newFrame(s, "before"))
		r := subscribe(t, w.b, live(s))
		before := w.b.Hub.Stats()
		batch := func(payloads ...string) *fanfarev1.PublishBatchRequest {
			request := &fanfarev1.PublishBatchRequest{}
			for _, p := range payloads {
				request.Frames = append(request.Frames, newFrame(s, p))
			}
			return request
		}
		refused := batch("undone", "undone", "undone")
		refused.Frames[2].ExpectedSequence = new(uint64(1)) // it is 3 by then
		if _, err := w.a.Client.PublishBatch(t.Context(), refused); status.Code(err) != codes.Aborted {
			t.Errorf("a batch with an expectation that fails: %v", err)
		}
		if _, err := w.a.Client.PublishBatch(t.Context(), batch("same", "same", "same")); err != nil {
			t.Fatal(err)
		}
		frames := r.take(3)
		contiguous(t, frames, 2)
		for i, f := range frames {
			if got := string(f.GetPayload()); got != "same" {
				t.Errorf("frame %d is %q", i, got)
			}
		}
		r.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
		if after := w.b.Hub.Stats(); after.Appended-before.Appended != 4 || after.Hints != before.Hints {
			t.Errorf("%d of 4 frames came by their announcements, %d hints", after.Appended-before.Appended, after.Hints-before.Hints)
		}
	})
}

// muteAnnouncements makes the database store without announcing, until the
// returned function is called.
func (w *world) muteAnnouncements() (restore func()) {
	conn := w.sql()
	w.exec(conn, `alter function fanfare._announce(text[], bigint) rename to _announce_muted;
		create function fanfare._announce(p_entries text[], p_origin bigint) returns int language sql as 'select 0';
		delete from fanfare.announcing -- without which no frame is published the short way`)
	return func() {
		w.exec(conn, `drop function fanfare._announce(text[], bigint);
			alter function fanfare._announce_muted(text[], bigint) rename to _announce;
			update fanfare.settings set inline_bytes = inline_bytes; -- fills announcing
			select fanfare._remember_origin()`)
	}
}

// POSTGRES.md 31, symptom: a subscriber on a healthy connection missed a frame
// for ever. Cause: a notification that never came, with nothing to repair it.
// The next one does, and where none follows the re-read.
func TestLostAnnouncementsHeal(t *testing.T) {
	needs := servicetest.Needs{servicetest.Notifications}
	t.Run("by the next", func(t *testing.T) {
		servicetest.OnEachStore(t, needs, func(t *testing.T, db servicetest.Database) {
			w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.ReReadInterval = time.Hour })
			s := stream("lost", "")
			publish(t, w.a, newFrame(s, "before"))
			r := subscribe(t, w.b, fromOldest(s))
			r.take(1)
			envelopes := w.b.ListenerBus.Stats().Envelopes
			restore := w.muteAnnouncements()
			publish(t, w.a, newFrame(s, "lost"))
			restore()
			publish(t, w.a, newFrame(s, "next"))
			if got := r.payloads(2); got[0] != "lost" || got[1] != "next" {
				t.Errorf("got %q", got)
			}
			if n := w.b.ListenerBus.Stats().Envelopes - envelopes; n != 1 {
				t.Errorf("%d announcements came, so none was lost", n)
			}
			r.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
		})
	})
	t.Run("by the re-read", func(t *testing.T) {
		servicetest.OnEachStore(t, needs, func(t *testing.T, db servicetest.Database) {
			w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.ReReadInterval = 300 * time.Millisecond })
			s := stream("lost", "")
			publish(t, w.a, newFrame(s, "before"))
			readers := []*reader{subscribe(t, w.a, fromOldest(s)), subscribe(t, w.b, live(s))}
			readers[0].take(1)
			restore := w.muteAnnouncements()
			publish(t, w.a, newFrame(s, "lost"))
			for _, r := range readers {
				if got := r.payloads(1)[0]; got != "lost" {
					t.Errorf("got %q", got)
				}
			}
			_, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range readers {
				if code := r.end(); code != codes.OK || len(r.frames) != 0 {
					t.Errorf("after the close nobody was told of it ended %s with %d frames", code, len(r.frames))
				}
			}
			restore()
		})
	})
}

// Scenario S18 with commits that really happen side by side: each stream has a
// publisher of its own, so none waits for another's row. Every frame is announced
// by a pointer, and its row is there when the announcement comes.
func TestLargeFramesOfManyTransactions(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		const publishers, each = 16, 50
		payload := []byte(strings.Repeat("x", 9000))
		var readers []*reader
		for p := range publishers {
			s := stream("pointers", fmt.Sprint(p))
			readers = append(readers, subscribe(t, w.a, live(s)), subscribe(t, w.b, live(s)))
		}
		var g errgroup.Group
		for p := range publishers {
			conn := w.sql()
			g.Go(func() error {
				for range each {
					if _, err := conn.Exec(t.Context(), "select fanfare.publish('pointers', $1, $2)", fmt.Sprint(p), payload); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, r := range readers {
			frames := r.take(each)
			contiguous(t, frames, 1)
			for _, f := range frames {
				if len(f.GetPayload()) != len(payload) {
					t.Fatalf("a frame of %d bytes", len(f.GetPayload()))
				}
			}
		}
		for _, replica := range []*servicetest.Replica{w.a, w.b} {
			if n := replica.Hub.Stats().Dropped; n != 0 {
				t.Errorf("%d announced frames were taken for gone", n)
			}
		}
	})
}

// POSTGRES.md 27, symptom: when the listener came back, each subscriber read the
// backlog for itself and the database stood still. Thousands of subscribers that
// stayed connected cost one load for a thousand streams, counted at the server.
func TestListenerReturnsToManySubscribers(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		db = db.OnOwnServer(t, statementStatistics...)
		proxy := pgtest.Proxy(t, db.URL)
		r := servicetest.Start(t, db.URL, wholeBacklog, func(c *servicetest.Config) {
			c.ListenURL = proxy.URL(db.URL)
			// They look at the backlog, too.
			c.JanitorInterval, c.Hub.ReReadInterval = time.Hour, time.Hour
		})
		queries := (&world{t: t, db: db, a: r}).countQueries()
		const subscribers, streams = 2000, 200
		name := func(i int) *fanfarev1.SubscribeRequest { return live(stream("return", fmt.Sprint(i%streams))) }
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		subscriptions, err := openStreams(ctx, connections(t, r, 10), subscribers, name)
		if err != nil {
			t.Fatal(err)
		}
		proxy.Refuse()
		proxy.Cut()
		eventually(t, "the listener is gone", func() bool { return r.Bus.Current().Number == 0 })
		for i := range streams {
			publish(t, r, newFrame(stream("return", fmt.Sprint(i)), "while it was away"))
		}
		before := queries()
		proxy.Restore()
		var g errgroup.Group
		for i, s := range subscriptions {
			g.Go(func() error {
				for {
					response, err := s.Recv()
					if err != nil {
						return fmt.Errorf("subscriber %d: %w", i, err)
					}
					for _, f := range response.GetFrames() {
						if f.GetPosition().GetSequence() != 1 {
							return fmt.Errorf("subscriber %d got %v", i, f.GetPosition())
						}
						return nil
					}
				}
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if n := queries() - before; n < 1 || n > 10 {
			t.Errorf("%d subscribers of %d streams caused %d queries of the backlog", subscribers, streams, n)
		}
	})
}
