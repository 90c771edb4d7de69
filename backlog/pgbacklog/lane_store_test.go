package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// While an application holds a stream, in whatever way, publishes to other
// streams go on; afterwards the held stream has everything in its callers' order.
func TestHeldStreamHoldsUpNobodyElse(t *testing.T) {
	const sqlPublish = `select fanfare.publish('c', 'held', 'foreign')`
	for _, test := range []struct {
		name, before, hold, end string
		want                    []string
	}{
		{"row locked", sqlPublish, `select from fanfare.streams where scope = 'held' for update`, "commit", []string{"foreign"}},
		{"published", sqlPublish, sqlPublish, "commit", []string{"foreign", "foreign"}},
		{"published, rolled back", sqlPublish, sqlPublish, "rollback", []string{"foreign"}},
		{"first frame", "", sqlPublish, "commit", []string{"foreign"}},
		{"first frame, rolled back", "", sqlPublish, "rollback", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := newSchema(t)
			s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
			if test.before != "" {
				pgtest.Exec(t, foreign, test.before)
			}
			pgtest.Exec(t, foreign, "begin")
			pgtest.Exec(t, foreign, test.hold)

			want := test.want
			var held []*pending
			for i := range 20 {
				payload := fmt.Sprint("held ", i)
				want = append(want, payload)
				held = append(held, submit(t.Context(), s, publication("held", payload)))
				mustPublishRound(t, s, i)
			}
			for _, p := range held {
				if !p.waiting() {
					t.Fatalf("a publish to the held stream ended: %v", p.err)
				}
			}
			pgtest.Exec(t, foreign, test.end)
			for i, p := range held {
				o := p.must(t)
				if n := uint64(len(test.want) + i + 1); o.Position.Sequence != n {
					t.Errorf("frame %d of the held stream has sequence %d, want %d", i, o.Position.Sequence, n)
				}
			}
			if got := stored(t, foreign, "held"); !slices.Equal(got, want) {
				t.Errorf("the held stream has %q, want %q", got, want)
			}
			for stream := range 50 {
				if got := len(stored(t, foreign, fmt.Sprint("free ", stream))); got != 20 {
					t.Errorf("stream %d has %d frames, want 20", stream, got)
				}
			}
		})
	}
}

// mustPublishRound publishes a frame to each of 50 streams, under a deadline
// that a lock's wait would exceed.
func mustPublishRound(t *testing.T, s *Store, round int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := publishAll(ctx, 50, 1, func(ctx context.Context, caller, _ int) error {
		_, err := backlog.Publish(ctx, s, publication(fmt.Sprint("free ", caller), fmt.Sprint(round)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A caller's deadline must end its wait for a held stream with the certainty
// that nothing was stored.
func TestDeadlineInALane(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, foreign, "begin")
	pgtest.Exec(t, foreign, `select fanfare.publish('c', 'held', 'foreign')`)
	var late []*pending
	err := patiently(1500*time.Millisecond, func(left time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		defer cancel()
		early := submit(ctx, s, publication("held", "early"))
		late = append(late, submit(t.Context(), s, publication("held", "late")))
		_, err := early.wait(t)
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the deadline ended with %v, want that nothing was stored", err)
	}
	pgtest.Exec(t, foreign, "commit")
	for _, p := range late {
		p.must(t)
	}
	if got, want := stored(t, foreign, "held"), append([]string{"foreign"}, slices.Repeat([]string{"late"}, len(late))...); !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}

// More held streams than lanes: those that are free again get their turn.
func TestMoreHeldStreamsThanLanes(t *testing.T) {
	url := newSchema(t)
	s := startPublisher(t, url)
	held, freed := pgtest.Dial(t, url), pgtest.Dial(t, url)
	for conn, scope := range map[*pgx.Conn]string{held: "held", freed: "freed"} {
		pgtest.Exec(t, conn, "begin")
		for i := range 12 {
			pgtest.Exec(t, conn, `select fanfare.publish('c', $1, 'foreign')`, fmt.Sprint(scope, i))
		}
	}
	var waiting, free []*pending
	for i := range 12 {
		waiting = append(waiting, submit(t.Context(), s, publication(fmt.Sprint("held", i), "x")))
		free = append(free, submit(t.Context(), s, publication(fmt.Sprint("freed", i), "x")))
	}
	mustPublishRound(t, s, 0)
	pgtest.Exec(t, freed, "rollback")
	for _, p := range free {
		p.must(t)
	}
	for _, p := range waiting {
		if !p.waiting() {
			t.Error("a publish to a held stream ended early")
		}
	}
	pgtest.Exec(t, held, "rollback")
	for _, p := range waiting {
		p.must(t)
	}
}

// The application must never be the deadlock detector's victim because of
// Fanfare, so Fanfare gives up its locks before the detector runs.
func TestApplicationWinsDeadlocks(t *testing.T) {
	server := pgtest.Start(t, "deadlock_timeout=200ms")
	url := migrated(t, server.NewDatabase(t))
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	if got := mustPublish(t, s, publication("a", "0")); got.Position.Sequence != 1 {
		t.Fatal("the first frame is not the first")
	}
	if got := time.Duration(s.committer.lockTimeout.Load()); got != 160*time.Millisecond {
		t.Errorf("lock timeout %v for a deadlock_timeout of 200 ms", got)
	}
	mustPublish(t, s, publication("b", "0"))
	for range 5 {
		pgtest.Exec(t, foreign, "begin")
		pgtest.Exec(t, foreign, `select fanfare.publish('c', 'b', 'foreign')`)
		batch := make(chan error, 1)
		go func() { // locks a, waits for b
			_, err := s.PublishBatch(t.Context(), []backlog.Publication{publication("a", "1"), publication("b", "1")})
			batch <- err
		}()
		other := pgtest.Dial(t, url)
		eventually(t, "the batch waits for the application", func() bool {
			return pgtest.Query[bool](t, other, `select exists (select from pg_locks where not granted)`)
		})
		pgtest.Exec(t, foreign, `select fanfare.publish('c', 'a', 'foreign')`)
		pgtest.Exec(t, foreign, "commit")
		if err := <-batch; err != nil {
			t.Fatalf("the batch ended with %v", err)
		}
	}
	stored(t, foreign, "a")
	stored(t, foreign, "b")
}
