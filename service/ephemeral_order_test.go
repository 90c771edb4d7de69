package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Symptom: subscribers got a durable frame before an ephemeral one that the same
// publisher had sent, and been answered for, before it. Cause: the durable one was
// read from the store before either was announced. So everything here that has a
// stream read goes on all the time, while both kinds are published in turn: durable
// frames too large for an announcement, subscribers that come and go and have been
// further on the other replica, re-reads, and hints that anybody can cause.
func TestOrderOfBothKinds(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.ReReadInterval = 2 * time.Millisecond })
		rounds := form(60, 2000)
		const publishers, steady, restless = 3, 3, 4
		f := newFollowed(t, stream("ephemeral", "order"))
		var publishing, forging errgroup.Group
		for i := range steady + restless {
			calls := 0
			cfg := servicetest.FollowerConfig{Pick: func() fanfarev1.FanfareServiceClient {
				calls++
				return []*servicetest.Replica{w.a, w.b}[(i+calls)%2].Client
			}}
			if i >= steady {
				cfg.ReconnectEvery = 30 * time.Millisecond
			}
			f.start(fmt.Sprint("follower ", i), cfg)
		}
		f.awaitSubscribed(steady)
		mallory := w.sql()
		forging.Go(func() error {
			for f.follow.Err() == nil {
				if _, err := mallory.Exec(f.ctx, "select pg_notify('fanfare_fanfare', 'hello'), pg_sleep(0.1)"); err != nil {
					return err
				}
			}
			return nil
		})
		for p := range publishers {
			publishing.Go(func() error {
				for i := range rounds {
					if err := publishPairs(f.ctx, f.recorder, fmt.Sprint("publisher ", p), w.a, f.stream, i); err != nil {
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
		f.finish()
		if err := forging.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// publishPairs publishes an ephemeral frame and a durable one, again and again: those
// of an odd round one by one, those of an even one in one transaction, all of which a
// read sees before the first of them is announced.
func publishPairs(ctx context.Context, recorder *servicetest.Recorder, publisher string, r *servicetest.Replica, s backlog.StreamName, round int) error {
	var frames []*fanfarev1.NewFrame
	for i := range 10 {
		payload := fmt.Sprint(publisher, "/", round, "/", i)
		if i%2 == 0 {
			payload += strings.Repeat(" ", 6000)
		}
		frames = append(frames, ephemeral(s, "ephemeral "+payload), newFrame(s, payload))
	}
	if round%2 == 1 {
		for _, f := range frames[:4] {
			if _, err := record(ctx, recorder, publisher, r, f); err != nil {
				return err
			}
		}
		return nil
	}
	var attempts []*servicetest.Attempt
	for _, f := range frames {
		attempts = append(attempts, recorder.Publishing(publisher, f))
	}
	answer, err := r.Client.PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: frames})
	if err != nil {
		return err
	}
	for i, a := range attempts {
		a.Confirmed(position(answer.GetResults()[i].GetPosition()), false)
	}
	return nil
}
