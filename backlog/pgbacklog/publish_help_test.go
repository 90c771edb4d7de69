package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// newSchema returns the URL of a new, migrated database.
func newSchema(t testing.TB) string {
	t.Helper()
	return migrated(t, pgtest.NewDatabase(t))
}

func migrated(t testing.TB, url string) string {
	t.Helper()
	if err := Migrate(context.Background(), url, DefaultSchema, nil); err != nil {
		t.Fatal(err)
	}
	return url
}

// startPublisher runs a store on url until the test ends; tune may change its
// committer before it runs.
func startPublisher(t testing.TB, url string, tune ...func(*committerConfig)) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tune {
		f(&s.committer.cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run returned %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		s.Close()
	})
	return s
}

// form is the first in tests as they are run by default, and the second in their long
// forms, which run alone on a quiet machine and may check times.
func form[T any](short, long T) T {
	if os.Getenv("FANFARE_LONG") != "" {
		return long
	}
	return short
}

// patiently does what a deadline ends, and again with a longer one while the outcome is
// unknown: the last tenth of the time is for an answer, which a busy machine may need
// more for.
func patiently(left time.Duration, do func(left time.Duration) error) error {
	for {
		err := do(left)
		if !errors.Is(err, backlog.ErrOutcomeUnknown) || left > time.Minute {
			return err
		}
		left *= 3
	}
}

// eventually waits until condition is true.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(time.Minute); !condition(); <-look.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func publication(scope, payload string) backlog.Publication {
	return backlog.Publication{Stream: backlog.StreamName{Channel: "c", Scope: scope}, Payload: []byte(payload)}
}

func keyed(p backlog.Publication, key string) backlog.Publication {
	p.IdempotencyKey = key
	return p
}

func mustPublish(t testing.TB, s *Store, p backlog.Publication) backlog.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	o, err := backlog.Publish(ctx, s, p)
	if err != nil {
		t.Fatalf("publish %q to %s: %v", p.Payload, p.Stream.Scope, err)
	}
	return o
}

// pending is a publication that was submitted.
type pending struct {
	ended   chan struct{}
	outcome backlog.Outcome
	err     error
}

func submit(ctx context.Context, s *Store, p backlog.Publication) *pending {
	r := &pending{ended: make(chan struct{})}
	s.Submit(ctx, p, func(o backlog.Outcome, err error) {
		r.outcome, r.err = o, err
		close(r.ended)
	})
	return r
}

// wait returns the outcome.
func (r *pending) wait(t testing.TB) (backlog.Outcome, error) {
	t.Helper()
	select {
	case <-r.ended:
		return r.outcome, r.err
	case <-time.After(60 * time.Second):
		t.Fatal("a publication was not answered within a minute")
		return backlog.Outcome{}, nil
	}
}

func (r *pending) must(t testing.TB) backlog.Outcome {
	t.Helper()
	o, err := r.wait(t)
	if err != nil {
		t.Fatalf("publish: %v", err)
	}
	return o
}

func (r *pending) waiting() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// stored returns the payloads of a stream's current numbering in order of their
// sequences, and fails if those have holes.
func stored(t testing.TB, conn *pgx.Conn, scope string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `select f.sequence, convert_from(f.payload, 'UTF8')
		from fanfare.streams s join fanfare.channel_frames f using (stream_id)
		where s.channel = 'c' and s.scope = $1 order by f.sequence`, scope)
	if err != nil {
		t.Fatal(err)
	}
	var payloads []string
	var sequence int64
	var payload string
	_, err = pgx.ForEachRow(rows, []any{&sequence, &payload}, func() error {
		payloads = append(payloads, payload)
		if int(sequence) != len(payloads) {
			return fmt.Errorf("sequence %d of %s follows %d", sequence, scope, len(payloads)-1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return payloads
}

// publishAll publishes n frames from each of some callers at once, each caller
// one after the other, and returns the first error.
func publishAll(ctx context.Context, callers, n int, publish func(ctx context.Context, caller, i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for caller := range callers {
		wg.Go(func() {
			for i := range n {
				if err := publish(ctx, caller, i); err != nil {
					errs[caller] = fmt.Errorf("caller %d, frame %d: %w", caller, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
