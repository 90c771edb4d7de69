package pgbacklog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestBatchCarriesWhatCameMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a1")
		first := f.next().expect(t, "batch: a1")
		p.publish(t.Context(), "a2", "b1", "a3")
		f.none() // one batch at a time
		first.commit()
		p.expect(nil, "a1")
		p.waiting("a2", "b1", "a3")
		f.next().expect(t, "batch: a2 b1 a3").commit()
		p.expect(nil, "a2", "b1", "a3")
		f.none()
	})
}

func TestBatchIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{MaxBatchFrames: 3, MaxBatchBytes: 100})
		p := newCaller(t, c)
		large := "a1" + strings.Repeat("x", 200)
		p.publish(t.Context(), "b1")
		f.next().commit()
		p.publish(t.Context(), "b2")
		hold := f.next()
		p.publish(t.Context(), names("a", 2, 8)...)
		p.publish(t.Context(), large, "a9")
		hold.commit()
		f.next().expect(t, "batch: a2 a3 a4").commit()
		f.next().expect(t, "batch: a5 a6 a7").commit()
		f.next().expect(t, "batch: a8").commit() // the next one would exceed the bytes
		f.next().expect(t, "batch: "+large).commit()
		f.next().expect(t, "batch: a9").commit()
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{MaxQueuedFrames: 3})
		p := newCaller(t, c)
		p.publish(t.Context(), "a1")
		tx := f.next()
		p.publish(t.Context(), "a2", "a3", "a4")
		p.expect(backlog.ErrPublishQueueFull, "a4")
		tx.commit()
		p.publish(t.Context(), "a5")
		f.next().expect(t, "batch: a2 a3").commit()
		f.next().expect(t, "batch: a5").commit()
		p.expect(nil, "a1", "a2", "a3", "a5")
	})
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{MaxQueuedBytes: 100})
		p := newCaller(t, c)
		alone := "a1" + strings.Repeat("x", 200)
		p.publish(t.Context(), alone) // nothing else is there, so it fits
		tx := f.next()
		p.publish(t.Context(), "a2")
		p.expect(backlog.ErrPublishQueueFull, "a2")
		tx.commit()
		p.expect(nil, alone)
	})
}

func TestWithdrawnBeforeItsTransactionStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a1")
		tx := f.next()
		ctx, cancel := context.WithCancel(t.Context())
		p.publish(ctx, "a2", "b1")
		p.publish(t.Context(), "a3")
		cancel()
		p.expect(context.Canceled, "a2", "b1")
		tx.commit()
		f.next().expect(t, "batch: a3").commit()
		p.publish(ctx, "a4")
		p.expect(context.Canceled, "a4")
		f.none()
	})
}

func TestCallerLeavesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p.publish(ctx, "a1")
		tx := f.next()
		p.publish(t.Context(), "b1")
		elapse(time.Second)
		p.expect(backlog.ErrOutcomeUnknown, "a1")
		if c.queued.frames != 2 {
			t.Errorf("queued %d frames; what is in flight must count", c.queued.frames)
		}
		tx.fail(errLock) // rolled back, and its caller is gone
		f.next().expect(t, "batch: b1").commit()
		p.expect(nil, "b1")
	})
}

func TestLocksAtTheCommitAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p.publish(ctx, "a1")
		tx := f.next().expect(t, "batch: a1")
		p.publish(ctx, "a2")
		tx.fail(&commitError{errLock})
		p.publish(ctx, "a3")
		elapse(maxPause)
		f.next().expect(t, "batch: a1 a2 a3").fail(&commitError{errLock})
		elapse(maxPause)
		f.next().expect(t, "batch: a1 a2 a3").commit()
		p.expect(nil, "a1", "a2", "a3")
	})
}

// One frame that the database refuses must fail alone, within few transactions.
func TestCulpritIsFound(t *testing.T) {
	for _, position := range []int{1, 77, 300, 512} {
		synctest.Test(t, func(t *testing.T) {
			c, f := startFake(t, committerConfig{})
			p := newCaller(t, c)
			p.publish(t.Context(), "a1")
			hold := f.next()
			p.publish(t.Context(), names("b", 1, 512)...)
			hold.commit()
			culprit := names("b", position, position)[0]
			transactions := 0
			for range 100 {
				if p.answered() == 513 {
					break
				}
				transactions++
				tx := f.next()
				if strings.Contains(tx.String()+" ", " "+culprit+" ") {
					tx.fail(errData)
				} else {
					tx.commit()
				}
			}
			if transactions > 40 {
				t.Errorf("%d transactions for one culprit at %d", transactions, position)
			}
			for payload, err := range p.outcomes {
				if (err != nil) != (payload == culprit) {
					t.Errorf("%s ended with %v; the culprit is %s", payload, err, culprit)
				}
			}
			if _, err := p.outcome(culprit); errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, backlog.ErrOutcomeUnknown) {
				t.Errorf("the culprit ended with %v, which asks for a retry", err)
			}
		})
	}
}

func TestNoConnectionAnswersWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a1")
		tx := f.next()
		p.publish(t.Context(), "a2", "b1")
		f.dialError = errors.New("connection refused")
		tx.commit()
		p.expect(nil, "a1")
		p.expect(backlog.ErrUnavailable, "a2", "b1")
		elapse(maxPause)
		f.dialError = nil
		p.publish(t.Context(), "a3")
		f.next().expect(t, "batch: a3").commit()
		p.expect(nil, "a3")
	})
}

func TestRefusedTransactionFailsItsItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a1")
		tx := f.next()
		p.publish(t.Context(), "a2")
		tx.fail(errDisk)
		p.expect(backlog.ErrDiskFull, "a1")
		elapse(maxPause)
		f.next().expect(t, "batch: a2").fail(&commitError{serverError("ERROR", "54000")})
		p.expect(backlog.ErrNotificationQueueFull, "a2")
	})
}

func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		c2 := newCommitter(nil, committerConfig{}, c.logger)
		c2.call = f.call
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = c2.run(ctx)
		}()
		p := newCaller(t, c2)
		p.publish(t.Context(), "a1")
		batch := f.next().expect(t, "batch: a1")
		p.publish(t.Context(), "b1")
		batch.commit("a") // a1 goes to a lane
		lane, second := f.next(), f.next()
		if lane.mode != modeLane {
			lane, second = second, lane
		}
		p.publish(t.Context(), "a2", "b2")
		cancel()
		p.expect(backlog.ErrUnavailable, "a2", "b2")
		p.publish(t.Context(), "a3")
		p.expect(backlog.ErrUnavailable, "a3")
		second.expect(t, "batch: b1").commit()
		p.expect(nil, "b1")
		lane.fail(errLock)
		p.expect(backlog.ErrUnavailable, "a1")
		<-ended
	})
}
