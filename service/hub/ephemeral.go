package hub

import (
	"slices"
	"sort"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// keptEphemerals is the largest array that is kept for the next when it is empty.
const keptEphemerals = 64

// ephemerals are the ephemeral frames that came while a tail had readers, and
// the outages between them, in the order in which they came. They exist nowhere
// else. It is guarded by the stream's mutex.
type ephemerals struct {
	list []ephemeral
	// frames is how many of them are frames.
	frames int
	// last is the number of the newest that came. A subscription's cursor holds the
	// number of the last one it had.
	last uint64
	// lost is the number of the last frame that was dropped, and lostReach the greatest
	// sequence that one of these was said to follow: a subscription that has not had
	// them cannot go on, unless it began after that, and they are not for it. lostOutage
	// is the number of the last outage that went with them.
	lost, lostReach, lostOutage uint64
	// reach is the greatest sequence that one was said to follow, if the store was
	// not read since.
	reach uint64
}

// ephemeral is an ephemeral frame, or an outage.
type ephemeral struct {
	// number ascends within the tail, not always by one.
	number uint64
	// follows is the sequence of the durable frame after which it is due.
	follows uint64
	// entry is nil for an outage: ephemeral frames may have been missed.
	entry *entry
}

// add takes in a frame.
func (e *ephemerals) add(frame *entry) {
	e.append(frame.position.Sequence, frame)
	e.frames++
}

// addOutage takes in an outage. Outages with nothing between them are one: who
// has had the first is told again, who has not is told once.
func (e *ephemerals) addOutage(follows uint64) {
	if n := len(e.list); n > 0 && e.list[n-1].entry == nil {
		e.list = e.list[:n-1]
	}
	e.append(follows, nil)
}

func (e *ephemerals) append(follows uint64, frame *entry) {
	e.last++
	e.list = append(e.list, ephemeral{number: e.last, follows: follows, entry: frame})
}

// after returns what came after the one with a number.
func (e *ephemerals) after(number uint64) []ephemeral {
	return e.list[sort.Search(len(e.list), func(i int) bool { return e.list[i].number > number }):]
}

// lower puts those of the first upTo that were said to follow a greater sequence
// after this one, and reports whether there were any: what they follow is not in
// the store.
func (e *ephemerals) lower(upTo, sequence uint64) (lowered bool) {
	if e.reach <= sequence {
		return false
	}
	e.reach = 0
	for i := range e.list {
		f := &e.list[i]
		if f.number <= upTo && f.follows > sequence {
			f.follows, lowered = sequence, true
		}
		e.reach = max(e.reach, f.follows)
	}
	return lowered
}

// drop drops the n oldest and returns what they cost.
func (e *ephemerals) drop(n int) (bytes int) {
	if n == 0 {
		return 0
	}
	for _, f := range e.list[:n] {
		if f.entry == nil {
			e.lostOutage = f.number
			continue
		}
		bytes += f.entry.bytes() + entryOverhead
		e.lost, e.lostReach = f.number, max(e.lostReach, f.follows)
		e.frames--
	}
	clear(e.list[:n]) // the array outlives them
	switch {
	case n < len(e.list):
		e.list = e.list[n:]
	case cap(e.list) <= keptEphemerals:
		e.list = e.list[:0]
	default:
		e.list = nil
	}
	return bytes
}

// addEphemeral takes in an ephemeral frame. allHad is true if every subscription
// that may ever read it has had what was due before: that is not kept.
func (t *tail) addEphemeral(frame *entry, allHad bool) {
	if allHad {
		t.dropEphemerals(t.dueEphemerals())
	}
	t.ephemerals.add(frame)
	t.bytes += frame.bytes() + entryOverhead
}

// dueEphemerals is how many may be handed over to who is at the head.
func (t *tail) dueEphemerals() int {
	list := t.ephemerals.list
	n := slices.IndexFunc(list, func(f ephemeral) bool { return f.follows > t.head.Sequence })
	if n < 0 {
		return len(list)
	}
	return n
}

func (t *tail) dropEphemerals(n int) { t.bytes -= t.ephemerals.drop(n) }

// emptyEphemerals drops all frames: who has not had them is ended. An outage after
// the last of them stays, because nothing else would tell of it.
func (t *tail) emptyEphemerals() {
	n := len(t.ephemerals.list)
	for n > 0 && t.ephemerals.list[n-1].entry == nil {
		n--
	}
	t.dropEphemerals(n)
}

// announceEphemeralLocked takes an ephemeral frame into a tail, where it waits
// for those that are still before its place. frame is nil if it is not encoded yet.
func (s *stream) announceEphemeralLocked(t *tail, a *backlog.Announcement, frame *entry, at moment, hooks *hooks) {
	s.marked, s.used = true, time.Now()
	// Those before it came, and must be told, before it.
	s.noteOutagesLocked(at.outages, hooks)
	if t == s.current {
		s.reachLocked(t, a.Frame.Position.Sequence)
	}
	if !s.readableLocked(t) {
		return
	}
	if frame == nil {
		frame = s.hub.entryOf(a.Frame)
	}
	t.addEphemeral(frame, len(t.parked.list) == t.readers && len(s.former) == 0)
	s.fitLocked(t, hooks)
	s.hub.counts.ephemeral.Add(1)
	t.parked.wake(hooks)
}

// reachLocked has the frames read that an ephemeral one follows.
func (s *stream) reachLocked(t *tail, sequence uint64) {
	if sequence > t.head.Sequence {
		t.ephemerals.reach = max(t.ephemerals.reach, sequence)
		s.queueRefreshLocked()
	}
}

// readableLocked reports whether a subscription that is there may read what comes
// to a tail: it is in the tail, or on its way through former ones.
func (s *stream) readableLocked(t *tail) bool { return t.readers > 0 || len(s.former) > 0 }

// markLocked notes whether the stream carries ephemeral frames. Where they are not
// announced its subscriptions are told once that it does.
func (s *stream) markLocked(ephemeral bool, hooks *hooks) {
	if s.marked || !ephemeral {
		return
	}
	s.marked = true
	if s.current != nil && s.unannouncedLocked() {
		s.tellOutageLocked(s.current, hooks)
	}
}

// unannouncedLocked reports whether the stream carries ephemeral frames that nobody
// gets, because nothing is announced.
func (s *stream) unannouncedLocked() bool { return s.marked && s.hub.cfg.AnnouncesNothing }

// noteOutagesLocked tells the subscriptions of a marked stream of outages that the
// hub has counted and the stream does not know of. It returns true if it told
// them.
func (s *stream) noteOutagesLocked(counted uint64, hooks *hooks) bool {
	if s.outages >= counted {
		return false
	}
	s.outages = counted
	if !s.marked {
		return false
	}
	s.tellAllLocked(hooks)
	return true
}

// tellAllLocked tells the subscriptions in every tail to which ephemeral frames may
// still come that some may have been missed.
func (s *stream) tellAllLocked(hooks *hooks) {
	s.tellOutageLocked(s.current, hooks)
	for _, t := range s.former {
		if t.unended() {
			s.tellOutageLocked(t, hooks)
		}
	}
}

// tellOutageLocked tells the subscriptions in a tail, after what it has, that
// ephemeral frames may have been missed.
func (s *stream) tellOutageLocked(t *tail, hooks *hooks) {
	if s.readableLocked(t) {
		t.ephemerals.addOutage(t.head.Sequence)
		t.parked.wake(hooks)
	}
}
