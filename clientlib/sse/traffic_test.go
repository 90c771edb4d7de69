package sse_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

const trafficStreams = 3

// traffic publishes durable and ephemeral frames to a few streams, one after the other,
// and follows them through edges: each stream by one who stays, one who comes back all
// the time, and one who is slow.
type traffic struct {
	t         testing.TB
	recorder  *servicetest.Recorder
	publish   func() fanfarev1.FanfareServiceClient
	confirmed atomic.Int64

	followers                     [][]*servicetest.Follower
	publishing, following         errgroup.Group
	stopPublishing, stopFollowing context.CancelFunc
}

func startTraffic(t testing.TB, publish, subscribe func() fanfarev1.FanfareServiceClient) *traffic {
	tr := &traffic{t: t, recorder: servicetest.NewRecorder(), publish: publish}
	var publishing, following context.Context
	publishing, tr.stopPublishing = context.WithCancel(context.Background())
	following, tr.stopFollowing = context.WithCancel(context.Background())
	t.Cleanup(func() {
		tr.stopPublishing()
		tr.stopFollowing()
		_ = tr.publishing.Wait() // finish tells of errors
		_ = tr.following.Wait()
	})
	for i := range trafficStreams {
		s := backlog.StreamName{Channel: "traffic", Scope: fmt.Sprint(i)}
		var followers []*servicetest.Follower
		for name, cfg := range map[string]servicetest.FollowerConfig{
			"steady": {}, "restless": {ReconnectEvery: time.Second}, "slow": {Rest: 3 * time.Millisecond},
		} {
			cfg.Pick = subscribe
			f := tr.recorder.Follower(fmt.Sprint(name, " ", i), s, cfg)
			followers = append(followers, f)
			tr.following.Go(func() error { return f.Run(following) })
		}
		tr.followers = append(tr.followers, followers)
		tr.publishing.Go(func() error { return tr.run(publishing, s) })
	}
	return tr
}

func (tr *traffic) publisher(name string) *servicetest.Publisher {
	return &servicetest.Publisher{Name: name, Recorder: tr.recorder, Client: tr.publish, Timeout: patience, Confirmed: func() { tr.confirmed.Add(1) }}
}

// run publishes until ctx ends. Every frame is different.
func (tr *traffic) run(ctx context.Context, s backlog.StreamName) error {
	p := tr.publisher("publisher of " + s.Scope)
	for n := 0; ctx.Err() == nil; n++ {
		f := &fanfarev1.NewFrame{Channel: s.Channel, Scope: s.Scope, Payload: fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", rand.N(500)))}
		var err error
		if f.Ephemeral = rand.N(4) == 0; f.Ephemeral {
			_, err = p.Publish(ctx, f)
		} else {
			f.IdempotencyKey = fmt.Sprint(n)
			_, err = p.PublishUntilAnswered(ctx, f)
		}
		if !servicetest.Passes(err) && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// awaitConfirmed waits until n more frames have been confirmed.
func (tr *traffic) awaitConfirmed(n int) {
	tr.t.Helper()
	want := tr.confirmed.Load() + int64(n)
	eventually(tr.t, fmt.Sprint(n, " more frames are confirmed"), func() bool { return tr.confirmed.Load() >= want })
}

// finish publishes a last frame to each stream, waits for all to have it, and checks the
// guarantees.
func (tr *traffic) finish(more ...servicetest.Guarantee) {
	tr.t.Helper()
	tr.stopPublishing()
	if err := tr.publishing.Wait(); err != nil {
		tr.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	for _, followers := range tr.followers {
		s := followers[0].Stream()
		last := &fanfarev1.NewFrame{Channel: s.Channel, Scope: s.Scope, Payload: []byte("the last"), IdempotencyKey: "the last"}
		if _, err := tr.publisher("last").PublishUntilAnswered(ctx, last); err != nil {
			tr.t.Fatal(err)
		}
		for _, f := range followers {
			if err := f.AwaitLastFrame(ctx, servicetest.ContentOf(last)); err != nil {
				tr.t.Fatal(err)
			}
		}
	}
	tr.stopFollowing()
	if err := tr.following.Wait(); err != nil {
		tr.t.Error(err)
	}
	servicetest.Check(tr.t, tr.recorder.Run(), more...)
}
