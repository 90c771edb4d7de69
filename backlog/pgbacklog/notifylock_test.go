package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// demandStandby makes every commit that writes wait for a standby that does not
// exist, until the returned function is called.
func demandStandby(t *testing.T, admin *pgx.Conn) (release func()) {
	t.Helper()
	reload := func(sql string) func() {
		return func() {
			_, _ = admin.Exec(context.Background(), sql)
			_, _ = admin.Exec(context.Background(), `select pg_reload_conf()`)
		}
	}
	release = reload(`alter system reset synchronous_standby_names`)
	t.Cleanup(release) // so that the database can be dropped
	reload(`alter system set synchronous_standby_names = 'nobody'`)()
	return release
}

// holdNotifyLock has a foreign commit hold the lock of all notifying commits of
// the cluster, because no standby confirms it, until the returned function is
// called.
func holdNotifyLock(t *testing.T, url string) (release func()) {
	t.Helper()
	admin, convoy := pgtest.Dial(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, admin, `create table foreign_table (n int)`)
	free := demandStandby(t, admin)
	var enough atomic.Bool
	stuck := make(chan error, 1)
	go func() { // until one waits: the server applies the setting a little later
		var err error
		for err == nil && !enough.Load() {
			_, err = convoy.Exec(t.Context(), `with n as (insert into foreign_table values (1) returning pg_notify('foreign', 'x')) select from n`)
		}
		stuck <- err
	}()
	awaitStandbyWait(t, admin)
	enough.Store(true)
	return func() {
		free()
		if err := <-stuck; err != nil {
			t.Error(err)
		}
	}
}

func awaitStandbyWait(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	eventually(t, "a commit waits for the standby", func() bool {
		return pgtest.Query[bool](t, admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
	})
}

// Somebody's commit holds the lock of all notifying commits of the cluster.
// Deadlines are kept, of publishes, batches and closes; what waits is bounded;
// reads go on; and afterwards what waits is published, once, and announced.
func TestNotifyLockHeld(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := migrated(t, server.NewDatabase(t))
	admin, listener := pgtest.Dial(t, url), pgtest.Dial(t, url)
	s := startPublisher(t, url, func(c *committerConfig) { c.MaxQueuedFrames = 100 })
	head := mustPublish(t, s, publication("s", "0")).Position
	pgtest.Exec(t, listener, "listen "+s.NotifyChannel())
	release := holdNotifyLock(t, url)

	patient := submit(t.Context(), s, publication("s", "patient"))
	// What comes later would otherwise be in its transaction.
	eventually(t, "a commit waits for the lock", func() bool {
		return pgtest.Query[bool](t, admin, `select exists (select from pg_locks where locktype = 'object' and not granted)`)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	patientBatch := many(1, func(int) error { return publishBatch(context.Background(), s, "patient", "t", "u") })
	hasty := submit(ctx, s, publication("s", "hasty"))
	hastyCalls := many(10, func(i int) error { // more than there are connections for calls
		if i%2 == 0 {
			return closeStream(ctx, s, "s")
		}
		return publishBatch(ctx, s, "hasty", "s", "v")
	})
	awaitCalls(t, s, 11)
	readEverything(t, s, head)
	if _, err := hasty.wait(t); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the deadline ended with %v, want that nothing was stored", err)
	}
	for range cap(hastyCalls) {
		if err := <-hastyCalls; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the deadline of a batch or close ended with %v, want that nothing was stored", err)
		}
	}
	var want []string
	var more []*pending
	for i := range 150 {
		p := submit(t.Context(), s, publication("w", fmt.Sprint(i)))
		if p.waiting() {
			more = append(more, p)
			want = append(want, fmt.Sprint(i))
		} else if _, err := p.wait(t); !errors.Is(err, backlog.ErrPublishQueueFull) {
			t.Fatalf("beyond the queue's bounds a publish ended with %v", err)
		}
	}
	if n := len(more); n < 90 || n > 100 {
		t.Errorf("%d publishes wait, the limit is 100 of all", n)
	}
	if err := closeStream(t.Context(), s, "s"); !errors.Is(err, backlog.ErrPublishQueueFull) {
		t.Errorf("beyond the queue's bounds a close ended with %v", err)
	}
	if !patient.waiting() || len(patientBatch) > 0 {
		t.Fatalf("published through the lock: %v", patient.err)
	}
	readEverything(t, s, head)

	release()
	patient.must(t)
	for _, p := range more {
		p.must(t)
	}
	if err := <-patientBatch; err != nil {
		t.Errorf("the batch that waited ended with %v", err)
	}
	if got := stored(t, admin, "s"); !slices.Equal(got, []string{"0", "patient"}) {
		t.Errorf("stored %q", got)
	}
	if got := stored(t, admin, "w"); !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
	if got := stored(t, admin, "v"); len(got) > 0 {
		t.Errorf("stored %q of batches whose deadlines passed", got)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := listener.WaitForNotification(ctx); err != nil {
		t.Errorf("nothing was announced: %v", err)
	}
}

// awaitCalls waits until there are n calls.
func awaitCalls(t *testing.T, s *Store, n int) {
	t.Helper()
	eventually(t, "all calls have begun", func() bool {
		s.committer.mu.Lock()
		defer s.committer.mu.Unlock()
		return s.committer.calling.frames == n
	})
}

// readEverything reads in all the ways there are, soon.
func readEverything(t *testing.T, s *Store, head backlog.Position) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), form(20*time.Second, 2*time.Second))
	defer cancel()
	stream := publication("s", "").Stream
	loaded, err := s.Load(ctx, 0, []backlog.LoadRequest{{Stream: stream, MaxFrames: 10, MaxBytes: 1 << 20}})
	if err != nil || len(loaded.Streams) != 1 || loaded.Streams[0].State.Head != head {
		t.Errorf("a load returned %+v, %v", loaded.Streams, err)
	}
	if _, err := s.ReadPage(ctx, 0, backlog.PageRequest{Stream: stream, After: head, MaxFrames: 10, MaxBytes: 1 << 20}); err != nil {
		t.Errorf("a page: %v", err)
	}
	if _, err := s.ListStreams(ctx, "", backlog.StreamName{}, 10); err != nil {
		t.Errorf("the list of streams: %v", err)
	}
	if _, err := s.Policies(ctx); err != nil {
		t.Errorf("the policies: %v", err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Errorf("a ping: %v", err)
	}
}

