package clientlib

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func frameItem(sequence uint64, size int) item {
	p := Position{7, sequence}
	return item{&Frame{Position: p}, p, size}
}

// drain takes everything that is there.
func drain(q *queue) (events []string) {
	for {
		e, err := q.tryTake()
		if e == nil || err != nil {
			return events
		}
		events = append(events, describe([]item{{event: e}})...)
	}
}

// Interruptions that nobody takes must not pile up: what one was got over with, and
// nothing came, is told by the next. What says that something is missing stays.
func TestInterruptionsDoNotPileUp(t *testing.T) {
	interrupted, subscribed, caughtUp := &Interrupted{}, &Subscribed{}, &CaughtUp{}
	missed, lost := &Gap{Reason: EphemeralMaybeMissed}, &Gap{Reason: Trimmed}
	for name, test := range map[string]struct {
		put  []Event
		want []string
	}{
		"failures":             {[]Event{interrupted, interrupted, interrupted}, []string{"Interrupted"}},
		"recoveries":           {[]Event{interrupted, subscribed, missed, caughtUp, interrupted, subscribed}, []string{"Interrupted", "Subscribed"}},
		"a frame in between":   {[]Event{interrupted, subscribed, &Frame{}, interrupted}, []string{"Interrupted", "Subscribed", "0-0", "Interrupted"}},
		"a loss in between":    {[]Event{interrupted, subscribed, lost, interrupted}, []string{"Interrupted", "Subscribed", "gap TRIMMED", "Interrupted"}},
		"the first one":        {[]Event{subscribed, caughtUp, interrupted}, []string{"Subscribed", "CaughtUp", "Interrupted"}},
		"only the newest ones": {[]Event{&Frame{}, interrupted, subscribed, interrupted}, []string{"0-0", "Interrupted"}},
	} {
		q := newQueue(100, Position{})
		for _, e := range test.put {
			q.put(item{event: e})
		}
		if got := drain(&q); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// A queue takes no more than its limit and one message, and goes on when there is room.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(100, Position{})
		put := 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for i := uint64(1); ctx.Err() == nil; i++ {
				q.put(frameItem(i, 60))
				put++
				q.waitForRoom(ctx)
			}
		}()
		synctest.Wait()
		if put != 2 {
			t.Fatalf("%d frames of 60 bytes are in a queue of 100", put)
		}
		if e, err := q.take(t.Context()); err != nil || e.(*Frame).Position.Sequence != 1 {
			t.Fatalf("got %v, %v", e, err)
		}
		synctest.Wait()
		if put != 3 {
			t.Errorf("after one was taken there were %d", put)
		}
		cancel()
		synctest.Wait()
	})
}

// An error comes after what came before it, each time; what is dropped does not come, and
// the position stays where the last event taken left it.
func TestEndOfAQueue(t *testing.T) {
	failed, closed := errors.New("failed"), errors.New("closed")
	q := newQueue(100, Position{7, 0})
	q.put(frameItem(1, 1), frameItem(2, 1))
	q.finish(failed)
	q.put(frameItem(3, 1))
	for _, want := range []string{"7-1", "7-2", "failed", "failed"} {
		e, err := q.take(t.Context())
		got := fmt.Sprint(err)
		if err == nil {
			got = e.(*Frame).Position.String()
		}
		if got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if q.drop(closed); q.end != failed {
		t.Errorf("an end that was told became %v", q.end)
	}

	q = newQueue(100, Position{7, 0})
	q.put(frameItem(1, 1), frameItem(2, 1))
	if _, err := q.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.finish(failed)
	q.drop(closed)
	if e, err := q.take(t.Context()); err != closed || q.at() != (Position{7, 1}) {
		t.Errorf("got %v, %v at %s", e, err, q.at())
	}
}

// Credit is what there is room for, and then what is taken, no more: what a call left in
// the queue is not credited to the next one before there is room for it.
func TestCreditIsWhatThereIsRoomFor(t *testing.T) {
	q := newQueue(100, Position{})
	if got := q.restart(); got != 100 {
		t.Fatalf("a call begins with %d", got)
	}
	q.put(frameItem(1, 60), frameItem(2, 60)) // the last message may exceed it
	if got := q.restart(); got != 0 {
		t.Fatalf("beyond the limit a call begins with %d", got)
	}
	take := func() int {
		if _, err := q.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		return q.takenBytes()
	}
	if first, second := take(), take(); first != 40 || second != 60 {
		t.Errorf("credited were %d and %d", first, second)
	}
	q.put(item{size: 30, position: Position{7, 2}}) // a repetition is dropped, and counts
	if !q.creditDue() || q.takenBytes() != 30 {
		t.Error("what was dropped is not credited")
	}
}

// Symptom: of several goroutines in Next all but one slept on, although there were events
// for them, and after the end. Cause: what was put at once woke one.
func TestSeveralTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1000, Position{})
		const takers = 3
		var taken, ended atomic.Int64
		takeOne := func() {
			if _, err := q.take(t.Context()); err != nil {
				ended.Add(1)
				return
			}
			taken.Add(1)
		}
		for range takers {
			go takeOne()
		}
		synctest.Wait()
		q.put(frameItem(1, 1), frameItem(2, 1), frameItem(3, 1))
		synctest.Wait()
		if taken.Load() != takers {
			t.Errorf("%d of %d got an event", taken.Load(), takers)
		}
		for range takers {
			go takeOne()
		}
		synctest.Wait()
		q.finish(io.EOF)
		synctest.Wait()
		if ended.Load() != takers {
			t.Errorf("%d of %d heard of the end", ended.Load(), takers)
		}
	})
}
