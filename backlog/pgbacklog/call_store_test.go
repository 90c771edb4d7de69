package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// hold publishes to streams in a transaction that stays open.
func hold(t testing.TB, conn *pgx.Conn, scopes ...string) {
	t.Helper()
	pgtest.Exec(t, conn, "begin")
	for _, scope := range scopes {
		pgtest.Exec(t, conn, `select fanfare.publish('c', $1, 'foreign')`, scope)
	}
}

func closeStream(ctx context.Context, s *Store, scope string) error {
	_, err := s.CloseStream(ctx, publication(scope, "").Stream, nil)
	return err
}

func publishBatch(ctx context.Context, s *Store, payload string, scopes ...string) error {
	var batch []backlog.Publication
	for _, scope := range scopes {
		batch = append(batch, publication(scope, payload))
	}
	_, err := s.PublishBatch(ctx, batch)
	return err
}

// many starts n calls.
func many(n int, call func(i int) error) (ended chan error) {
	ended = make(chan error, n)
	for i := range n {
		go func() { ended <- call(i) }()
	}
	return ended
}

// waitingInDatabase counts the sessions of publishing that wait for a lock.
const waitingInDatabase = `select count(*) from pg_stat_activity
	where datname = current_database() and application_name like 'fanfare-publish%' and wait_event_type = 'Lock'`

// Symptom: while an application held one stream, no stream could be closed and no
// batch published. Cause: the calls for it, of callers without deadlines, had
// taken all connections for calls and kept them. And a batch that waited for it
// kept the batch's other streams locked meanwhile.
func TestCallsForHeldStreamsHoldUpNobodyElse(t *testing.T) {
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("row", "0"))
	mustPublish(t, s, publication("shared", "0"))
	foreign := pgtest.Dial(t, url)
	hold(t, foreign, "row", "new") // a locked row, and one that is being created

	const callers = 20
	closes := many(callers, func(i int) error { return closeStream(context.Background(), s, []string{"row", "new"}[i%2]) })
	batches := many(callers, func(i int) error {
		return publishBatch(context.Background(), s, "batch", "shared", []string{"row", "new"}[i%2])
	})
	eventually(t, "calls wait in the lanes of what they found held, and of nothing else", func() bool {
		s.committer.mu.Lock()
		defer s.committer.mu.Unlock()
		return s.committer.laned.frames == 2*callers && len(s.committer.lanes) == 2
	})
	var times []time.Duration
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for i := range 30 {
		if n := pgtest.Query[int](t, admin, waitingInDatabase); n > 2 {
			t.Fatalf("%d sessions wait, want one for each held stream", n)
		}
		began := time.Now()
		mustPublish(t, s, publication("shared", fmt.Sprint(i)))
		for what, err := range map[string]error{
			"a batch":                 publishBatch(ctx, s, "free", "a", "shared", "z"),
			"a close":                 closeStream(ctx, s, "a"),
			"a close of what is none": closeStream(ctx, s, "none"),
		} {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	if m := times[len(times)/2]; m > form(3*time.Second, 400*time.Millisecond) { // what is held is held for longer
		t.Errorf("a publish, a batch and two closes took %v", m)
	}
	if len(closes)+len(batches) > 0 {
		t.Fatal("a call ended before the transaction that it waits for")
	}
	pgtest.Exec(t, foreign, "commit")
	for range callers {
		if err := <-closes; err != nil {
			t.Errorf("a close that waited: %v", err)
		}
		if err := <-batches; err != nil {
			t.Errorf("a batch that waited: %v", err)
		}
	}
	if got := pgtest.Query[int](t, admin, `select head from fanfare.streams where scope = 'shared'`); got != 1+30+30+callers {
		t.Errorf("the shared stream has %d frames", got)
	}
	eventually(t, "nothing is left of the calls", func() bool {
		s.committer.mu.Lock()
		defer s.committer.mu.Unlock()
		return s.committer.queued == load{} && s.committer.laned == load{} && s.committer.calling == load{} && len(s.committer.lanes) == 0
	})
}

// Callers of one held stream with deadlines too short for a lane must not use up
// the first attempts of others over and over: the stream is remembered.
func TestHastyCallsForAHeldStream(t *testing.T) {
	url := newSchema(t)
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("held", "0"))
	hold(t, foreign, "held")
	ctx, cancel := context.WithCancel(t.Context())
	hasty := many(40, func(int) error {
		for ctx.Err() == nil {
			short, cancel := context.WithTimeout(ctx, 70*time.Millisecond)
			err := closeStream(short, s, "held")
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, backlog.ErrOutcomeUnknown) && ctx.Err() == nil {
				return fmt.Errorf("a hasty close ended with %w", err)
			}
		}
		return nil
	})
	var times []time.Duration
	var waiting []int
	for range 60 {
		began := time.Now()
		if err := publishBatch(t.Context(), s, "x", "a", "b"); err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Since(began))
		s.committer.mu.Lock()
		waiting = append(waiting, s.committer.laned.frames)
		s.committer.mu.Unlock()
	}
	cancel()
	for range cap(hasty) {
		if err := <-hasty; err != nil {
			t.Error(err)
		}
	}
	slices.Sort(times)
	// Without the memory all slots are taken for 50 ms, again and again.
	if m := times[len(times)/2]; m > form(5*time.Second, 50*time.Millisecond) {
		t.Errorf("a batch for other streams took %v", m)
	}
	// They wait in the lane of what is held, and have tried nothing before.
	if most := slices.Max(waiting); most < cap(hasty)/2 {
		t.Errorf("at most %d of %d hasty calls waited in a lane", most, cap(hasty))
	}
	pgtest.Exec(t, foreign, "rollback")
}

