package service_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S43, symptom: positions appeared out of order and subscriptions
// skipped. Cause: numbers drawn from a shared sequence by concurrent writers.
func TestManyWritersOneOrder(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		f := newFollowed(t, stream("order", ""))
		const publishers, each = 16, 250
		pick := func(r *servicetest.Replica) func() fanfarev1.FanfareServiceClient {
			return func() fanfarev1.FanfareServiceClient { return r.Client }
		}
		f.start("on a", servicetest.FollowerConfig{Pick: pick(w.a)})
		f.start("on b", servicetest.FollowerConfig{Pick: pick(w.b)})
		f.start("reconnecting", servicetest.FollowerConfig{Pick: pick(w.b), ReconnectEvery: 200 * time.Millisecond})
		var publishing errgroup.Group
		for p := range publishers {
			publishing.Go(func() error {
				r := []*servicetest.Replica{w.a, w.b}[p%2]
				for i := range each {
					frame := newFrame(f.stream, fmt.Sprintf("%d/%d", p, i))
					if _, err := record(f.ctx, f.recorder, fmt.Sprint("publisher ", p), r, frame); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := publishing.Wait(); err != nil {
			t.Fatal(err)
		}
		last := recordedBatch(t, f.recorder, w.a, f.stream, 1, 0)
		f.start("late", servicetest.FollowerConfig{Pick: pick(w.b)})
		f.awaitLast(last)
		f.finish()
	})
}

// Scenario S44, symptom: the replay's order was not the live one. Cause: ties
// ordered by something that has no relation to commits.
func TestReplayHasTheLiveOrder(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("ties", "")
		r := subscribe(t, w.b, live(s))
		publishing, err := w.a.Client.PublishStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const n = 3000
		var g errgroup.Group
		g.Go(func() error {
			for i := range uint64(n) {
				if err := publishing.Send(&fanfarev1.PublishStreamRequest{Number: i, Frame: newFrame(s, numbered(int(i)))}); err != nil {
					return err
				}
			}
			return publishing.CloseSend()
		})
		for range n {
			answer, err := publishing.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := answer.GetPublished().GetPosition().GetSequence(); got != answer.GetNumber()+1 {
				t.Fatalf("request %d got %v", answer.GetNumber(), answer)
			}
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		want := r.payloads(n)
		for range 2 {
			if got := subscribe(t, w.b, fromOldest(s)).payloads(n); !slices.Equal(got, want) {
				t.Error("a replay has another order than live delivery")
			}
		}
	})
}

// Scenario S45, symptom: live frames went out while stored ones were still being
// sent. Cause: replay and live written by two goroutines. CaughtUp comes once,
// after the last frame that was stored before the subscription.
func TestReplayComesBeforeLive(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("seam", "")
		const stored, more = 3000, 300
		publishMany(t, w.a, s, stored, func(i int) string { return numbered(i) + string(make([]byte, 500)) })
		r := subscribe(t, w.b, fromOldest(s))
		var g errgroup.Group
		g.Go(func() error {
			for i := range more {
				if _, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: newFrame(s, numbered(stored+i))}); err != nil {
					return err
				}
			}
			return nil
		})
		var taken, caughtUpAt, caughtUps int
		var previous uint64
		for taken < stored+more {
			if err := r.recv(); err != nil {
				t.Fatal(err)
			}
			for _, f := range r.frames {
				if got := f.GetPosition().GetSequence(); got != previous+1 {
					t.Fatalf("%d came after %d", got, previous)
				}
				previous++
			}
			taken += len(r.frames)
			r.frames = nil
			if len(r.notices) > caughtUps {
				caughtUps, caughtUpAt = len(r.notices), taken
			}
			if taken < stored {
				<-time.After(time.Millisecond) // a slow reader
			}
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if caughtUps == 0 {
			r.untilCaughtUp()
			caughtUps, caughtUpAt = len(r.notices), taken
		}
		if caughtUps != 1 || caughtUpAt < stored {
			t.Errorf("%d notices, the last after %d frames; %d were stored before", caughtUps, caughtUpAt, stored)
		}
	})
}
