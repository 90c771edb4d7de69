package pgbacklog

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Everything for a busy stream must go through its lane, in order of arrival,
// while the other streams go on.
func TestBusyStreamGoesToItsLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a0")
		hold := f.next()
		p.publish(t.Context(), "a1", "b1", "a2")
		hold.commit()
		batch := f.next().expect(t, "batch: a1 b1 a2")
		p.publish(t.Context(), "b2", "a3")
		batch.commit("a")
		p.expect(nil, "b1")

		txs := map[string]*fakeTransaction{}
		for range 2 {
			tx := f.next()
			txs[tx.mode] = tx
		}
		lane := txs[modeLane].expect(t, "lane: a1 a2 a3")
		txs[modeBatch].expect(t, "batch: b2").commit()
		p.publish(t.Context(), "a4", "b3")
		f.next().expect(t, "batch: b3").commit()
		p.waiting("a1", "a2", "a3", "a4")
		lane.fail(errLock)
		elapse(maxPause)
		lane = f.next().expect(t, "lane: a1 a2 a3 a4")
		p.publish(t.Context(), "a5")
		lane.commit()
		p.expect(nil, "a1", "a2", "a3", "a4")
		f.next().expect(t, "batch: a5").commit() // the batch takes the stream again
		p.expect(nil, "a5")
		if len(c.lanes) != 0 {
			t.Errorf("%d lanes are left", len(c.lanes))
		}
	})
}

// Callers of one stream are answered in its order, also when it moves from the
// batch to a lane and back: an answer that is given only once the stream has
// moved can be overtaken by those of the frames behind it.
func TestAnswersBeforeTheStreamMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		inLane := make(map[string]bool) // written by one transaction's end at a time
		submit := func(payload, key string) {
			p := publication("a", payload)
			p.IdempotencyKey = key
			c.submit(t.Context(), p, func(backlog.Outcome, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				inLane[payload] = c.lanes[p.Stream] != nil
			})
		}
		submit("1", "")
		hold := f.next()
		submit("2", "")
		submit("3", "k") // of unknown outcome, so that it opens a lane
		hold.commit()
		f.next().expect(t, "batch: 2 3").fail(errLost)
		elapse(maxPause)
		f.next().expect(t, "lane: 3").commit()
		submit("4", "")
		f.next().expect(t, "batch: 4").commit()
		if inLane["2"] || !inLane["3"] || inLane["4"] {
			t.Errorf("answered while the lane was open: %v", inLane)
		}
	})
}

// What a lane gives back has waited longest, so it goes first.
func TestLaneGivesBackToTheFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a1")
		f.next().commit("a")
		lane := f.next().expect(t, "lane: a1")
		p.publish(t.Context(), "b1")
		batch := f.next().expect(t, "batch: b1")
		p.publish(t.Context(), "a2", "b2", "a3")
		lane.commit()
		batch.commit()
		f.next().expect(t, "batch: a2 a3 b2").commit()
		p.expect(nil, "a1", "a2", "a3", "b1", "b2")
	})
}

func TestLanesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{Lanes: 2})
		p := newCaller(t, c)
		p.publish(t.Context(), "x0")
		hold := f.next()
		p.publish(t.Context(), "a1", "b1", "c1", "d1", "e1")
		hold.commit()
		f.next().commit("a", "b", "c", "d", "e")
		var turns []string
		open := []*fakeTransaction{f.next(), f.next()}
		stream := func(tx *fakeTransaction) string { return tx.items[0].publication.Stream.Scope }
		if stream(open[0]) > stream(open[1]) { // they began at once
			slices.Reverse(open)
		}
		for range 10 {
			f.none() // two at a time
			tx := open[0]
			turns = append(turns, stream(tx))
			elapse(time.Second) // it waited for the lock
			tx.fail(errLock)
			open = []*fakeTransaction{open[1], f.next()}
		}
		if got, want := fmt.Sprint(turns), "[a b c d e a b c d e]"; got != want {
			t.Errorf("turns %s, want %s", got, want)
		}
		for len(open) > 0 {
			open[0].commit()
			open = open[1:]
			if p.answered() < 5 {
				open = append(open, f.next())
			}
		}
		p.expect(nil, "a1", "b1", "c1", "d1", "e1")
	})
}

