package pgbacklog

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// A call is a transaction of a caller's own that locks streams: an atomic batch
// or a close. It is attempted in one of a few slots that all calls share, where
// it waits for foreign locks for moments only. If a stream turns out to be held
// the call joins the stream's lane, and so do those that come after it.
type call struct {
	// streams are those that it locks, each once, in order.
	streams []backlog.StreamName
	size    int64
	// repeatable calls may be sent again after an unknown outcome.
	repeatable bool
	run        directFunc
}

const (
	// firstWait is how long a first attempt waits for a row: longer than the
	// commits of publishers hold it, unless the disk is slow.
	firstWait = 50 * time.Millisecond
	// minFirstWait is what is left of it when many streams are held.
	minFirstWait = 5 * time.Millisecond
	// heldMemory is how long a stream that was found held is believed to be, when
	// nobody waits for it any more.
	heldMemory = time.Second
	// maxHeld bounds the streams that are remembered.
	maxHeld = 1000
)

// errStreamsHeld says why a call of a caller without a deadline was given up.
var errStreamsHeld = errors.New("a transaction that holds a stream has not ended")

// heldError is why an attempt of a call was rolled back: another transaction
// holds a stream, or is creating it.
type heldError struct {
	stream backlog.StreamName
	err    error
}

func (e *heldError) Error() string { return e.err.Error() }
func (e *heldError) Unwrap() error { return e.err }

// heldElsewhere returns the stream that a transaction was rolled back for, if
// that is another one than stream.
func heldElsewhere(err error, stream backlog.StreamName) *backlog.StreamName {
	var held *heldError
	if errors.As(err, &held) && held.stream != stream {
		return &held.stream
	}
	return nil
}

// lockedByRow reports whether a transaction was rolled back because a stream was
// held: not by the lock of all notifying commits.
func lockedByRow(err error) bool {
	var atCommit *commitError
	return hasCode(err, codeLockNotAvailable) && !errors.As(err, &atCommit)
}

// runCall runs a call until it is committed or refused or ctx ends; if ctx has no
// deadline, for the retry timeout at most. Errors are those of backlog.Store.
func (c *committer) runCall(ctx context.Context, d *call) error {
	bounded, cancel := withDefaultTimeout(ctx, c.cfg.RetryTimeout)
	defer cancel()
	it := &item{call: d, size: d.size}
	it.deadline, _ = bounded.Deadline()
	if err := c.admit(it); err != nil {
		return err
	}
	err := c.direct(bounded, c.batchSlots, it, func(ctx context.Context, conn *pgxpool.Conn, w waits) error {
		if stream, held := c.findHeld(d); held {
			return &heldError{stream, errOutOfTime}
		}
		w.rows = c.nextWait(it)
		return c.runOnce(ctx, conn, d, w)
	})
	var held *heldError
	if errors.As(err, &held) {
		err = c.awaitTurn(bounded, it, held.stream)
	} else {
		c.dismiss(it)
	}
	return explainTimeout(ctx, err, errStreamsHeld)
}

// admit makes room for a call in the publish queue, of which calls may take a
// half.
func (c *committer) admit(it *item) error {
	frames, bytes := c.cfg.MaxQueuedFrames, c.cfg.MaxQueuedBytes
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stopped:
		return backlog.ErrUnavailable
	case !c.queued.fits(it, frames, bytes), !c.calling.fits(it, frames/2, bytes/2):
		return backlog.ErrPublishQueueFull
	}
	c.queued.add(it)
	c.calling.add(it)
	return nil
}

// dismiss gives the room of a call back that has joined no lane.
func (c *committer) dismiss(it *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dismissLocked(it)
}

func (c *committer) dismissLocked(it *item) {
	it.state = itemAnswered
	c.queued.remove(it)
	c.calling.remove(it)
}

// findHeld returns one of a call's streams that is known to be held.
func (c *committer) findHeld(d *call) (backlog.StreamName, bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range d.streams {
		if l := c.lanes[s]; l != nil && !l.free || now.Before(c.heldUntil[s]) {
			return s, true
		}
	}
	return backlog.StreamName{}, false
}

// nextWait is how long the next attempt of a call waits for rows that nobody is
// known to hold: the shorter the more streams are held, so that finding them does
// not take the slots from other calls; and the longer the more attempts there
// were.
func (c *committer) nextWait(it *item) time.Duration {
	c.mu.Lock()
	held := len(c.heldUntil)
	c.mu.Unlock()
	wait := max(firstWait/time.Duration(1+held), minFirstWait) << min(it.attempts, 8)
	it.attempts++
	return wait
}

