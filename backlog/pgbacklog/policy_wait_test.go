package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// TestSetPolicyWaitsForApplications: while an application's transaction has set a
// policy and not ended, a replica's call waits as long as it may, and nothing is
// stored when it gives up.
func TestSetPolicyWaitsForApplications(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app := pgtest.Dial(t, s.url)
	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "select fanfare.set_policy('app', false, 1)")

	err := patiently(300*time.Millisecond, func(left time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		defer cancel()
		return s.SetPolicy(ctx, backlog.Policy{Channel: "late", Backlog: uint64Of(1)})
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that gave up returned %v, want the deadline's error", err)
	}
	mustPublish(t, s.Store, publication("s", "publishing goes on"))
	waiting := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		waiting <- s.SetPolicy(ctx, backlog.Policy{Channel: "patient", Backlog: uint64Of(1)})
	}()
	eventually(t, "the call waits", func() bool {
		return query[bool](t, s.url, "select exists (select from pg_locks where locktype = 'advisory' and not granted)")
	})
	pgtest.Exec(t, app, "commit")
	if err := <-waiting; err != nil {
		t.Errorf("a call that waited: %v", err)
	}
	if got := query[string](t, s.url, "select string_agg(channel, ' ' order by channel) from fanfare.policies"); got != "app patient" {
		t.Errorf("there are policies of %q, want those of app and patient", got)
	}
}

// TestSetPoliciesHoldUpNobody: one application's transaction that has set a
// policy holds up all who set one, for as long as it lasts. They wait apart from
// closes and batches, however many they are and however long they may.
func TestSetPoliciesHoldUpNobody(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	mustPublish(t, s.Store, publication("s", "to be closed"))
	app := pgtest.Dial(t, s.url)
	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "select fanfare.set_policy('app', false, 1)")

	const callers = 20
	ended := make(chan error, callers)
	for i := range callers {
		go func() {
			ended <- s.SetPolicy(context.Background(), backlog.Policy{Channel: fmt.Sprint("c", i), Backlog: uint64Of(1)})
		}()
	}
	const waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())"
	eventually(t, "a call waits", func() bool { return query[int](t, s.url, waiting) > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 20 {
		if n := query[int](t, s.url, waiting); n > policyConns {
			t.Fatalf("%d calls wait in the database, want at most %d", n, policyConns)
		}
		if _, err := s.PublishBatch(ctx, []backlog.Publication{publication("a", "1"), publication("b", "1")}); err != nil {
			t.Fatalf("a batch: %v", err)
		}
		if _, err := s.CloseStream(ctx, publication("s", "").Stream, nil); err != nil {
			t.Fatalf("a close: %v", err)
		}
		mustPublish(t, s.Store, publication("s", "again"))
	}
	if len(ended) > 0 {
		t.Fatalf("a call ended before the transaction: %v", <-ended)
	}
	pgtest.Exec(t, app, "commit")
	for range callers {
		if err := <-ended; err != nil {
			t.Errorf("a call that waited: %v", err)
		}
	}
	if n := query[int](t, s.url, "select count(*) from fanfare.policies"); n != callers+1 {
		t.Errorf("there are %d policies, want %d", n, callers+1)
	}
}

// TestSetPolicyGivesUp: a caller without a deadline is told in the end that
// nothing was stored, whether it waited in the database or for its turn.
func TestSetPolicyGivesUp(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.committer.cfg.RetryTimeout = 500 * time.Millisecond
	app := pgtest.Dial(t, s.url)
	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "select fanfare.set_policy('app', false, 1)")
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() {
			ended <- s.SetPolicy(context.Background(), backlog.Policy{Channel: "late", Backlog: uint64Of(1)})
		}()
	}
	for range cap(ended) {
		err := <-ended
		wantError(t, err, "has not ended")
		if !errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that gave up returned %v, want ErrUnavailable", err)
		}
	}
	pgtest.Exec(t, app, "commit")
	if err := s.SetPolicy(t.Context(), backlog.Policy{Channel: "later", Backlog: uint64Of(1)}); err != nil {
		t.Error(err)
	}
	if got := query[string](t, s.url, "select string_agg(channel, ' ' order by channel) from fanfare.policies"); got != "app later" {
		t.Errorf("there are policies of %q, want those of app and later", got)
	}
}
