package pgbacklog

import (
	"context"
	"slices"
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
	// free is true while its newest transaction did not wait in vain.
	free bool
}

// openLanesLocked ends the batch's flight, gives the streams of items that it put
// back lanes, and moves everything for them there.
func (c *committer) openLanesLocked(items []*item) {
	parked := c.parkedLanesLocked()
	c.inFlight = nil
	for _, it := range items {
		if name := it.publication.Stream; it.state == itemWaiting && c.lanes[name] == nil {
			c.openLaneLocked(name)
		}
	}
	if len(items) > 0 || len(parked) > 0 {
		c.fillLanesLocked()
	}
	for _, l := range parked {
		c.readyLocked(l)
	}
}

// parkedLanesLocked returns the lanes that must not have a turn before the
// batch's transaction has ended, since it carries items of their streams.
func (c *committer) parkedLanesLocked() (parked []*lane) {
	for _, it := range c.inFlight {
		if l := c.lanes[it.publication.Stream]; l != nil && !slices.Contains(parked, l) {
			parked = append(parked, l)
		}
	}
	return parked
}

// openLaneLocked gives a stream that has none a lane.
func (c *committer) openLaneLocked(stream backlog.StreamName) *lane {
	l := &lane{stream: stream}
	c.lanes[stream] = l
	if !slices.ContainsFunc(c.inFlight, func(it *item) bool { return it.publication.Stream == stream }) {
		c.readyLocked(l)
	}
	return l
}

// fillLanesLocked moves what waits in the batch for streams that have lanes to
// these. What is in a lane already came later: a lane is opened with what waits.
func (c *committer) fillLanesLocked() {
	for it := c.batch.waiting.back; it != nil; {
		prev := it.prev
		if l := c.lanes[it.publication.Stream]; l != nil {
			c.batch.waiting.remove(it)
			c.enterLaneLocked(it, l)
			l.waiting.pushFront(it)
		}
		it = prev
	}
}

// joinLaneLocked puts an item of no list at the end of a lane.
func (c *committer) joinLaneLocked(it *item, l *lane) {
	c.enterLaneLocked(it, l)
	l.waiting.pushBack(it)
}

func (c *committer) enterLaneLocked(it *item, l *lane) {
	it.lane = l
	c.laned.add(it)
	l.load.add(it)
}

func (c *committer) leaveLaneLocked(it *item) {
	c.laned.remove(it)
	it.lane.load.remove(it)
	it.lane = nil
}

// closeLaneLocked gives what waits in a lane back to the batch. It goes to the
// front, having waited longer than the rest; of its stream there is nothing else
// in the batch.
func (c *committer) closeLaneLocked(l *lane) {
	delete(c.lanes, l.stream)
	for it := l.waiting.back; it != nil; it = l.waiting.back {
		l.waiting.remove(it)
		c.leaveLaneLocked(it)
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
	if elsewhere := heldElsewhere(err, l.stream); elsewhere != nil && len(again) == 1 {
		c.moveCallLocked(&settled, again[0], *elsewhere)
		again, f = nil, fateCommitted // of this stream it has the lock
		l.learn(f, 0)
	}
	switch {
	case f == fateCommitted && len(taken) > 0:
		l.free = true
		delete(c.heldUntil, l.stream)
	case lockedByRow(err):
		l.free = false
		c.noteHeldLocked(l.stream, time.Now())
	}
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
	case first == nil, len(again) == 0 && f == fateCommitted && !first.unresolved && l.limit == 0 && !l.waiting.hasCall():
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

// minLaneTimeout is what a lane's turn waits for its stream however many lanes
// there are.
const minLaneTimeout = 10 * time.Millisecond

// laneTimeout is the longest wait of a lane's turn for its stream, 0 for any:
// the shorter the more lanes wait for a turn, so that one whose stream is free
// again has it about as soon as if they were few.
func (c *committer) laneTimeout() time.Duration {
	c.mu.Lock()
	behind := len(c.ready)
	c.mu.Unlock()
	if behind == 0 {
		return 0
	}
	share := time.Duration(c.lockTimeout.Load()) * time.Duration(c.cfg.Lanes) / time.Duration(c.cfg.Lanes+behind)
	return max(share, minLaneTimeout)
}
