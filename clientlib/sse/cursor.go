package sse

import (
	"errors"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

// restTime is how long a relay may be behind a page.
const restTime = time.Second

var (
	// errHandlerClosed ends what begins after Close.
	errHandlerClosed = errors.New("the handler is closed")
	// errTooManyRelays ends what needs one more stream than may be subscribed to.
	errTooManyRelays = errors.New("as many streams are subscribed to as may be")
)

// cursor is one stream of one connection: a place in its relay's ring, or on the way
// there through pages. It belongs to the connection's goroutine, and never blocks it.
type cursor struct {
	relay *relay
	// wake has the connection look at its cursors. Any goroutine may call it.
	wake func()
	// watcher is its place among the relay's watchers, and guarded as they are.
	watcher int
	// index is its place among the connection's cursors.
	index int
	form  form
	start start
	// resumes is true if the browser was connected before this cursor was attached.
	resumes bool

	// attached is true since what commits is for this cursor: the ephemeral entries from
	// ephemeralFrom on.
	attached      bool
	ephemeralFrom uint64
	// position is after everything handed on, once begun is true; judged if a server has
	// taken it.
	begun, judged bool
	position      clientlib.Position
	// follows, if not zero, is the frame that comes next, and was in the ring.
	follows clientlib.Position

	// placed is true while next is the next entry to look at, of which those of the
	// numbering count from numberedFrom on.
	placed       bool
	next         uint64
	numberedFrom uint64
	// Once next has reached caughtUpAt, caught_up is due, unless caughtUp.
	caughtUpAt uint64
	caughtUp   bool

	// page is what is handed on before the ring, from entry pageAt on; read is what will be.
	page   *page
	pageAt int
	read   *pageRead
	// rests is true while the ring does not hold the position, though the last page came up
	// to it: the relay will, when it has taken in what ends behind restsAt, but at
	// restsUntil another page is read.
	rests      bool
	restsAt    uint64
	restsUntil time.Time

	// owesMissed is true if ephemeral frames may have been missed here.
	owesMissed bool
	// knowsEphemeral is true once the cursor has judged whether it has missed ephemeral
	// frames, which it does when the relay knows that there are any, with the relay's
	// lapses since it was attached.
	knowsEphemeral bool
	lapses         int
	// done is true after the last event: the stream was closed, or err is why.
	done bool
	err  error
}

// begin reports whether the place where delivery begins is known, and that all that
// commits from now on will be delivered.
func (c *cursor) begin() (bool, error) {
	switch {
	case c.begun:
		return true, nil
	case c.read != nil:
		return c.finishRead(), c.err
	}
	if found, ready := c.beginInRing(); found || !ready {
		return found, c.err
	}
	c.readPage(c.start)
	return false, c.err
}

func (c *cursor) beginInRing() (found, ready bool) {
	r := c.relay
	if c.reattach() {
		return false, false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c.err = r.err; c.err != nil || !c.attachLocked() {
		return false, false
	}
	place, position := r.ring.end, r.position
	switch {
	case c.start.kind == fromLive, c.start.kind == fromLast && c.start.last == 0:
		if !r.caughtUp {
			return false, false // its end is not the stream's
		}
	case c.start.kind == fromAfter:
		position = c.start.position
		if place, found = r.ring.find(position, false); !found {
			return false, true
		}
	default:
		return false, true
	}
	c.position, c.begun = position, true
	c.placeLocked(place)
	return true, true
}

// attachLocked has what commits from now on be for the cursor, as soon as the relay is
// ready, and reports whether it is.
func (c *cursor) attachLocked() bool {
	r := c.relay
	if c.attached {
		return true
	}
	if !r.readyLocked() {
		return false
	}
	c.attached, c.ephemeralFrom = true, r.ring.end
	c.knowsEphemeral, c.lapses = false, r.lapses
	c.judgeMissedLocked()
	return true
}

// judgeMissedLocked notes whether ephemeral frames may have been missed, as soon as the
// relay knows of any. A relay that is new does not know what was published before.
func (c *cursor) judgeMissedLocked() {
	r := c.relay
	if c.knowsEphemeral || !r.ephemeral {
		return
	}
	c.knowsEphemeral = true
	c.owesMissed = c.owesMissed || c.resumes || c.lapses != r.lapses
}

// reattach goes to a new relay if the one at hand has ended before it was of use, which
// happens when the stream is closed at the wrong moment.
func (c *cursor) reattach() bool {
	r := c.relay
	r.mu.RLock()
	over := r.ended && r.err == nil
	c.owesMissed = c.owesMissed || over && c.begun && r.ephemeral
	r.mu.RUnlock()
	if !over {
		return false
	}
	next, err := r.handler.acquire(r.stream)
	if err != nil {
		c.fail(err)
		return true
	}
	c.leave()
	c.relay, c.attached, c.placed = next, false, false
	c.resumes = c.resumes || c.begun
	next.want(c.form)
	next.watch(c)
	c.wake() // it may have become ready meanwhile
	return true
}

// leave gives back what the cursor holds of its relay.
func (c *cursor) leave() {
	if c.read != nil {
		c.relay.leavePage(c, c.read)
		c.read = nil
	}
	if c.page != nil {
		c.page.release()
		c.page = nil
	}
	c.relay.unwatch(c)
	c.relay.handler.release(c.relay)
}

func (c *cursor) fail(err error) { c.done, c.err = true, err }

// advance hands on what follows, as far as there is room in the batch.
func (c *cursor) advance(b *batch) {
	for b.room() && !c.done {
		switch {
		case c.owesMissed && c.attached:
			c.owesMissed = false
			b.add(c, missedGap, c.missedBlock())
		case c.page != nil:
			c.takePage(b)
		case c.read != nil:
			if !c.finishRead() {
				return
			}
		case !c.takeRing(b):
			return
		}
	}
}

func (c *cursor) missedBlock() []byte {
	c.relay.mu.RLock()
	defer c.relay.mu.RUnlock()
	return c.missedBlockLocked()
}

// missedBlockLocked is a gap of ephemeral frames where the cursor is.
func (c *cursor) missedBlockLocked() []byte {
	r := c.relay
	return gapBlock(r.stream, &clientlib.Gap{
		Reason: clientlib.EphemeralMaybeMissed, Requested: c.position, Oldest: r.oldest, Head: r.position, ResumeAfter: c.position,
	})
}

// takePage hands on a page, and drops it at its end.
func (c *cursor) takePage(b *batch) {
	for ; c.pageAt < len(c.page.entries); c.pageAt++ {
		if !b.room() {
			return
		}
		e := c.page.entries[c.pageAt]
		c.hand(b, e)
		if e.kind == closed {
			c.done = true
			return
		}
	}
	c.follows = c.page.next
	c.rests, c.restsUntil = c.page.caughtUp || c.page.ahead, time.Time{}
	if c.page.caughtUp && !c.caughtUp {
		c.caughtUp = true
		b.add(c, notice, caughtUpBlock(c.relay.stream, c.position))
	}
	b.spent, c.page = append(b.spent, c.page), nil
}

// hand hands on an entry. The relay's mutex is held, unless it is of a page.
func (c *cursor) hand(b *batch, e *entry) {
	switch e.kind {
	case durable:
		c.position = e.after
		b.add(c, frame, e.blocks[c.form])
	case loss:
		c.position, c.caughtUp = e.after, false
		b.add(c, gap, e.blocks[c.form])
	case closed:
		b.add(c, notice, e.blocks[c.form])
	case ephemeral:
		b.add(c, passing, e.blocks[c.form])
	case missed:
		b.add(c, missedGap, c.missedBlockLocked()) // each is told where it stands
	case status:
		b.add(c, notice, e.blocks[c.form])
	}
}

// takeRing hands on what the ring has, and reports whether there is more to do.
func (c *cursor) takeRing(b *batch) bool {
	r := c.relay
	r.mu.RLock()
	if c.placed && c.next < r.ring.base {
		c.overtakenLocked()
	}
	if !c.placed && !c.findLocked() {
		ended, end := r.ended, r.ring.end
		r.mu.RUnlock()
		return c.behind(ended, end)
	}
	defer r.mu.RUnlock()
	if c.judgeMissedLocked(); c.owesMissed {
		return true
	}
	for c.next < r.ring.end && b.room() {
		e, number := r.ring.at(c.next), c.next
		from := c.ephemeralFrom
		if e.kind.ofNumbering() {
			from = c.numberedFrom
		}
		if number < from {
			c.next++
			continue
		}
		if len(e.blocks[c.form]) > batchBytes && !b.borrow(&r.handler.holding, e) {
			r.handler.wakeWhenRoom(r)
			return false
		}
		c.next++
		c.hand(b, e)
		if e.kind == loss {
			c.caughtUpAt = r.ring.end
		}
	}
	if !c.caughtUp && r.caughtUp && c.next >= c.caughtUpAt && b.room() {
		c.caughtUp = true
		b.add(c, notice, caughtUpBlock(r.stream, c.position))
	}
	if c.next < r.ring.end || !r.ended || !b.room() {
		return false
	}
	if c.fail(r.err); r.err == nil {
		b.add(c, notice, r.closed)
	}
	return false
}

// findLocked places the cursor, if the ring holds its position.
func (c *cursor) findLocked() bool {
	if !c.attachLocked() {
		return false
	}
	number, ok := c.relay.ring.find(c.position, c.judged)
	if !ok && !c.follows.IsZero() {
		number, ok = c.relay.ring.findFrame(c.follows)
	}
	if c.follows = (clientlib.Position{}); ok {
		c.placeLocked(number)
	}
	return ok
}

// placeLocked has the cursor go on with entry number, and with the ephemeral ones that
// came while it was on its way there.
func (c *cursor) placeLocked(number uint64) {
	ring := &c.relay.ring
	c.forgetMissedLocked(c.ephemeralFrom)
	c.placed, c.numberedFrom, c.caughtUpAt = true, number, ring.end
	c.rests = false
	c.next = min(number, c.ephemeralFrom)
}

// overtakenLocked notes that the ring has dropped what the cursor needed.
func (c *cursor) overtakenLocked() {
	c.relay.handler.overtaken.Add(1)
	c.placed, c.judged = false, true // its position is one that was delivered
	c.forgetMissedLocked(max(c.next, c.ephemeralFrom))
}

// forgetMissedLocked gives up the ephemeral entries from a number on that the ring has
// dropped, or that follow what is only in an earlier numbering.
func (c *cursor) forgetMissedLocked(from uint64) {
	ring := &c.relay.ring
	here := max(ring.base, ring.since)
	if from < here && ring.lost > from {
		c.owesMissed = true
	}
	c.ephemeralFrom = max(c.ephemeralFrom, here)
}

// behind has a page read of what the ring does not hold, and reports whether there is
// more to do at once.
func (c *cursor) behind(ended bool, end uint64) bool {
	if ended {
		if c.reattach() {
			return !c.done && c.attached
		}
		c.fail(c.relay.err)
		return false
	}
	switch now := time.Now(); {
	case !c.rests:
	case c.restsUntil.IsZero():
		c.restsAt, c.restsUntil = end, now.Add(restTime)
		return false
	case c.restsAt == end && now.Before(c.restsUntil):
		return false
	}
	c.rests = false
	c.readPage(after(c.position))
	return false
}

func (c *cursor) readPage(from start) {
	read, ok := c.relay.readPage(c, from)
	if !ok {
		c.fail(errHandlerClosed)
		return
	}
	c.read = read
}

// finishRead takes the page that was read, and reports whether it is there.
func (c *cursor) finishRead() bool {
	r := c.relay
	r.mu.RLock()
	done, read, err := c.read.done, c.read.page, c.read.err
	r.mu.RUnlock()
	if !done {
		return false
	}
	c.read = nil
	if err != nil {
		c.fail(err)
		return false
	}
	if !c.begun {
		c.begun, c.position = true, read.begins
		if c.start.kind == fromAfter {
			c.position = c.start.position
		}
	}
	c.judged, c.page, c.pageAt = true, read, 0
	return true
}

// replays reports whether the cursor holds a page, or waits for one.
func (c *cursor) replays() bool { return c.page != nil || c.read != nil }

// over reports whether the page that the cursor begins with says only that the stream is
// closed.
func (c *cursor) over() bool {
	return c.page != nil && len(c.page.entries) == 1 && c.page.entries[0].kind == closed
}
