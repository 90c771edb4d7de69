package hub

import (
	"context"
	"errors"
	"io"

	"github.com/fanfare-io/fanfare/backlog"
)

// ErrSubscriptionClosed is returned by reads of a subscription after its Close.
var ErrSubscriptionClosed = errors.New("the subscription was closed")

// ErrSlowSubscriber ends a subscription that had not taken an ephemeral frame when
// it had to be dropped for want of room. Its position says where to resume.
var ErrSlowSubscriber = errors.New("ephemeral frames were dropped before the subscription took them")

// Subscription delivers one stream from a start on. Its reads, TryNext and
// Next, are for one goroutine at a time; the other methods may be called by
// any.
type Subscription struct {
	// What every read touches comes first: a thousand subscriptions that get a frame
	// are a thousand misses of the cache for each line that it is spread over.

	hub    *Hub
	stream *stream

	// The rest is guarded by stream.mu.

	// tail holds the cursor; nil before the subscription has been placed.
	tail *tail
	// subscribed is what is handed over first; nil before and after.
	subscribed *Subscribed
	// cursor is the last position handed over.
	cursor backlog.Position
	// had is the number of the last ephemeral frame of the tail that was handed over,
	// or was there before the subscription.
	had uint64
	// mark is the sequence of the head when the subscription began or last had a
	// Gap for durable frames; once the cursor is there, CaughtUp is due, unless
	// caughtUp.
	mark     uint64
	caughtUp bool
	// judging is true while a load decides where to go on.
	judging bool
	closed  bool
	// turned is true once the subscription has used up a page.
	turned bool
	// status is the count of the status that the subscriber knows of.
	status uint32

	// turn, if not nil, is the Gap to hand over next, and where that leads.
	turn *turn
	// page is being read or used for what is below the window.
	page *page
	// err ends the subscription.
	err     error
	hook    func()
	waitsIn *waiters
	waitsAt int32
	// listed is the place in the stream's roster, from 1; 0: in none.
	listed int32
	// cancel ends the wait for a listening; nil if there was one at once.
	cancel context.CancelFunc

	// wakeup is what Next waits for; nil before the first Next.
	wakeup chan struct{}
	// began is the sequence of the head when the subscription began, if it began in
	// this tail: an ephemeral frame that follows a smaller one was committed before.
	began uint64
	// joined is how many others it stands for; see Join.
	joined int
}

// Stream returns the name of the subscription's stream.
func (s *Subscription) Stream() backlog.StreamName { return s.stream.name }

// Position returns the last position handed over, or where delivery begins. A
// subscription that waits for a stream's first frame is at 0-0, and so is one whose
// Subscribed has not been delivered.
func (s *Subscription) Position() backlog.Position {
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	return s.cursor
}

// SetWake sets the hook that is called when TryNext has said that nothing follows
// and something may since. It is called once for each time, sometimes for
// nothing, possibly once more while Close returns; from any goroutine and
// without locks; it must not block. Set it before the first TryNext. Next sets
// a hook of its own.
func (s *Subscription) SetWake(hook func()) {
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	s.hook = hook
}

// TryNext returns what follows, without blocking: frames of up to maxBytes
// encoded bytes together, at least one, or a notice. It returns false if there
// is nothing yet; then the wake hook will be called, and so it will after a Delivery
// that is AtEnd. What it returns counts as handed over.
//
// The error is io.EOF after a Closed, ErrSubscriptionClosed after Close,
// ErrSlowSubscriber, and before Subscribed what [Hub.Subscribe] says.
func (s *Subscription) TryNext(maxBytes int) (Delivery, bool, error) {
	return s.try(max(1, maxBytes))
}

// TryNotice is TryNext for who wants no frames for the time being: it stops before
// them. The wake hook is then called for what comes nevertheless, the status and
// ErrSlowSubscriber; for frames TryNext is called when they are wanted.
func (s *Subscription) TryNotice() (Delivery, bool, error) { return s.try(0) }

// try is TryNext, or with 0 TryNotice.
func (s *Subscription) try(maxBytes int) (Delivery, bool, error) {
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	if s.err != nil {
		return Delivery{}, false, s.err
	}
	for {
		switch d, result := s.stepLocked(maxBytes); result {
		case delivered:
			d.AtEnd = s.waitAtEndLocked()
			return d, true, nil
		case waits:
			return Delivery{}, false, nil
		case ended:
			return Delivery{}, false, s.err
		case again:
		}
	}
}

// Next is TryNext that waits. Besides its errors it returns ctx's, and
// ErrStopped when the hub has stopped and nothing is left.
func (s *Subscription) Next(ctx context.Context, maxBytes int) (Delivery, error) {
	wakeup := s.wakeOnChannel()
	for {
		d, ok, err := s.TryNext(maxBytes)
		if ok || err != nil {
			return d, err
		}
		select {
		case <-wakeup:
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		case <-s.hub.stopped:
			return Delivery{}, ErrStopped
		}
	}
}

func (s *Subscription) wakeOnChannel() chan struct{} {
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	if s.wakeup == nil {
		wakeup := make(chan struct{}, 1)
		s.wakeup, s.hook = wakeup, func() { signal(wakeup) }
	}
	return s.wakeup
}

// Close ends the subscription, and all that it stands for. It may be called more than
// once.
func (s *Subscription) Close() {
	if n := s.close(); n > 0 {
		s.hub.release(s.stream, n)
	}
}

// close returns how many subscriptions have ended.
func (s *Subscription) close() (ended int) {
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	return s.closeLocked()
}

