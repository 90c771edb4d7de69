package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// isolationPlan is how TestHeldStreamsLeaveLatenciesAlone measures.
type isolationPlan struct {
	pairs int
	each  time.Duration // of a run, and of the locks held in every second one
	// limit is the greatest ratio of the p99, and slack what is allowed beside it.
	limit float64
	slack time.Duration
}

// The long form is the acceptance; the short one only tells a queue that waits
// for locks from one that does not, whatever else the machine does.
func planIsolation() isolationPlan {
	if os.Getenv("FANFARE_LONG") != "" {
		return isolationPlan{pairs: 5, each: 20 * time.Second, limit: 1.5}
	}
	return isolationPlan{pairs: 1, each: 3 * time.Second, limit: 3, slack: 150 * time.Millisecond}
}

// Foreign transactions hold the row of one stream and create another one, and do
// not end. Publishers of 50 other streams, and closes and batches of others, take
// as long as without them.
//
// Any transaction that has written and stays open keeps the dead versions of all
// rows of the database, those of stream rows too, whatever it holds. That is part
// of what is measured here, and most of it with publishers that send as fast as
// they can; see publishPause.
func TestHeldStreamsLeaveLatenciesAlone(t *testing.T) {
	plan := planIsolation()
	url := newSchema(t)
	s := startPublisher(t, url)
	mustPublish(t, s, publication("held", "0"))
	measureLatencies(t, s, min(plan.each, 2*time.Second)) // connections, plans, caches
	var frames, calls []float64
	for pair := range plan.pairs {
		free := measureLatencies(t, s, plan.each)
		release := holdStreams(t, s, url)
		held := measureLatencies(t, s, plan.each)
		release()
		t.Logf("pair %d: without held streams %s; with %s", pair, free, held)
		frames = append(frames, held.frames.ratio(free.frames, plan.slack))
		calls = append(calls, held.calls.ratio(free.calls, plan.slack))
	}
	t.Logf("the p99 with held streams is %.2f times that without, of batches and closes %.2f times (medians of %d)",
		median(frames), median(calls), plan.pairs)
	if r := median(frames); r > plan.limit {
		t.Errorf("the p99 of publishes is %.2f times that without held streams, the limit is %.1f", r, plan.limit)
	}
	if r := median(calls); r > plan.limit {
		t.Errorf("the p99 of batches and closes is %.2f times that without held streams, the limit is %.1f", r, plan.limit)
	}
}

// holdStreams has foreign transactions hold a row and create a stream, and
// callers of all kinds wait for both. The returned function ends all that.
func holdStreams(t *testing.T, s *Store, url string) (release func()) {
	row, first := pgtest.Dial(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, row, `begin`)
	pgtest.Exec(t, row, `select from fanfare.streams where scope = 'held' for update`)
	hold(t, first, "held new")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for i := range 10 {
		scope := []string{"held", "held new"}[i%2]
		for _, call := range []func() error{
			func() error { _, err := backlog.Publish(ctx, s, publication(scope, "x")); return err },
			func() error { return closeStream(ctx, s, scope) },
			func() error { return publishBatch(ctx, s, "x", scope, "beside "+scope) },
		} {
			waiting.Go(func() {
				for ctx.Err() == nil { // calls give up in the end
					err := call()
					if err == nil || !errors.Is(err, backlog.ErrUnavailable) && ctx.Err() == nil {
						t.Errorf("what waited for a held stream ended with %v", err)
						return
					}
				}
			})
		}
	}
	return func() {
		cancel()
		waiting.Wait()
		pgtest.Exec(t, row, "rollback")
		pgtest.Exec(t, first, "rollback")
	}
}

type latencies []time.Duration

func (l latencies) at(part float64) time.Duration { return l[int(part*float64(len(l)-1))] }

// ratio compares the p99, of which slack is taken off.
func (l latencies) ratio(base latencies, slack time.Duration) float64 {
	return float64(l.at(0.99)-slack) / float64(base.at(0.99))
}

type isolationRun struct{ frames, calls latencies }

func (r isolationRun) String() string {
	return fmt.Sprintf("%d publishes, p50 %v, p99 %v, %d batches and closes, p50 %v, p99 %v",
		len(r.frames), r.frames.at(0.5), r.frames.at(0.99), len(r.calls), r.calls.at(0.5), r.calls.at(0.99))
}

// Each publisher sends a frame every publishPause, and each of those who close and
// publish batches does the one or the other every callPause: as much as leaves
// the machine some room, since the latencies of a machine that is full are those
// of its queues.
const (
	publishPause = 100 * time.Millisecond
	callPause    = 50 * time.Millisecond
)

// measureLatencies publishes to 50 streams, and publishes batches to others and
// closes them.
func measureLatencies(t *testing.T, s *Store, d time.Duration) (run isolationRun) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d+30*time.Second)
	defer cancel()
	end := time.Now().Add(d)
	var mu sync.Mutex // guards run
	var callers sync.WaitGroup
	repeat := func(into *latencies, pause time.Duration, call func(i int) error) {
		callers.Go(func() {
			var times latencies
			turns := time.NewTicker(pause)
			defer turns.Stop()
			for i := 0; time.Now().Before(end); i++ {
				<-turns.C
				began := time.Now()
				if err := call(i); err != nil {
					t.Errorf("while others held a stream: %v", err)
					return
				}
				times = append(times, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			*into = append(*into, times...)
		})
	}
	for caller := range 50 {
		repeat(&run.frames, publishPause, func(int) error {
			_, err := backlog.Publish(ctx, s, publication(fmt.Sprint("free ", caller), "x"))
			return err
		})
	}
	for caller := range 2 {
		scope := fmt.Sprint("called ", caller)
		repeat(&run.calls, callPause, func(i int) error {
			if i%2 == 0 {
				return publishBatch(ctx, s, "x", scope, scope+" too")
			}
			return closeStream(ctx, s, scope)
		})
	}
	callers.Wait()
	if len(run.frames) < 300 || len(run.calls) < 20 {
		t.Fatalf("only %d publishes and %d calls", len(run.frames), len(run.calls))
	}
	slices.Sort(run.frames)
	slices.Sort(run.calls)
	return run
}
