package service_test

import (
	"context"
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
		s := stream("order", "")
		const publishers, each = 16, 250
		recorder := servicetest.NewRecorder()
		pick := func(r *servicetest.Replica) func() fanfarev1.FanfareServiceClient {
			return func() fanfarev1.FanfareServiceClient { return r.Client }
		}
		followers := []*servicetest.Follower{
			recorder.Follower("on a", s, servicetest.FollowerConfig{Pick: pick(w.a)}),
			recorder.Follower("on b", s, servicetest.FollowerConfig{Pick: pick(w.b)}),
			recorder.Follower("reconnecting", s, servicetest.FollowerConfig{Pick: pick(w.b), ReconnectEvery: 200 * time.Millisecond}),
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		var following, publishing errgroup.Group
		for _, f := range followers {
			following.Go(func() error { return f.Run(ctx) })
		}
		for p := range publishers {
			publishing.Go(func() error {
				client := []*servicetest.Replica{w.a, w.b}[p%2].Client
				for i := range each {
					f := newFrame(s, fmt.Sprintf("%d/%d", p, i))
					attempt := recorder.Publishing(fmt.Sprint("publisher ", p), f)
					answer, err := client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
					if err != nil {
						return err
					}
					attempt.Confirmed(position(answer.GetPosition()), false)
				}
				return nil
			})
		}
		if err := publishing.Wait(); err != nil {
			t.Fatal(err)
		}
		last := recordedBatch(t, recorder, w.a, s, 1, 0)
		late := recorder.Follower("late", s, servicetest.FollowerConfig{Pick: pick(w.b)})
		following.Go(func() error { return late.Run(ctx) })
		for _, f := range append(followers, late) {
			if err := f.AwaitLast(ctx, position(last)); err != nil {
				t.Error(err)
			}
		}
		cancel()
		if err := following.Wait(); err != nil {
			t.Error(err)
		}
		servicetest.Check(t, recorder.Run(), servicetest.Unbroken)
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
				time.Sleep(time.Millisecond) // a slow reader
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