// A replica's own commit does not end, here because no standby confirms it. Only
// what is in it has an unknown outcome when its deadline passes; what waits
// behind it is certainly not stored. Retries with keys find what was stored.
func TestCommitDoesNotEnd(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	url := migrated(t, server.NewDatabase(t))
	admin := pgtest.Dial(t, url)
	s := startPublisher(t, url, func(c *committerConfig) { c.MaxQueuedFrames = 20 })
	head := mustPublish(t, s, publication("s", "0")).Position
	release := demandStandby(t, admin)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var inCommit *pending
	first := 0 // the server applies the setting a little later
	eventually(t, "the replica's commit waits for the standby", func() bool {
		if inCommit == nil || !inCommit.waiting() {
			first++
			inCommit = submit(ctx, s, keyed(publication("s", fmt.Sprint(first)), fmt.Sprint(first)))
		}
		return pgtest.Query[bool](t, admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
	})
	behind := submit(ctx, s, keyed(publication("s", "behind"), "behind"))
	batch := many(1, func(int) error { return publishBatch(ctx, s, "behind", "t", "u") })
	awaitCalls(t, s, 1)
	var refused int
	for range 30 {
		p := submit(ctx, s, publication("s", "behind"))
		if !p.waiting() {
			if _, err := p.wait(t); !errors.Is(err, backlog.ErrPublishQueueFull) {
				t.Errorf("beyond the queue's bounds a publish ended with %v", err)
			}
			refused++
		}
	}
	if refused < 10 {
		t.Errorf("%d of 30 publishes were refused, with room for 20 of all", refused)
	}
	if _, err := inCommit.wait(t); !errors.Is(err, backlog.ErrOutcomeUnknown) {
		t.Errorf("what was in the commit ended with %v", err)
	}
	if _, err := behind.wait(t); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what waited behind it ended with %v, want that nothing was stored", err)
	}
	if err := <-batch; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a batch behind it ended with %v, want that nothing was stored", err)
	}
	readCtx, cancelRead := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancelRead()
	if _, err := s.ReadPage(readCtx, 0, backlog.PageRequest{Stream: publication("s", "").Stream, After: head, MaxFrames: 1, MaxBytes: 1 << 20}); err != nil {
		t.Errorf("a page: %v", err)
	}

	release()
	if o := mustPublish(t, s, keyed(publication("s", fmt.Sprint(first)), fmt.Sprint(first))); !o.Duplicate {
		t.Errorf("the retry of what was in the commit got %+v", o)
	}
	if o := mustPublish(t, s, keyed(publication("s", "behind"), "behind")); o.Duplicate {
		t.Errorf("the retry of what waited behind it got %+v", o)
	}
	if got := len(stored(t, admin, "s")); got != 1+first+1 {
		t.Errorf("stored %d frames, want %d", got, 1+first+1)
	}
}
