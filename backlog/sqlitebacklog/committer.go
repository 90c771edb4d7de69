package sqlitebacklog

import (
	"container/list"
	"context"
	"sync"

	"github.com/fanfare-io/fanfare/backlog"
)

// A committer writes what is submitted, many publications in one transaction.
//
// A commit waits for the disk, so a transaction for each publication would not
// scale with the number of publishers. Publications are gathered while a
// transaction is in flight, and the next one carries them all: there is no timer,
// and no delay when idle.
//
// There is one queue for everything, and one transaction at a time takes from its
// front, so everything keeps the order in which it was submitted. Nothing in the
// queue waits for anything but the transactions before it: nobody else locks
// streams.
type committer struct {
	store *Store
	// statements are prepared on the writing connection; whoever has that may use
	// them.
	statements statements
	// tx and taken are used again and again by the goroutine that commits.
	tx    transaction
	taken []*item
	// failing is true from a failed transaction to one that writes, so that an
	// outage is logged once. It is that goroutine's, too.
	failing bool

	// mu guards what follows and the queue's part of every item. Nothing blocks
	// while it is held, and no caller's code is called.
	mu sync.Mutex
	// work is signalled when the queue has items or stopped is set.
	work    sync.Cond
	stopped bool
	// queued counts all unfinished items, in flight or not.
	queued  load
	waiting list.List // of *item
}

// load is an amount of items.
type load struct {
	frames int
	bytes  int64
}

func (l *load) add(it *item)    { l.frames += it.frames(); l.bytes += it.size }
func (l *load) remove(it *item) { l.frames -= it.frames(); l.bytes -= it.size }

// fits reports whether it may be added to l within limits. One item always may.
func (l *load) fits(it *item, frames int, bytes int64) bool {
	return l.frames == 0 || l.frames+it.frames() <= frames && l.bytes+it.size <= bytes
}

func newCommitter(s *Store) *committer {
	c := &committer{store: s}
	c.work.L = &c.mu
	return c
}

// submit queues an item, whose caller is answered once, possibly before submit
// returns.
func (c *committer) submit(ctx context.Context, it *item) {
	if err := ctx.Err(); err != nil {
		it.err = err
		it.answer()
		return
	}
	if ctx.Done() != nil {
		// Outside the lock: a context that has ended meanwhile calls at once.
		it.gone, it.stop = ctx.Err, context.AfterFunc(ctx, func() { c.withdraw(it, ctx.Err()) })
	}
	c.mu.Lock()
	err := c.enqueueLocked(it)
	c.mu.Unlock()
	if err != nil {
		it.err = err
		it.answer()
	}
}

// enqueueLocked puts a new item behind everything else, or returns why it may not
// be.
func (c *committer) enqueueLocked(it *item) error {
	switch {
	case it.state == itemAnswered:
		return it.err // withdrawn before it was queued
	case c.stopped:
		it.state = itemAnswered
		return backlog.ErrUnavailable
	case !c.queued.fits(it, c.store.cfg.MaxQueuedFrames, c.store.cfg.MaxQueuedBytes):
		it.state = itemAnswered
		return backlog.ErrPublishQueueFull
	}
	it.state = itemWaiting
	c.queued.add(it)
	it.place = c.waiting.PushBack(it)
	c.work.Signal()
	return nil
}

// withdraw is called when a caller's context has ended.
func (c *committer) withdraw(it *item, cause error) {
	answer := false
	c.mu.Lock()
	switch it.state {
	case itemNew: // submit answers
		it.state, it.err = itemAnswered, cause
	case itemWaiting:
		c.waiting.Remove(it.place)
		c.queued.remove(it)
		it.state, it.err, answer = itemAnswered, cause, true
	case itemInFlight: // it counts as queued until the transaction ends
		it.state, it.err, answer = itemAnswered, backlog.ErrOutcomeUnknown, true
	}
	c.mu.Unlock()
	if answer {
		it.answer()
	}
}

// runCommitter commits what is submitted until ctx ends. Then it finishes the
// transaction in flight and fails the rest with backlog.ErrUnavailable.
func (s *Store) runCommitter(ctx context.Context) error {
	c := s.committer
	defer context.AfterFunc(ctx, c.stop)()
	for c.await() {
		c.commitNext(ctx)
	}
	c.stop() // whoever cut await short may still be at it
	return nil
}

// stop refuses what is submitted from now on and fails what waits.
func (c *committer) stop() {
	var failed []*item
	c.mu.Lock()
	c.stopped = true
	for c.waiting.Len() > 0 {
		it := c.waiting.Front().Value.(*item)
		c.waiting.Remove(it.place)
		c.queued.remove(it)
		it.state, it.err = itemAnswered, backlog.ErrUnavailable
		failed = append(failed, it)
	}
	c.work.Signal()
	c.mu.Unlock()
	for _, it := range failed {
		it.answer()
	}
}

// await waits until there is something to commit; false: stopped.
func (c *committer) await() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waiting.Len() == 0 && !c.stopped {
		c.work.Wait()
	}
	return !c.stopped
}

// take takes from the front of the queue what goes into one transaction. The
// result is valid until the next call. What it meets whose callers have left is
// answered: they have all that waits withdrawn, in any order, and none of it may be
// stored without what they had submitted before.
func (c *committer) take() []*item {
	c.taken = c.taken[:0]
	var left []*item
	var amount load
	c.mu.Lock()
	for c.waiting.Len() > 0 {
		it := c.waiting.Front().Value.(*item)
		if it.gone != nil && it.gone() != nil {
			c.waiting.Remove(it.place)
			c.queued.remove(it)
			it.state, it.err = itemAnswered, it.gone()
			left = append(left, it)
			continue
		}
		if !amount.fits(it, c.store.cfg.MaxBatchFrames, c.store.cfg.MaxBatchBytes) {
			break
		}
		c.waiting.Remove(it.place)
		it.state = itemInFlight
		amount.add(it)
		c.taken = append(c.taken, it)
	}
	c.mu.Unlock()
	for _, it := range left {
		it.answer()
	}
	return c.taken
}

// settle answers the callers of a transaction that has ended, in the order in
// which they came.
func (c *committer) settle(taken []*item) {
	c.mu.Lock()
	for i, it := range taken {
		c.queued.remove(it)
		if it.state == itemAnswered { // its caller left
			taken[i] = nil
			continue
		}
		it.state, it.err = itemAnswered, it.refusal
	}
	c.mu.Unlock()
	for _, it := range taken {
		if it != nil {
			it.answer()
		}
	}
}
