package pgbacklog

import (
	"context"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// A lane holds everything for one stream that the batch could not have, or whose
// newest outcome is unknown. It is in the committer's lanes from its first item
// on until it is empty or the batch takes the stream again; meanwhile it is in
// ready, or running, or pausing.
type lane struct {
	line
	stream backlog.StreamName
	load   load
}

// openLanesLocked gives the streams of items that wait in the batch lanes, and
// moves everything for them there.
func (c *committer) openLanesLocked(items []*item) {
	for _, it := range items {
		name := it.publication.Stream
		if it.state == itemWaiting && c.lanes[name] == nil {
			l := &lane{stream: name}
			c.lanes[name] = l
			c.readyLocked(l)
		}
	}
	for it := c.batch.waiting.front; it != nil; {
		next := it.next
		if l := c.lanes[it.publication.Stream]; l != nil {
			c.batch.waiting.remove(it)
			c.joinLaneLocked(it, l)
		}
		it = next
	}
}

// joinLaneLocked puts an item of no list at the end of a lane.
func (c *committer) joinLaneLocked(it *item, l *lane) {
	it.lane = l
	c.laned.add(it)
	l.load.add(it)
	l.waiting.pushBack(it)
}

// closeLaneLocked gives what waits in a lane back to the batch. It goes to the
// front, having waited longer than the rest; of its stream there is nothing else
// in the batch.
func (c *committer) closeLaneLocked(l *lane) {
	delete(c.lanes, l.stream)
	for it := l.waiting.back; it != nil; it = l.waiting.back {
		l.waiting.remove(it)
		c.laned.remove(it)
		it.lane = nil
		c.batch.waiting.pushFront(it)
	}
	if c.batch.waiting.len > 0 {
		c.batchWork.Signal()
	}
}

// readyLocked puts a lane behind the others that wait for a turn.
func (c *committer) readyLocked(l *lane) {
	c.ready = append(c.ready, l)
	c.laneWork.Signal()
}

// runLanes gives turns to lanes, one transaction each, until the committer is
// stopped.
func (c *committer) runLanes(ctx context.Context) {
	for l := c.nextLane(); l != nil; l = c.nextLane() {
		c.commitLane(ctx, l)
	}
}

// nextLane waits for a lane that is ready; nil: stopped.
func (c *committer) nextLane() *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.ready) == 0 && !c.stopped {
		c.laneWork.Wait()
	}
	if c.stopped {
		return nil
	}
	l := c.ready[0]
	c.ready[0] = nil
	c.ready = c.ready[1:]
	return l
}

// commitLane runs one transaction of a lane and decides what becomes of it.
func (c *committer) commitLane(ctx context.Context, l *lane) {
	var taken []*item
	start := time.Now()
	results, err := c.call(ctx, modeLane, func() (items []*item, lockTimeout time.Duration) {
		taken, lockTimeout = c.takeUnderDeadlines(&l.line)
		return taken, lockTimeout
	})
	f, err := judge(err)
	c.report(f, len(taken), err)

	var settled answers
	c.mu.Lock()
	again := c.settleLocked(&settled, &l.line, taken, results, f, err)
	c.putBackLocked(&l.line, again)
	c.expireLocked(&settled, &l.line, time.Now()) // there may be no connection for a long time
	c.mu.Unlock()
	// Before the batch may commit what follows: callers of one stream are answered
	// in its order.
	settled.deliver()

	c.mu.Lock()
	defer c.mu.Unlock()
	first := l.waiting.front
	switch {
	case first == nil, len(again) == 0 && f == fateCommitted && !first.unresolved && l.limit == 0:
		c.closeLaneLocked(l)
	default:
		c.readyAfterLocked(l, l.pause(time.Since(start)))
	}
}

// readyAfterLocked gives a lane its next turn no sooner than after d.
func (c *committer) readyAfterLocked(l *lane, d time.Duration) {
	if d <= 0 {
		c.readyLocked(l)
		return
	}
	time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.readyLocked(l)
	})
}
