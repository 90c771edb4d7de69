package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func TestPublishBatch(t *testing.T) {
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	second := keyed(publication("a", "2"), "k2")
	second.Expected = &backlog.Expectation{Sequence: 1} // counts the batch's earlier frames
	batch := []backlog.Publication{keyed(publication("a", "1"), "k1"), keyed(publication("b", "1"), "k"), second}
	outcomes, err := s.PublishBatch(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{1, 1, 2} {
		if outcomes[i].Position.Sequence != want || outcomes[i].Duplicate {
			t.Errorf("frame %d got %+v, want sequence %d", i, outcomes[i], want)
		}
	}
	again, err := s.PublishBatch(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i := range again {
		if !again[i].Duplicate || again[i].Position != outcomes[i].Position {
			t.Errorf("frame %d of the retry got %+v, want %v", i, again[i], outcomes[i].Position)
		}
	}

	var refused *backlog.BatchError
	var conflict *backlog.KeyConflictError
	_, err = s.PublishBatch(t.Context(), []backlog.Publication{publication("a", "new"), keyed(publication("b", "other"), "k")})
	if !errors.As(err, &refused) || refused.Index != 1 || !errors.As(err, &conflict) || conflict.Position != outcomes[1].Position {
		t.Errorf("a key conflict ended with %v", err)
	}
	wrong := publication("a", "new")
	wrong.Expected = &backlog.Expectation{Sequence: 7}
	var mismatch *backlog.ExpectationError
	_, err = s.PublishBatch(t.Context(), []backlog.Publication{publication("b", "new"), wrong})
	if !errors.As(err, &refused) || refused.Index != 1 || !errors.As(err, &mismatch) || mismatch.Head != outcomes[2].Position {
		t.Errorf("a wrong expectation ended with %v", err)
	}
	_, err = s.PublishBatch(t.Context(), []backlog.Publication{batch[0], keyed(publication("a", "new"), "new")})
	if !errors.Is(err, backlog.ErrPartlyDuplicate) {
		t.Errorf("a mixture ended with %v", err)
	}
	for scope, want := range map[string][]string{"a": {"1", "2"}, "b": {"1"}} {
		if got := stored(t, admin, scope); !slices.Equal(got, want) {
			t.Errorf("stream %s has %q, want %q", scope, got, want)
		}
	}
}

// Equal frames of one transaction must not become one announcement.
func TestEqualFramesAreAnnouncedEach(t *testing.T) {
	url := newSchema(t)
	s, listener := startPublisher(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, listener, "listen "+s.NotifyChannel())
	if _, err := s.PublishBatch(t.Context(), slices.Repeat([]backlog.Publication{publication("s", "same")}, 3)); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, publication("s", "last"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var entries []string
	for len(entries) < 4 {
		n, err := listener.WaitForNotification(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", entries, err)
		}
		lines := strings.Split(n.Payload, "\n")
		entries = append(entries, lines[1:]...) // the first is the envelope's head
	}
	for i, entry := range entries {
		fields := strings.Split(entry, "\t")
		if fields[0] != "D" || fields[4] != fmt.Sprint(i+1) {
			t.Errorf("entry %d is %q", i, entry)
		}
	}
}

// A batch that waits for a held stream ends with its caller, certainly not
// stored, and does not hold up anybody meanwhile.
func TestPublishBatchWaitsUnderItsDeadline(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, foreign, "begin")
	pgtest.Exec(t, foreign, `select fanfare.publish('c', 'held', 'foreign')`)
	err := patiently(1200*time.Millisecond, func(left time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		defer cancel()
		ended := many(6, func(int) error { // more than there are connections for batches
			return publishBatch(ctx, s, "batch", "free", "held")
		})
		mustPublish(t, s, publication("other", "x"))
		var errs []error
		for range cap(ended) {
			err := <-ended
			if !errors.Is(err, context.DeadlineExceeded) {
				errs = append(errs, fmt.Errorf("the batch ended with %w", err))
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Error(err)
	}
	pgtest.Exec(t, foreign, "rollback")
	if _, err := s.PublishBatch(t.Context(), []backlog.Publication{publication("free", "x"), publication("held", "x")}); err != nil {
		t.Errorf("afterwards the batch ended with %v", err)
	}
	if got := stored(t, foreign, "free"); !slices.Equal(got, []string{"x"}) {
		t.Errorf("stored %q", got)
	}
}

// The answer of a batch is lost: with keys it is retried, without it is unknown.
func TestPublishBatchAnswerLost(t *testing.T) {
	s, proxy, url := startBehindProxy(t, func(c *committerConfig) { c.CallTimeout = 2 * time.Second })
	admin := pgtest.Dial(t, url)
	for _, key := range []string{"", "k"} {
		scope := "s" + key
		first := "first of " + scope
		ended := make(chan error, 1)
		var outcomes []backlog.Outcome
		holdAnswer(t, proxy, admin, first, func() {
			go func() {
				p, q := publication(scope, first), publication(scope, "2")
				if key != "" {
					p, q = keyed(p, "1"), keyed(q, "2")
				}
				var err error
				outcomes, err = s.PublishBatch(t.Context(), []backlog.Publication{p, q})
				ended <- err
			}()
		})
		if key == "" {
			if err := <-ended; !errors.Is(err, backlog.ErrOutcomeUnknown) {
				t.Errorf("without keys the batch ended with %v", err)
			}
			proxy.Restore()
		} else {
			proxy.Cut()
			proxy.Restore()
			if err := <-ended; err != nil {
				t.Errorf("with keys the batch ended with %v", err)
			} else if outcomes[1].Position.Sequence != 2 {
				t.Errorf("with keys the batch got %+v", outcomes)
			}
		}
		if got := stored(t, admin, scope); !slices.Equal(got, []string{first, "2"}) {
			t.Errorf("stored %q", got)
		}
	}
}

func TestCloseStream(t *testing.T) {
	url := newSchema(t)
	s := startPublisher(t, url)
	name := backlog.StreamName{Channel: "c", Scope: "s"}
	if o, err := s.CloseStream(t.Context(), name, nil); err != nil || !o.AlreadyClosed || !o.Last.IsZero() {
		t.Errorf("closing what does not exist: %+v, %v", o, err)
	}
	head := mustPublish(t, s, publication("s", "1")).Position
	other := head.Epoch ^ 1
	var mismatch *backlog.ExpectationError
	if _, err := s.CloseStream(t.Context(), name, &other); !errors.As(err, &mismatch) || mismatch.Head != head {
		t.Errorf("closing another epoch: %v", err)
	}
	if o, err := s.CloseStream(t.Context(), name, &head.Epoch); err != nil || o.AlreadyClosed || o.Last != head {
		t.Errorf("closing: %+v, %v", o, err)
	}
	if o, err := s.CloseStream(t.Context(), name, nil); err != nil || !o.AlreadyClosed || o.Last != head {
		t.Errorf("closing again: %+v, %v", o, err)
	}
	reopened := mustPublish(t, s, publication("s", "2")).Position
	if reopened.Sequence != 1 || reopened.Epoch == head.Epoch {
		t.Errorf("reopened at %v after %v", reopened, head)
	}
	if _, err := s.CloseStream(t.Context(), name, &head.Epoch); !errors.As(err, &mismatch) {
		t.Errorf("a late close of the last numbering: %v", err)
	}
	var limit *backlog.LimitError
	if _, err := s.CloseStream(t.Context(), backlog.StreamName{}, nil); !errors.As(err, &limit) {
		t.Errorf("closing without a name: %v", err)
	}
}

func TestCloseWaitsUnderItsDeadline(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	s, foreign := startPublisher(t, url), pgtest.Dial(t, url)
	pgtest.Exec(t, foreign, "begin")
	pgtest.Exec(t, foreign, `select fanfare.publish('c', 's', 'foreign')`)
	name := backlog.StreamName{Channel: "c", Scope: "s"}
	err := patiently(300*time.Millisecond, func(left time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		defer cancel()
		return closeStream(ctx, s, name.Scope)
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the close ended with %v", err)
	}
	pgtest.Exec(t, foreign, "commit")
	if o, err := s.CloseStream(t.Context(), name, nil); err != nil || o.Last.Sequence != 1 {
		t.Errorf("afterwards the close ended with %+v, %v", o, err)
	}
}

// A publish and a close at once: the frame stands before the close, or begins
// the next numbering; never on a stream that stays closed.
func TestPublishMeetsClose(t *testing.T) {
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	for round := range 100 {
		scope := fmt.Sprint("s", round)
		first := mustPublish(t, s, publication(scope, "1")).Position
		p := submit(t.Context(), s, publication(scope, "2"))
		closed, err := s.CloseStream(t.Context(), backlog.StreamName{Channel: "c", Scope: scope}, nil)
		if err != nil {
			t.Fatal(err)
		}
		position := p.must(t).Position
		isClosed := pgtest.Query[bool](t, admin, `select closed from fanfare.streams where scope = $1`, scope)
		switch {
		case position.Epoch == first.Epoch && position.Sequence == 2 && closed.Last == position && isClosed:
		case position.Epoch != first.Epoch && position.Sequence == 1 && closed.Last == first && !isClosed:
		default:
			t.Errorf("first %v, second %v, closed after %v, closed now: %v", first, position, closed.Last, isClosed)
		}
	}
}