// runHeld runs a call that waits in a lane, for its stream first and for that
// alone.
func (c *committer) runHeld(ctx context.Context, conn *pgxpool.Conn, it *item, limit time.Duration) error {
	w := waits{limit: limit, rows: c.laneTimeout()}
	if len(it.call.streams) > 1 {
		stream := it.lane.stream
		w.first, w.firstRow, w.rows = &stream, w.rows, c.nextWait(it)
	}
	return c.runOnce(ctx, conn, it.call, w)
}

// runOnce runs a call's transaction. If a stream was held the error is a
// *heldError.
func (c *committer) runOnce(ctx context.Context, conn *pgxpool.Conn, d *call, w waits) error {
	err := d.run(ctx, conn, w)
	if !lockedByRow(err) {
		return err
	}
	stream := c.askHeld(ctx, conn, d, w, err)
	if stream == nil { // it is free by now
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteHeldLocked(*stream, time.Now())
	return &heldError{*stream, err}
}

// askHeld returns which stream held up a transaction that ended with err; nil if
// none does any more.
func (c *committer) askHeld(ctx context.Context, conn *pgxpool.Conn, d *call, w waits, err error) *backlog.StreamName {
	var atBegin *beginError
	switch {
	case errors.As(err, &atBegin):
		return w.first
	case len(d.streams) == 1:
		return &d.streams[0]
	}
	channels, scopes := make([]string, len(d.streams)), make([]string, len(d.streams))
	for i, s := range d.streams {
		channels[i], scopes[i] = s.Channel, s.Scope
	}
	var held []int32
	// Without an answer the call is attempted again, and asks again.
	if c.transact(ctx, conn, waits{limit: w.limit}, []any{&held}, c.heldSQL, channels, scopes) != nil || len(held) == 0 {
		return nil
	}
	return &d.streams[held[0]-1]
}

// noteHeldLocked remembers that a stream is held, and forgets what is too long
// ago.
func (c *committer) noteHeldLocked(stream backlog.StreamName, now time.Time) {
	for s, until := range c.heldUntil {
		if now.After(until) {
			delete(c.heldUntil, s)
		}
	}
	if len(c.heldUntil) < maxHeld {
		c.heldUntil[stream] = now.Add(heldMemory)
	}
}

// awaitTurn has a call wait in the lane of a stream until it is answered.
func (c *committer) awaitTurn(ctx context.Context, it *item, stream backlog.StreamName) error {
	ended := make(chan error, 1)
	it.done = func(_ backlog.Outcome, err error) { ended <- err }
	// Outside the lock: a context that has ended meanwhile calls at once.
	it.gone, it.stop = ctx.Err, context.AfterFunc(ctx, func() { c.withdraw(it, ctx.Err()) })
	c.mu.Lock()
	err := c.enqueueCallLocked(it, stream)
	c.mu.Unlock()
	if err != nil {
		it.stop()
		return it.certain(err)
	}
	return <-ended
}

// enqueueCallLocked puts a call behind everything in the lane of a stream, or
// dismisses it and returns why.
func (c *committer) enqueueCallLocked(it *item, stream backlog.StreamName) error {
	err := it.err // of one that was withdrawn
	if it.state == itemNew {
		err = c.joinHeldLocked(it, stream)
	}
	if err != nil {
		c.dismissLocked(it)
	}
	return err
}

func (c *committer) joinHeldLocked(it *item, stream backlog.StreamName) error {
	l := c.lanes[stream]
	switch {
	case c.stopped:
		return backlog.ErrUnavailable
	case l == nil:
		l = c.openLaneLocked(stream)
		c.fillLanesLocked()
	}
	if !c.hasLaneRoomLocked(it, l) {
		return backlog.ErrPublishQueueFull
	}
	it.state = itemWaiting
	c.joinLaneLocked(it, l)
	return nil
}

// moveCallLocked moves a call that was in flight to the lane of another stream.
func (c *committer) moveCallLocked(settled *answers, it *item, stream backlog.StreamName) {
	c.leaveLaneLocked(it)
	if err := c.joinHeldLocked(it, stream); err != nil {
		c.answerLocked(settled, it, backlog.Outcome{}, it.certain(err))
	}
}
