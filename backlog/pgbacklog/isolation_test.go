package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// isolationPlan is how TestHeldStreamsLeaveLatenciesAlone measures.
type isolationPlan struct {
	rounds int
	each   time.Duration // of a run, and of the locks held in it
	// limit is the greatest ratio of the p99 to that beside transactions of the same
	// age, and to that beside none; slack is what is allowed beside it.
	limit float64
	slack time.Duration
}

// The long form measures, on a machine that does nothing else; the short one only tells a queue that waits
// for locks from one that does not, whatever else the machine does.
func planIsolation() isolationPlan {
	if os.Getenv("FANFARE_LONG") != "" {
		return isolationPlan{rounds: 6, each: 20 * time.Second, limit: 1.5}
	}
	return isolationPlan{rounds: 3, each: time.Second, limit: 3, slack: 400 * time.Millisecond} // a lock is waited for for 800 ms
}

// isolationRuns are the runs of a round, by what foreign transactions do
// meanwhile. Odd rounds go through them backwards.
//
// Any transaction that has written and stays open keeps the dead versions of all
// rows of the database, those of stream rows too, whatever it holds, and those who
// publish step over them. That comes with its age, not with its locks, so "old"
// has transactions of the same age that hold nothing of Fanfare's, twice: the two
// tell how far runs alike differ on this machine.
var isolationRuns = []string{"free", "old", "held", "old again"}

// Foreign transactions hold the row of one stream and create another one, and do
// not end. Publishers of 50 other streams, and closes and batches of others, take
// as long as beside transactions of the same age that hold nothing of theirs.
func TestHeldStreamsLeaveLatenciesAlone(t *testing.T) {
	plan := planIsolation()
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("held", "0"))
	pgtest.Exec(t, admin, `create table foreign_table (n int)`)
	measureLatencies(t, s, min(plan.each, 2*time.Second)) // connections, plans, caches
	begin := map[string]func() (end func()){
		"free":      func() func() { return func() {} },
		"old":       func() func() { return growOld(t, url) },
		"held":      func() func() { return holdStreams(t, s, url) },
		"old again": func() func() { return growOld(t, url) },
	}
	ratios := map[string][]isolationRatio{}
	for round := range plan.rounds {
		order := slices.Clone(isolationRuns)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		runs := map[string]isolationRun{}
		for _, what := range order {
			pgtest.Exec(t, admin, `vacuum fanfare.streams, fanfare.channel_frames`) // what earlier runs left
			end := begin[what]()
			runs[what] = measureLatencies(t, s, plan.each)
			end()
			t.Logf("round %d, %s: %s", round, what, runs[what])
		}
		for what, pair := range map[string][2]string{
			"held to old": {"held", "old"}, "held to free": {"held", "free"}, "old to old": {"old again", "old"},
		} {
			ratios[what] = append(ratios[what], runs[pair[0]].ratioTo(runs[pair[1]], plan.slack))
		}
	}
	for _, compared := range []struct {
		what  string
		limit float64
	}{{"old to old", math.Inf(1)}, {"held to old", plan.limit}, {"held to free", plan.limit}} {
		frames, calls := spreadOf(ratios[compared.what])
		t.Logf("the p99, %s: publishes %s, batches and closes %s", compared.what, frames, calls)
		if frames.median > compared.limit || calls.median > compared.limit {
			t.Errorf("the p99, %s: of publishes it is %.2f times as long, of batches and closes %.2f times; the limit is %.1f",
				compared.what, frames.median, calls.median, compared.limit)
		}
	}
}

// isolationRatio compares the p99 of two runs.
type isolationRatio struct{ frames, calls float64 }

// spread is what ratios are about.
type spread struct{ least, median, most float64 }

func (s spread) String() string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.median, s.least, s.most)
}

func spreadOf(ratios []isolationRatio) (frames, calls spread) {
	of := func(part func(isolationRatio) float64) spread {
		var values []float64
		for _, r := range ratios {
			values = append(values, part(r))
		}
		slices.Sort(values)
		n := len(values)
		return spread{values[0], (values[(n-1)/2] + values[n/2]) / 2, values[n-1]}
	}
	return of(func(r isolationRatio) float64 { return r.frames }), of(func(r isolationRatio) float64 { return r.calls })
}

// growOld has two foreign transactions write something of their own and stay
// open.
func growOld(t *testing.T, url string) (end func()) {
	var conns []*pgx.Conn
	for range 2 {
		conn := pgtest.Dial(t, url)
		pgtest.Exec(t, conn, `begin`)
		pgtest.Exec(t, conn, `insert into foreign_table values (1)`)
		conns = append(conns, conn)
	}
	return func() { endAll(t, conns...) }
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
		endAll(t, row, first)
	}
}

// endAll rolls foreign transactions back and ends their sessions.
func endAll(t *testing.T, conns ...*pgx.Conn) {
	for _, conn := range conns {
		pgtest.Exec(t, conn, "rollback")
		_ = conn.Close(t.Context())
	}
}

type latencies []time.Duration

func (l latencies) at(part float64) time.Duration { return l[int(part*float64(len(l)-1))] }

// ratio compares the p99, of which slack is taken off.
func (l latencies) ratio(base latencies, slack time.Duration) float64 {
	return float64(l.at(0.99)-slack) / float64(base.at(0.99))
}

type isolationRun struct{ frames, calls latencies }

func (r isolationRun) ratioTo(base isolationRun, slack time.Duration) isolationRatio {
	return isolationRatio{r.frames.ratio(base.frames, slack), r.calls.ratio(base.calls, slack)}
}

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
	repeat := func(into *latencies, pause time.Duration, least int, call func(i int) error) {
		callers.Go(func() {
			var times latencies
			turns := time.NewTicker(pause)
			defer turns.Stop()
			for i := 0; i < least || time.Now().Before(end); i++ {
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
		repeat(&run.frames, publishPause, 6, func(int) error {
			_, err := backlog.Publish(ctx, s, publication(fmt.Sprint("free ", caller), "x"))
			return err
		})
	}
	for caller := range 2 {
		scope := fmt.Sprint("called ", caller)
		repeat(&run.calls, callPause, 10, func(i int) error {
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