// A caller without a deadline is told in the end that nothing was stored.
func TestCallsGiveUp(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("held", "0"))
	hold(t, foreign, "held")
	err := patiently(3*time.Second, func(left time.Duration) error {
		s := startPublisher(t, url, func(c *committerConfig) { c.RetryTimeout = left })
		ended := many(10, func(i int) error {
			if i%2 == 0 {
				return closeStream(context.Background(), s, "held")
			}
			return publishBatch(context.Background(), s, "late", "free", "held")
		})
		var errs []error
		for range cap(ended) {
			err := <-ended
			if !errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has not ended") {
				errs = append(errs, fmt.Errorf("a call that gave up returned %w, want ErrUnavailable", err))
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Error(err)
	}
	pgtest.Exec(t, foreign, "commit")
	if err := closeStream(t.Context(), s, "held"); err != nil {
		t.Error(err)
	}
	if got, want := stored(t, foreign, "held"), []string{"0", "foreign"}; !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
	if got := stored(t, foreign, "free"); len(got) > 0 {
		t.Errorf("stored %q of batches that gave up", got)
	}
}

// A caller with a deadline, or who leaves, gets it whether the call waits for a
// stream or for its turn. An attempt ends a tenth before the deadline, which must be
// enough for its answer on a busy machine.
func TestCallsEndWithTheirCallers(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	mustPublish(t, s, publication("held", "0"))
	hold(t, foreign, "held")
	for _, left := range []time.Duration{900 * time.Millisecond, 1500 * time.Millisecond} {
		err := patiently(left, func(left time.Duration) error {
			began := time.Now()
			ended := many(12, func(int) error {
				ctx, cancel := context.WithTimeout(context.Background(), left)
				defer cancel()
				return publishBatch(ctx, s, "late", "free", "held")
			})
			var errs []error
			for range cap(ended) {
				if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
					errs = append(errs, fmt.Errorf("with %v left the batch ended with %w", left, err))
				}
			}
			if elapsed := time.Since(began); elapsed > left+form(20*time.Second, time.Second) {
				t.Errorf("with %v left the batches took %v", left, elapsed)
			}
			return errors.Join(errs...)
		})
		if err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	leaving := many(12, func(int) error { return closeStream(ctx, s, "held") })
	eventually(t, "the closes wait", func() bool {
		s.committer.mu.Lock()
		defer s.committer.mu.Unlock()
		return s.committer.laned.frames == cap(leaving)
	})
	cancel()
	for range cap(leaving) { // one of them may be in flight
		if err := <-leaving; !errors.Is(err, context.Canceled) && !errors.Is(err, backlog.ErrOutcomeUnknown) {
			t.Errorf("the close of a caller who left ended with %v", err)
		}
	}
	pgtest.Exec(t, foreign, "commit")
	if got, want := stored(t, foreign, "held"), []string{"0", "foreign"}; !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}

// Calls that wait for one stream are bounded, and leave room for all others.
func TestCallsAreBounded(t *testing.T) {
	url := newSchema(t)
	s := startPublisher(t, url, func(c *committerConfig) { c.MaxQueuedFrames = 40 })
	foreign := pgtest.Dial(t, url)
	hold(t, foreign, "held")
	var full int
	ended := make(chan error, 100)
	for range 100 {
		go func() { ended <- closeStream(context.Background(), s, "held") }()
	}
	for range 90 {
		if err := <-ended; !errors.Is(err, backlog.ErrPublishQueueFull) {
			t.Fatalf("a close ended with %v", err)
		}
		full++
	}
	if err := publishBatch(t.Context(), s, "x", "free", "other"); err != nil {
		t.Errorf("a batch for other streams: %v", err)
	}
	mustPublish(t, s, publication("free", "x"))
	pgtest.Exec(t, foreign, "commit")
	for range 10 { // a quarter
		if err := <-ended; err != nil {
			t.Errorf("a close that waited: %v", err)
		}
	}
}

// Large batches are bounded by their bytes.
func TestCallsAreBoundedInBytes(t *testing.T) {
	url := newSchema(t)
	s := startPublisher(t, url, func(c *committerConfig) { c.MaxQueuedBytes = 4 << 20 })
	foreign := pgtest.Dial(t, url)
	hold(t, foreign, "held")
	large := publication("held", "")
	large.Payload = make([]byte, 400<<10)
	ended := many(20, func(int) error {
		_, err := s.PublishBatch(context.Background(), []backlog.Publication{large})
		return err
	})
	for range 18 {
		if err := <-ended; !errors.Is(err, backlog.ErrPublishQueueFull) {
			t.Fatalf("a batch ended with %v", err)
		}
	}
	mustPublish(t, s, publication("free", "x"))
	pgtest.Exec(t, foreign, "commit")
	for range 2 { // a quarter
		if err := <-ended; err != nil {
			t.Errorf("a batch that waited: %v", err)
		}
	}
}

// A batch whose streams are held one after the other waits for each in turn,
// with none of the others locked.
func TestBatchMovesToWhatIsHeld(t *testing.T) {
	url := newSchema(t)
	s, first, second := startPublisher(t, url), pgtest.Dial(t, url), pgtest.Dial(t, url)
	for _, scope := range []string{"a", "b", "c"} {
		mustPublish(t, s, publication(scope, "0"))
	}
	hold(t, first, "b")
	hold(t, second, "c")
	ended := many(1, func(int) error { return publishBatch(context.Background(), s, "1", "a", "b", "c") })
	inLaneOf := func(scope string) func() bool {
		return func() bool {
			s.committer.mu.Lock()
			defer s.committer.mu.Unlock()
			l := s.committer.lanes[publication(scope, "").Stream]
			return l != nil && l.load.frames == 1
		}
	}
	eventually(t, "the batch waits for one", func() bool { return inLaneOf("b")() || inLaneOf("c")() })
	mustPublish(t, s, publication("a", "1"))
	pgtest.Exec(t, first, "commit")
	eventually(t, "the batch waits for the other", inLaneOf("c"))
	for range 5 {
		mustPublish(t, s, publication("a", "x"))
		mustPublish(t, s, publication("b", "x"))
	}
	pgtest.Exec(t, second, "commit")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for scope, want := range map[string]int{"a": 8, "b": 8, "c": 3} {
		if got := len(stored(t, second, scope)); got != want {
			t.Errorf("stream %s has %d frames, want %d", scope, got, want)
		}
	}
}

// What one caller sends for a held stream, publishes and calls, is done in the
// order in which it was sent.
func TestCallsKeepTheOrderInALane(t *testing.T) {
	url := newSchema(t)
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	hold(t, foreign, "held")
	waiting := 0
	inLane := func() {
		waiting++
		eventually(t, "it waits in the lane", func() bool {
			s.committer.mu.Lock()
			defer s.committer.mu.Unlock()
			return s.committer.laned.frames == waiting
		})
	}
	first := submit(t.Context(), s, publication("held", "1"))
	inLane()
	batch := many(1, func(int) error { return publishBatch(context.Background(), s, "2", "held", "other") })
	inLane()
	var last backlog.CloseOutcome
	closing := many(1, func(int) (err error) {
		last, err = s.CloseStream(context.Background(), publication("held", "").Stream, nil)
		return err
	})
	inLane()
	next := submit(t.Context(), s, publication("held", "3"))
	inLane()
	pgtest.Exec(t, foreign, "commit")
	if err := errors.Join(<-batch, <-closing); err != nil {
		t.Fatal(err)
	}
	position := first.must(t).Position
	if reopened := next.must(t).Position; position.Sequence != 2 || last.Last.Sequence != 3 || reopened.Sequence != 1 || reopened.Epoch == position.Epoch {
		t.Errorf("first %v, closed after %v, next %v", position, last.Last, reopened)
	}
}

// More streams are held than there are lanes that run: calls for one that is free
// again, and for one that an application held for a moment, have their turn soon.
func TestTurnsWithManyHeldStreams(t *testing.T) {
	url := newSchema(t)
	s, foreign, other, admin := startPublisher(t, url), pgtest.Dial(t, url), pgtest.Dial(t, url), pgtest.Dial(t, url)
	scopes := names("held", 1, 100)
	hold(t, foreign, scopes...)
	hold(t, other, "freed")
	held := many(len(scopes), func(i int) error { return closeStream(context.Background(), s, scopes[i]) })
	freed := many(1, func(int) error { return closeStream(context.Background(), s, "freed") })
	eventually(t, "all wait", func() bool {
		s.committer.mu.Lock()
		defer s.committer.mu.Unlock()
		return s.committer.laned.frames == len(scopes)+1
	})
	if n := pgtest.Query[int](t, admin, waitingInDatabase); n > s.cfg.Lanes {
		t.Errorf("%d sessions wait, there are %d lanes", n, s.cfg.Lanes)
	}
	began := time.Now()
	pgtest.Exec(t, other, "commit")
	if err := <-freed; err != nil {
		t.Fatal(err)
	}
	// Turns of 0.8 s would take 10 s to come round.
	if elapsed := time.Since(began); elapsed > 8*time.Second {
		t.Errorf("the turn of the stream that is free came after %v", elapsed)
	}
	pgtest.Exec(t, foreign, "commit")
	for range scopes {
		if err := <-held; err != nil {
			t.Error(err)
		}
	}
}
