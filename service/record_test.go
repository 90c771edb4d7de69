package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func position(p *fanfarev1.Position) backlog.Position {
	return backlog.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}

// recordedBatch publishes n frames, at most 1,000 to a batch, and records them.
func recordedBatch(t testing.TB, recorder *servicetest.Recorder, r *servicetest.Replica, s backlog.StreamName, n, round int) *fanfarev1.Position {
	t.Helper()
	last, err := tryRecordedBatch(t, recorder, r, s, n, round)
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// tryRecordedBatch ends at the first batch that fails.
func tryRecordedBatch(t testing.TB, recorder *servicetest.Recorder, r *servicetest.Replica, s backlog.StreamName, n, round int) (last *fanfarev1.Position, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for done := 0; done < n; {
		var frames []*fanfarev1.NewFrame
		var attempts []*servicetest.Attempt
		for ; len(frames) < backlog.MaxBatchFrames && done < n; done++ {
			f := newFrame(s, fmt.Sprintf("batch %d/%d", round, done))
			frames = append(frames, f)
			attempts = append(attempts, recorder.Publishing("batches", f))
		}
		answer, err := r.Client.PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: frames})
		if err != nil {
			return nil, err
		}
		for i, result := range answer.GetResults() {
			last = result.GetPosition()
			attempts[i].Confirmed(position(last), result.GetDuplicate())
		}
	}
	return last, nil
}

// followed is a recorded run of one stream's followers.
type followed struct {
	t         testing.TB
	recorder  *servicetest.Recorder
	stream    backlog.StreamName
	followers []*servicetest.Follower

	ctx       context.Context // of the whole run
	following errgroup.Group
	// follow is done when the followers are to leave.
	follow context.Context
	leave  context.CancelFunc
}

func newFollowed(t testing.TB, s backlog.StreamName) *followed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	follow, leave := context.WithCancel(ctx)
	return &followed{t: t, recorder: servicetest.NewRecorder(), stream: s, ctx: ctx, follow: follow, leave: leave}
}

// start has another follower begin.
func (f *followed) start(name string, cfg servicetest.FollowerConfig) {
	follower := f.recorder.Follower(name, f.stream, cfg)
	f.followers = append(f.followers, follower)
	f.following.Go(func() error { return follower.Run(f.follow) })
}

// awaitSubscribed waits until the first n followers have been acknowledged.
func (f *followed) awaitSubscribed(n int) {
	f.t.Helper()
	for _, follower := range f.followers[:n] {
		if err := follower.AwaitSubscribed(f.ctx); err != nil {
			f.t.Fatal(err)
		}
	}
}

// awaitLast waits until all followers have the run's last durable frame.
func (f *followed) awaitLast(last *fanfarev1.Position) {
	f.t.Helper()
	for _, follower := range f.followers {
		if err := follower.AwaitLast(f.ctx, position(last)); err != nil {
			f.t.Error(err)
		}
	}
}

// finish has the followers leave and checks the guarantees.
func (f *followed) finish() servicetest.Run {
	f.t.Helper()
	f.leave()
	if err := f.following.Wait(); err != nil {
		f.t.Error(err)
	}
	run := f.recorder.Run()
	servicetest.Check(f.t, run, servicetest.Unbroken)
	return run
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true within %s that %s", patience, what)
		}
		<-look.C
	}
}
