package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

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

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true within %s that %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