// A held stream must not use up the room of the others.
func TestLanesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{MaxQueuedFrames: 40})
		p := newCaller(t, c)
		p.publish(t.Context(), "x0")
		hold := f.next()
		p.publish(t.Context(), "a1", "b1", "c1")
		hold.commit()
		f.next().commit("a", "b", "c")
		lanes := []*fakeTransaction{f.next(), f.next(), f.next()}
		p.publish(t.Context(), names("a", 2, 11)...)
		p.expect(backlog.ErrPublishQueueFull, "a11") // a quarter
		p.publish(t.Context(), names("b", 2, 10)...)
		p.publish(t.Context(), "c2")
		p.expect(backlog.ErrPublishQueueFull, "b10", "c2") // a half, all lanes together
		p.publish(t.Context(), "d1")
		f.next().expect(t, "batch: d1").commit()
		for _, tx := range lanes {
			tx.commit()
		}
		for len(c.lanes) > 0 || c.queued.frames > 0 {
			f.next().commit()
		}
		p.expect(nil, append(append(names("a", 1, 10), names("b", 1, 9)...), "c1", "d1")...)
	})
}

// Callers with a deadline must learn that nothing was stored, not that the
// outcome is unknown.
func TestLaneEndsBeforeItsCallersDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		p.publish(ctx, "a1")
		f.next().commit("a")
		lane := f.next().expect(t, "lane: a1")
		if want := 270 * time.Millisecond; lane.lockTimeout != want {
			t.Errorf("lock timeout %v, want %v", lane.lockTimeout, want)
		}
		p.publish(t.Context(), "a2")
		elapse(lane.lockTimeout)
		lane.fail(errLock)
		p.expect(context.DeadlineExceeded, "a1")
		lane = f.next().expect(t, "lane: a2")
		if lane.lockTimeout != 0 {
			t.Errorf("lock timeout %v without a deadline", lane.lockTimeout)
		}
		lane.commit()
		p.expect(nil, "a2")
	})
}

func TestWithdrawnFromALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a1")
		f.next().commit("a")
		lane := f.next()
		ctx, cancel := context.WithCancel(t.Context())
		p.publish(ctx, "a2")
		p.publish(t.Context(), "a3")
		cancel()
		p.expect(context.Canceled, "a2")
		lane.commit()
		f.next().expect(t, "batch: a3").commit()
		if c.laned != (load{}) {
			t.Errorf("laned %+v", c.laned)
		}
	})
}

// After a lost connection, what has a key is retried in its place, and what
// comes later for the stream waits behind it.
func TestUnknownOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "x0")
		hold := f.next()
		p.publish(t.Context(), "a1k", "a2", "a3k", "b1")
		hold.commit()
		batch := f.next().expect(t, "batch: a1k a2 a3k b1")
		p.publish(t.Context(), "a4", "b2")
		batch.fail(errLost)
		p.expect(backlog.ErrOutcomeUnknown, "a2", "b1")
		p.waiting("a1k", "a3k")
		elapse(maxPause)
		first, second := f.next(), f.next()
		if first.mode == modeBatch {
			first, second = second, first
		}
		second.expect(t, "batch: b2").commit()
		first.expect(t, "lane: a1k a3k a4").fail(serverError("FATAL", "57P01"))
		p.expect(backlog.ErrOutcomeUnknown, "a4")
		elapse(maxPause)
		f.next().expect(t, "lane: a1k a3k").commit()
		p.expect(nil, "a1k", "a3k")
	})
}

