package service_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S06 (a), symptom: a frame whose transaction committed late was missed
// by whoever was reading the backlog at that moment. Cause: pages that follow
// numbers given but not committed. The reader stalls with most of the backlog
// still in the table.
func TestLateCommitMeetsACatchUp(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.SQL}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("gate", "catch-up")
		const stored, more = 2000, 10
		publishMany(t, w.a, s, stored, func(int) string { return strings.Repeat("x", 4000) })
		tx, err := w.sql().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "select fanfare.publish($1, $2, 'late')", s.Channel, s.Scope); err != nil {
			t.Fatal(err)
		}
		var g errgroup.Group
		for i := range more {
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := w.a.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, numbered(i))})
				return err
			})
		}
		r := subscribe(t, w.b, fromOldest(s))
		got := r.take(100)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		got = append(got, r.take(stored-100+1+more)...)
		contiguous(t, got, 1)
		if late := string(got[stored].GetPayload()); late != "late" {
			t.Errorf("after what was stored before comes %q", shorten(late))
		}
		r.silent("marker", func() { publish(t, w.a, newFrame(s, "marker")) })
	})
}

// Scenario S08 with the answer of the load held back: the database has said that
// there is nothing, then frames commit, and only then the replica hears of it.
func TestFramesCommittedBehindAnEmptyLoad(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		proxy := pgtest.Proxy(t, db.URL)
		slow := servicetest.Start(t, proxy.URL(db.URL), func(c *servicetest.Config) {
			wholeBacklog(c)
			c.ListenURL, c.MigrateURL = db.URL, db.URL
		})
		admin := w.sql()
		head := publish(t, w.a, newFrame(stream("held", "at the head"), "newest"))
		for name, request := range map[string]*fanfarev1.SubscribeRequest{
			"empty":       fromOldest(stream("held", "empty")),
			"at the head": after(stream("held", "at the head"), head),
		} {
			t.Run(name, func(t *testing.T) {
				// A connection that has been idle would be tried first.
				subscribe(t, slow, live(stream("held", "warm up "+name))).cancel()
				var began time.Time
				if err := admin.QueryRow(t.Context(), "select clock_timestamp()").Scan(&began); err != nil {
					t.Fatal(err)
				}
				proxy.Blackhole(pgtest.ToClient)
				defer proxy.Restore()
				r := open(t, slow.Client, request)
				r.t = t
				// Only the beginning of a query is shown.
				eventually(t, "the database has answered the load", func() (answered bool) {
					err := admin.QueryRow(t.Context(), `select exists (select from pg_stat_activity where datname = current_database()
					and application_name like 'fanfare-load%' and state = 'idle' and query_start > $1 and query like '%channel_frames%')`, began).Scan(&answered)
					return err == nil && answered
				})
				want := []string{"a", "b", "c"}
				for _, payload := range want {
					publish(t, w.a, newFrame(stream("held", name), payload))
				}
				proxy.Restore()
				if got := r.payloads(3); !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
				r.silent("marker", func() { publish(t, w.a, newFrame(stream("held", name), "marker")) })
			})
		}
	})
}

// POSTGRES.md 1, symptom: now and then a frame was missing after a subscribe on
// a busy stream. Cause: the backlog was read before LISTEN. Four hundred
// subscriptions come and go under writers at full speed, each from where the one
// before it left.
func TestSubscribingUnderFullSpeed(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("full speed", "")
		last := publish(t, w.a, newFrame(s, "first"))
		ctx, stop := context.WithCancel(t.Context())
		var writers errgroup.Group
		for i := range 4 {
			client := []*servicetest.Replica{w.a, w.b}[i%2].Client
			writers.Go(func() error {
				for ctx.Err() == nil {
					if _, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: newFrame(s, "x")}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for round := range 400 {
			r := subscribe(t, []*servicetest.Replica{w.a, w.b}[round%2], after(s, last))
			if !r.subscribed.GetResumed() {
				t.Fatalf("round %d: %v", round, r.subscribed)
			}
			r.untilCaughtUp()
			frames := r.take(len(r.frames) + 2)
			contiguous(t, frames, last.GetSequence()+1)
			last = frames[len(frames)-1].GetPosition()
			r.cancel()
		}
		stop()
		if err := writers.Wait(); err != nil {
			t.Fatal(err)
		}
		if last.GetSequence() < 800 {
			t.Errorf("only %d frames were published meanwhile", last.GetSequence())
		}
	})
}