func (s *Subscription) closeLocked() (ended int) {
	if s.closed {
		return 0
	}
	s.closed = true
	s.err = ErrSubscriptionClosed
	if s.cancel != nil {
		s.cancel()
	}
	s.turn = nil
	if s.tail == nil || s.judging {
		s.stream.abandonLocked()
	}
	s.leavePageLocked()
	s.leaveTailLocked()
	s.stream.roster.remove(s)
	// A blocked Next finds the error.
	if s.wakeup != nil {
		signal(s.wakeup)
	}
	return 1 + s.joined
}

// fail ends a subscription that could not begin.
func (s *Subscription) fail(err error) {
	var hooks hooks
	defer hooks.call()
	s.stream.mu.Lock()
	defer s.stream.mu.Unlock()
	if s.closed {
		return
	}
	s.err = err
	hooks.add(s)
}

// result says what a step came to.
type result uint8

const (
	delivered result = iota
	waits
	again
	ended
)

// stepLocked answers: what follows the cursor? It is one function because a
// Delivery is large, and passing it on costs as much as finding it.
func (s *Subscription) stepLocked(maxBytes int) (Delivery, result) {
	t := s.tail
	switch {
	case t == nil:
		return Delivery{}, waits
	case s.subscribed != nil:
		d := Delivery{Last: s.cursor, Notice: *s.subscribed}
		s.subscribed = nil
		return d, delivered
	case s.status != s.hub.statuses.Load():
		return s.statusLocked(), delivered
	case s.turn != nil:
		return s.turnLocked(maxBytes)
	case s.judging:
		return Delivery{}, waits
	case !s.caughtUp && s.cursor.Sequence >= s.mark:
		s.caughtUp = true
		return Delivery{Last: s.cursor, Notice: CaughtUp{Position: s.cursor}}, delivered
	case s.had < t.ephemerals.last:
		if d, result := s.mixedLocked(maxBytes); result != again {
			return d, result
		}
	}
	// Only durable frames, or a page of them first.
	switch {
	case maxBytes == 0 && (s.page != nil || s.cursor.Sequence < t.head.Sequence):
		return s.restLocked()
	case s.page != nil:
		return s.fromPageLocked(maxBytes)
	case s.cursor.Sequence < t.base.Sequence:
		s.page = s.hub.pageLocked(s.stream, t, t.readAfter(s.cursor))
		return Delivery{}, again
	case s.cursor.Sequence < t.head.Sequence:
		frames, last := t.following(s.cursor.Sequence, s.limit(), maxBytes)
		return s.framesLocked(frames, last), delivered
	default:
		return s.atEndLocked()
	}
}

// limit is the sequence up to which durable frames may be delivered at once:
// CaughtUp stands right after the mark, and an ephemeral frame after what it
// follows.
func (s *Subscription) limit() uint64 {
	limit := uint64(backlog.MaxPositionValue)
	if !s.caughtUp {
		limit = s.mark
	}
	if e := &s.tail.ephemerals; s.had < e.last {
		if next := e.after(s.had); len(next) > 0 {
			limit = min(limit, next[0].follows)
		}
	}
	return limit
}

func (s *Subscription) framesLocked(frames [][]byte, last backlog.Position) Delivery {
	s.cursor = last
	return Delivery{Frames: frames, Last: last}
}

func (s *Subscription) fromPageLocked(maxBytes int) (Delivery, result) {
	p := s.page
	switch {
	case !p.done:
		s.waitLocked(&p.waiters)
		return Delivery{}, waits
	case p.err != nil:
		s.leavePageLocked()
		s.unreadableLocked()
		return Delivery{}, again
	}
	entries := s.hub.pages.use(p)
	from := s.cursor.Sequence - p.after.Sequence
	if from >= uint64(len(entries)) {
		// Used up, or evicted.
		s.turned = s.turned || len(entries) > 0
		s.turnPageLocked()
		return Delivery{}, again
	}
	if s.turned || from > uint64(len(entries)/2) {
		s.hub.readAheadLocked(p, entries[len(entries)-1].position)
	}
	frames, last := collect(entries[from:], s.limit(), maxBytes)
	return s.framesLocked(frames, last), delivered
}

// turnPageLocked leaves a page for the one that follows the cursor, if that is still
// below the window. What was read ahead is kept by the page before it.
func (s *Subscription) turnPageLocked() {
	p := s.page
	s.page = nil
	if t := s.tail; s.cursor.Sequence < t.base.Sequence {
		s.page = s.hub.pageLocked(s.stream, t, t.readAfter(s.cursor))
	}
	s.hub.leavePageLocked(p)
}

// atEndLocked is at the end of the tail.
func (s *Subscription) atEndLocked() (Delivery, result) {
	switch t := s.tail; t.ending {
	case endedClosed:
		s.err = io.EOF
		s.cursor = t.head // of a numbering without durable frames it was not known
		s.leaveTailLocked()
		return Delivery{Last: t.head, Notice: Closed{Last: t.head}}, delivered
	case endedCut:
		s.turnToNextLocked()
		return Delivery{}, again
	default:
		s.waitLocked(&t.parked)
		return Delivery{}, waits
	}
}

// waitAtEndLocked has the subscription wait at the end of its tail, if it is there
// and nothing else is due.
func (s *Subscription) waitAtEndLocked() bool {
	t := s.tail
	if t == nil || s.cursor.Sequence != t.head.Sequence || t.ending != 0 || s.had != t.ephemerals.last ||
		s.subscribed != nil || !s.caughtUp || s.turn != nil || s.judging || s.page != nil {
		return false
	}
	s.waitLocked(&t.parked)
	return true
}

// unreadableLocked: what follows the cursor cannot be read any more. A load
// decides where to go on, as for a new subscription.
func (s *Subscription) unreadableLocked() {
	s.judging = true
	s.stream.pending = append(s.stream.pending, &pending{start: After(s.cursor), sub: s})
	s.stream.queueLoadLocked()
}