// A server that stays away must not keep callers for ever, and those of whom
// nothing was sent learn at once that nothing was stored.
func TestUnknownOutcomeWithoutConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{RetryTimeout: 10 * time.Second})
		p := newCaller(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		p.publish(ctx, "a1k")
		hold := f.next()
		p.publish(t.Context(), "b1k", "a2")
		f.dialError = errLost
		hold.fail(errLost)
		elapse(time.Second)
		p.expect(backlog.ErrUnavailable, "a2", "b1k")
		p.waiting("a1k")
		elapse(time.Second)
		p.expect(backlog.ErrOutcomeUnknown, "a1k")

		f.dialError = nil
		p.publish(t.Context(), "c1k")
		tx := f.next()
		f.dialError = errLost
		tx.fail(errLost)
		elapse(9 * time.Second)
		p.waiting("c1k")
		elapse(2 * time.Second)
		p.expect(backlog.ErrOutcomeUnknown, "c1k")
	})
}

func TestCulpritInALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "a0")
		hold := f.next()
		p.publish(t.Context(), "a1", "a2", "a3", "a4")
		hold.commit()
		f.next().commit("a")
		f.next().expect(t, "lane: a1 a2 a3 a4").fail(errData)
		f.next().expect(t, "lane: a1 a2").commit()
		f.next().expect(t, "lane: a3 a4").fail(errData)
		f.next().expect(t, "lane: a3").fail(errData)
		p.publish(t.Context(), "a5")
		f.next().expect(t, "lane: a4").commit()
		f.next().expect(t, "lane: a5").commit()
		p.expect(nil, "a1", "a2", "a4", "a5")
		if _, err := p.outcome("a3"); err == nil {
			t.Error("the culprit was stored")
		}
	})
}

// A call that finds its stream held opens the stream's lane, perhaps while a
// batch with frames of the stream is in flight. What that puts back comes first,
// and the lane has no turn before.
func TestLaneOpenedDuringABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := startFake(t, committerConfig{})
		p := newCaller(t, c)
		p.publish(t.Context(), "x0")
		hold := f.next()
		p.publish(t.Context(), "a1", "a2", "b1")
		hold.commit()
		batch := f.next().expect(t, "batch: a1 a2 b1")
		p.publish(t.Context(), "a3")
		call := startCall(t, c, "a", "close")
		synctest.Wait()
		p.publish(t.Context(), "a4")
		f.none()
		batch.commit("a")
		f.next().expect(t, "lane: a1 a2 a3").commit()
		f.next().expect(t, "lane: close").commit()
		if err := <-call; err != nil {
			t.Errorf("the call ended with %v", err)
		}
		f.next().expect(t, "batch: a4").commit()
		p.expect(nil, "a1", "a2", "a3", "a4", "b1")

		// The same with a batch that is rolled back, and tried again.
		p.publish(t.Context(), "x1")
		hold = f.next()
		p.publish(t.Context(), "c1", "d1")
		hold.commit()
		batch = f.next().expect(t, "batch: c1 d1")
		call = startCall(t, c, "c", "close")
		synctest.Wait()
		batch.fail(errLock)
		f.next().expect(t, "lane: c1").commit()
		f.next().expect(t, "lane: close").commit()
		elapse(maxPause)
		f.next().expect(t, "batch: d1").commit()
		if err := <-call; err != nil {
			t.Errorf("the call ended with %v", err)
		}
		p.expect(nil, "c1", "d1")
	})
}

// startCall has a call named by its payload wait in a stream's lane.
func startCall(t *testing.T, c *committer, scope, payload string) (ended chan error) {
	t.Helper()
	it := &item{call: &call{}, publication: backlog.Publication{Payload: []byte(payload)}}
	if err := c.admit(it); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- c.awaitTurn(t.Context(), it, backlog.StreamName{Channel: "c", Scope: scope}) }()
	return ended
}
