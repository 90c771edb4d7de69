package pgbacklog

import (
	"context"
	"time"
)

// runBatches commits what is in no lane, one transaction after the other, until
// the committer is stopped.
func (c *committer) runBatches(ctx context.Context) {
	for c.awaitBatch() {
		if wait := c.commitBatch(ctx); wait > 0 {
			pause(ctx, wait)
		}
	}
}

// awaitBatch waits until there is something to commit; false: stopped.
func (c *committer) awaitBatch() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.batch.waiting.len == 0 && !c.stopped {
		c.batchWork.Wait()
	}
	return !c.stopped
}

// commitBatch runs one transaction and returns how long to pause after it.
func (c *committer) commitBatch(ctx context.Context) time.Duration {
	var taken []*item
	start := time.Now()
	results, err := c.call(ctx, modeBatch, func() (_ []*item, lockTimeout time.Duration) {
		taken, lockTimeout = c.takeBatch()
		return taken, lockTimeout
	})
	f, err := judge(err)
	c.report(f, len(taken), err)

	var settled answers
	c.mu.Lock()
	again := c.settleLocked(&settled, &c.batch, taken, results, f, err)
	c.putBackLocked(&c.batch, again)
	wait := c.batch.pause(time.Since(start))
	c.mu.Unlock()
	// Before a lane may commit what follows: callers of one stream are answered in
	// its order.
	settled.deliver()
	c.mu.Lock()
	defer c.mu.Unlock()
	if f != fateCommitted && f != fateUnknown {
		again = nil // they need no lane
	}
	c.openLanesLocked(again)
	return wait
}

// takeBatch takes from the batch. Its locks, the commit's and the schema's, are
// held for moments as a rule, and one caller with a short deadline shall not cut
// the wait of all: only when the last transaction failed are deadlines minded.
func (c *committer) takeBatch() ([]*item, time.Duration) {
	c.mu.Lock()
	if c.batch.failures > 0 {
		c.mu.Unlock()
		return c.takeUnderDeadlines(&c.batch)
	}
	var settled answers
	taken := c.takeLocked(&settled, &c.batch)
	c.mu.Unlock()
	settled.deliver()
	return taken, 0
}

// report logs the frames that the database refuses, and when transactions of n
// items begin to fail and when they succeed again.
func (c *committer) report(f fate, n int, err error) {
	switch f {
	case fateCommitted:
		if n > 0 && c.failing.Load() && c.failing.Swap(false) {
			c.logger.Info("publishing works again")
		}
	case fateData:
		if n == 1 {
			c.logger.Error("a frame could not be stored", "error", err)
		}
	case fateLocked: // somebody else's long transaction is no failure
	default:
		if !c.failing.Swap(true) {
			c.logger.Warn("publishing fails", "fate", f, "error", err)
		}
	}
}
