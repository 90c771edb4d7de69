package hub

import (
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// known is what a stream knew when a read of it began. The read's verdict is
// about this, not about what the stream has learned since.
type known struct {
	tail       *tail
	own        uint64
	base, head backlog.Position
	// held is how many announcements had been held: the read sees what they told.
	held uint64
	// read numbers the stream's reads, in the order in which they began.
	read uint64
	// ephemeral is the number of the last ephemeral frame of the tail: the read sees
	// what it follows.
	ephemeral uint64
	// outages is how many there had been: the read sees whether ephemeral frames
	// were published in them.
	outages uint64
	// announced is how far the tail's numbering had been announced: the read sees it.
	announced uint64
	// began is when the read began.
	began time.Time
}

func (s *stream) knownLocked() known {
	s.reads++
	k := known{tail: s.current, held: s.held.count, read: s.reads, outages: s.hub.outages.Load(), began: time.Now()}
	if t := s.current; t != nil {
		k.own, k.base, k.head, k.ephemeral = t.own, t.base, t.head, t.ephemerals.last
		k.announced = t.announcedTo()
	}
	return k
}

// integrateLocked brings the stream up to date with a load begun in the state
// k, under a listening. fresh are the loaded frames that k did not have, encoded. It
// returns false, and changes nothing, if the load is about a numbering that is no
// longer current.
func (s *stream) integrateLocked(k known, loaded backlog.Loaded, fresh []*entry, listening uint64, hooks *hooks) bool {
	t := s.current
	if t != k.tail || (t != nil && t.own != k.own) {
		return false
	}
	s.markLocked(loaded.State.Ephemeral, hooks)
	if t == nil {
		// Not what is counted by now: who is placed by this load is to be told of it.
		s.outages = k.outages
		s.openLocked(loaded, fresh, hooks)
		s.setStateLocked(loaded)
		return true
	}
	// Told before what is read now: ephemeral frames may have stood anywhere in it.
	told := s.noteOutagesLocked(s.held.outagesOr(k.outages), hooks)
	l, fresh, told := s.leaveOutLocked(k, loaded, fresh, listening, told, hooks)
	told = told && s.held.ephemeral.count == 0
	if t.own == 0 {
		s.adoptLocked(t, l, fresh, told, hooks)
	} else {
		s.continueLocked(t, k, l, fresh, told, hooks)
	}
	s.setStateLocked(l)
	s.awaitLocked(loaded)
	return true
}

// setStateLocked remembers a state. A closed stream's state is that of the
// numbering that ended.
func (s *stream) setStateLocked(l backlog.Loaded) {
	state := l.State
	s.state, s.notBefore, s.stateRead = state, l.NotBefore, time.Now()
	if s.closed != nil {
		s.state.Closed, s.state.Head = true, s.closed.head
		s.closed.replayable = state.Base.Sequence
	}
}

// notBeforeLocked returns the time, by the store's clock, before which frames are
// too old to be replayed; zero if no age is too old. What has passed since the
// store said so is measured by a clock that nobody sets.
func (s *stream) notBeforeLocked() time.Time {
	if s.notBefore.IsZero() {
		return time.Time{}
	}
	return s.notBefore.Add(time.Since(s.stateRead))
}

// openLocked makes the tails of a stream from a load.
func (s *stream) openLocked(l backlog.Loaded, fresh []*entry, hooks *hooks) {
	if !l.State.Exists {
		s.current = waitingTail(0)
		return
	}
	s.current = newTail(l, fresh)
	s.current.announced = s.held.announcedOf(s.current.own)
	s.current.heard = s.current.announced
	s.fitLocked(s.current, hooks)
	if l.State.Closed {
		s.closeLocked(s.current, true, hooks)
	}
}

// adoptLocked lets a waiting tail become that of the numbering that began, if
// that is the first since the tail waits. told is true if the subscriptions have
// just been told that they may miss ephemeral frames, and none is held.
func (s *stream) adoptLocked(t *tail, l backlog.Loaded, fresh []*entry, told bool, hooks *hooks) {
	switch {
	case !l.State.Exists:
		// Removed after its retention, if it was ever there.
		s.forgetClosedLocked()
		t.successorOf = 0
		return
	case l.State.Closed && l.State.OwnEpoch == t.successorOf:
		return
	case s.adoptMissedLocked(t, l, told, hooks):
		return
	case l.State.PreviousOwnEpoch != t.successorOf:
		// A whole numbering came and went: its subscriptions must be told.
		s.replaceLocked(t, GapEpochChanged, l, hooks)
		s.endLocked(t, endedCut, hooks)
		return
	}
	s.forgetClosedLocked()
	t.own = l.State.OwnEpoch
	t.zeroEpoch = positionIn(l, 0).Epoch
	t.base, t.head = l.Before, l.Before
	t.announced = s.held.announcedOf(t.own)
	t.heard = t.announced
	t.replayable = l.State.Base.Sequence
	t.add(fresh)
	s.hub.counts.read.Add(t.head.Sequence - l.Before.Sequence)
	s.fitLocked(t, hooks)
	t.parked.wake(hooks)
	if l.State.Closed {
		s.closeLocked(t, told, hooks)
	}
}

// adoptMissedLocked adopts a numbering that began, was closed and was replaced
// before it could be read: what was held tells of its first frame, and its rows
// are read as the rest of a retired tail.
func (s *stream) adoptMissedLocked(t *tail, l backlog.Loaded, told bool, hooks *hooks) bool {
	first := s.held.firstOf(func(own uint64) bool { return own != l.State.OwnEpoch && !s.ended.has(own) })
	if first == nil || t.readers == 0 {
		return false
	}
	t.own = first.OwnEpoch
	t.zeroEpoch = first.Frame.Position.Epoch
	t.head = backlog.Position{Epoch: t.zeroEpoch}
	t.closedAt = s.held.closeOf(t.own)
	s.replaceLocked(t, GapEpochChanged, l, hooks)
	s.retireLocked(t, told, hooks)
	return true
}

// continueLocked extends the current tail, or ends it if the load shows that
// its numbering was replaced or lost its newest frames.
func (s *stream) continueLocked(t *tail, k known, l backlog.Loaded, fresh []*entry, told bool, hooks *hooks) {
	state := l.State
	if !state.Exists || state.OwnEpoch != t.own {
		s.replaceLocked(t, GapEpochChanged, l, hooks)
		s.retireLocked(t, told, hooks)
		return
	}
	if reason, ok := cutReason(k.head, l); ok {
		s.replaceLocked(t, reason, l, hooks)
		s.endLocked(t, endedCut, hooks)
		return
	}
	t.replayable = state.Base.Sequence
	before := t.head
	t.merge(l.Before, fresh)
	s.hub.counts.read.Add(t.head.Sequence - before.Sequence)
	s.fitLocked(t, hooks)
	if t.ephemerals.lower(k.ephemeral, t.head.Sequence) || t.head != before {
		t.parked.wake(hooks)
	}
	if state.Closed && t.head == state.Head {
		s.closeLocked(t, told, hooks)
	}
}

// cutReason says why a tail with this head cannot go on with what was loaded.
func cutReason(head backlog.Position, l backlog.Loaded) (GapReason, bool) {
	if l.State.Head.Sequence < head.Sequence {
		return GapAhead, true
	}
	at := positionIn(l, head.Sequence)
	if at.Epoch == 0 && head.Sequence < l.State.Floor {
		// The row is gone, and so are frames after it: whoever needs them finds out
		// when it reads.
		return 0, false
	}
	return GapEpochChanged, at.Epoch != head.Epoch
}

// replaceLocked makes new tails from a load, as successors of t.
func (s *stream) replaceLocked(t *tail, reason GapReason, l backlog.Loaded, hooks *hooks) {
	s.forgetClosedLocked()
	s.former = append(s.former, t)
	// Nothing that t has counts any more.
	s.openLocked(l, s.hub.entriesOf(l.Frames), hooks)
	t.reason, t.next = reason, s.current
	if s.closed != nil {
		t.next = s.closed
	}
}

// retireLocked ends a tail whose numbering was replaced: at once if nobody
// reads it, otherwise once what is left of it has been read, because those
// frames were committed while its subscriptions were in force. That is not read
// before the close is announced, unless its subscriptions were told of an outage:
// ephemeral frames may be among it.
func (s *stream) retireLocked(t *tail, told bool, hooks *hooks) {
	if t.readers == 0 {
		s.endLocked(t, endedCut, hooks)
		return
	}
	t.retired = true
	if !told && s.lateLocked(t) && s.held.closeOf(t.own).IsZero() {
		s.awaitCloseLocked(t)
		return
	}
	s.readRestLocked(t)
}

func (s *stream) readRestLocked(t *tail) {
	s.hub.pager.push(&page{stream: s, tail: t, after: t.readAfter(t.head), rest: true})
}

// restLocked takes in a page of what is left of a retired tail; an empty one
// ends it. It returns false when it is at the end.
func (s *stream) restLocked(t *tail, entries []*entry, hooks *hooks) bool {
	if len(entries) > 0 && t.readers > 0 {
		before := t.head
		t.add(entries)
		s.hub.counts.read.Add(t.head.Sequence - before.Sequence)
		s.fitLocked(t, hooks)
		t.parked.wake(hooks)
		return true
	}
	how := endedCut
	if t.head == t.closedAt && t.own != 0 {
		how = endedClosed
	}
	s.endLocked(t, how, hooks)
	return false
}

// fitLocked keeps a tail within its bounds.
func (s *stream) fitLocked(t *tail, hooks *hooks) {
	t.trim(s.hub.cfg.TailFrames, s.hub.cfg.TailBytes)
	t.wakeLostLocked(hooks)
	s.settleLocked(t)
}
