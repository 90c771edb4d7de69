package hub

import (
	"slices"
	"sync"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// stream is a resident stream.
type stream struct {
	hub  *Hub
	name backlog.StreamName

	// references counts subscriptions, pending ones too; idleSince is when it
	// last became 0. Both are guarded by Hub.mu.
	references int
	idleSince  time.Time

	// mu guards everything below, and the tails, subscriptions and pages of the
	// stream.
	mu sync.Mutex
	// current is the tail that subscriptions without a position start in; nil
	// until the first load.
	current *tail
	// closed is the numbering that the stream had, while it is closed.
	closed *tail
	// former are tails that are no longer current and still have entries or
	// readers; closed is one of them.
	former []*tail
	// state is the last one known; its Head and Closed follow the tail. notBefore
	// came with it, at stateRead.
	state     backlog.StreamState
	notBefore time.Time
	stateRead time.Time
	// confirmed is the number of the listening under which the current tail was
	// last read, and origin that listening's.
	confirmed, origin uint64
	// marked is true if the stream has ever carried an ephemeral frame; outages is
	// how many of those that the hub has counted its subscriptions were told of.
	marked  bool
	outages uint64
	// reads is how many reads have begun; newest is the number of the last begun of
	// those that were taken in.
	reads, newest uint64
	// held are announcements that a read must explain.
	held held
	// ended are numberings that are over.
	ended endedNumberings
	// pending are subscriptions that wait for a load, placements those that were
	// judged by one and wait for the tail to reach it.
	pending    []*pending
	placements []placement
	// abandoned is at least how many of pending have been closed.
	abandoned int
	// loadQueued and refreshQueued are true while the stream is in that queue.
	loadQueued, refreshQueued bool
	// refreshWanted is true if the stream is to be read even if nothing is held.
	refreshWanted bool
	// watched is true while the scheduler looks after what is awaited.
	watched bool
	// removed is true once the stream is no longer in the map.
	removed bool
	// used is when the stream was last announced or subscribed to.
	used time.Time
	// roster has the subscriptions.
	roster roster
}

// moment is when an announcement came.
type moment struct {
	// origin is that of the current listening.
	origin uint64
	// outages is how many the hub had counted.
	outages uint64
}

// announce takes in an announcement.
func (s *stream) announce(a *backlog.Announcement, at moment, hooks *hooks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return
	}
	s.announceLocked(a, nil, at, hooks)
}

// announceLocked takes in an announcement. If it is of an ephemeral frame that was
// held, frame is that; otherwise it is nil.
func (s *stream) announceLocked(a *backlog.Announcement, frame *entry, at moment, hooks *hooks) {
	t, p := s.current, a.Frame.Position
	if t != nil {
		t.hear(a)
	}
	switch {
	case t == nil:
		s.keepLocked(a, frame, at)
	case a.OwnEpoch != t.own && s.unendedLocked(a.OwnEpoch) != nil:
		s.announceFormerLocked(s.unendedLocked(a.OwnEpoch), a, frame, at, hooks)
	case a.OwnEpoch != 0 && a.OwnEpoch != t.own && s.ended.has(a.OwnEpoch):
		// Late: that numbering has ended, after everything in it.
	case t.own == 0 || a.OwnEpoch != t.own:
		s.holdLocked(a, frame, at)
	case s.origin != at.origin:
		// Another server than the tail was read from: it may have lost commits, and
		// until that is known nothing is next in line.
		s.holdLocked(a, frame, at)
	case a.Kind == backlog.AnnounceClosed:
		s.announceClosedLocked(a, at, hooks)
	case a.Kind == backlog.AnnounceEphemeral:
		s.announceEphemeralLocked(t, a, frame, at, hooks)
	case a.Origin != at.origin:
		s.holdLocked(a, nil, at)
	case p.Sequence <= t.head.Sequence:
		// Seen.
	case a.Kind == backlog.AnnounceFrame && p == backlog.Position{Epoch: t.own ^ at.origin, Sequence: t.head.Sequence + 1}:
		s.appendLocked(t, a, hooks)
	default:
		s.holdLocked(a, nil, at)
	}
}

// unendedLocked returns the tail of a numbering that is over, whose end waits
// for what is left of it.
func (s *stream) unendedLocked(own uint64) *tail {
	for _, t := range s.former {
		if t.own == own && t.unended() {
			return t
		}
	}
	return nil
}

// announceFormerLocked takes in what is announced of a numbering that is over.
// Its durable frames are read.
func (s *stream) announceFormerLocked(t *tail, a *backlog.Announcement, frame *entry, at moment, hooks *hooks) {
	s.noteOutagesLocked(at.outages, hooks)
	switch {
	case a.Kind == backlog.AnnounceEphemeral:
		s.announceEphemeralLocked(t, a, frame, at, hooks)
	case a.Kind != backlog.AnnounceClosed:
	case t.retired:
		t.closedAt = a.Frame.Position
		if !t.closing.IsZero() {
			t.closing = time.Time{}
			s.readRestLocked(t)
		}
	default:
		s.endLocked(t, endedClosed, hooks)
	}
}

// appendLocked appends the frame that is next in line.
func (s *stream) appendLocked(t *tail, a *backlog.Announcement, hooks *hooks) {
	t.add([]*entry{s.hub.entryOf(a.Frame)})
	s.fitLocked(t, hooks)
	s.used = time.Now()
	s.hub.counts.appended.Add(1)
	t.parked.wake(hooks)
	s.placeReachedLocked(hooks)
}

// announceClosedLocked ends the tail if it has everything before the close, and no
// outage is left to be told.
func (s *stream) announceClosedLocked(a *backlog.Announcement, at moment, hooks *hooks) {
	t, last := s.current, a.Frame.Position
	if last == t.head && s.outages >= at.outages {
		s.closeLocked(t, true, hooks)
		return
	}
	if last.Sequence > t.head.Sequence {
		t.closedAt = last
	}
	s.holdLocked(a, nil, at)
}

// holdLocked keeps an announcement for the read that explains it.
func (s *stream) holdLocked(a *backlog.Announcement, frame *entry, at moment) {
	if t := s.current; t.own != 0 && t.own == a.OwnEpoch {
		t.announced = max(t.announced, a.Frame.Position.Sequence)
	}
	s.keepLocked(a, frame, at)
	s.queueRefreshLocked()
}

// keepLocked keeps an announcement for a read that is to come.
func (s *stream) keepLocked(a *backlog.Announcement, frame *entry, at moment) {
	if a.Kind != backlog.AnnounceEphemeral {
		s.held.add(a, at)
		return
	}
	if frame == nil {
		frame = s.hub.entryOf(a.Frame)
	}
	s.used = time.Now()
	missed := s.held.addEphemeral(a, frame, at, s.hub.cfg.TailFrames, s.hub.cfg.TailBytes)
	s.hub.counts.missed.Add(uint64(missed))
	s.settleHeldLocked()
}

// closeLocked ends the current tail after its head and waits for the next
// numbering. settled is true if no ephemeral frame of the tail can come any more,
// or its subscriptions have just been told that they may miss some. Otherwise the
// close is known from a read, which may have overtaken ephemeral frames committed
// before: the end waits for the announcement.
func (s *stream) closeLocked(t *tail, settled bool, hooks *hooks) {
	s.state.Closed, s.state.EverClosed, s.state.Head = true, true, t.head
	s.forgetClosedLocked()
	s.closed = t
	s.current = waitingTail(t.own)
	waits := !settled && s.lateLocked(t)
	s.former = append(s.former, t)
	s.placeReachedLocked(hooks)
	if waits {
		s.awaitCloseLocked(t)
		return
	}
	s.endLocked(t, endedClosed, hooks)
}

// lateLocked reports whether ephemeral frames may come to a tail later than a read
// shows what follows them.
func (s *stream) lateLocked(t *tail) bool {
	return s.marked && !s.hub.cfg.AnnouncesNothing && s.readableLocked(t)
}

// awaitCloseLocked awaits the announcement of a close that was read.
func (s *stream) awaitCloseLocked(t *tail) {
	t.closing, t.closingUnder = time.Now(), s.hub.listened.Load()
	if !t.closeRead.IsZero() {
		t.closing = t.closeRead
	}
	s.watchLocked()
}

// endOverdueLocked ends tails whose close was never announced, and will not be, or
// has what is left of them read.
func (s *stream) endOverdueLocked(listening uint64, hooks *hooks) {
	for _, t := range slices.Clone(s.former) {
		if t.closing.IsZero() || (t.closingUnder == listening && !isOverdue(t.closing, time.Now())) {
			continue
		}
		s.tellOutageLocked(t, hooks)
		if t.retired {
			t.closing = time.Time{}
			s.readRestLocked(t)
			continue
		}
		s.endLocked(t, endedClosed, hooks)
	}
}

// forgetClosedLocked gives up the closed numbering, because the stream was
// opened again or is gone.
func (s *stream) forgetClosedLocked() {
	if t := s.closed; t != nil {
		s.closed = nil
		s.giveUpLocked(t)
	}
}

// endLocked ends a tail that is in former.
func (s *stream) endLocked(t *tail, how ending, hooks *hooks) {
	t.retired, t.closing, t.ending = false, time.Time{}, how
	if t.own != 0 {
		s.ended.add(t.own)
	}
	t.parked.wake(hooks)
	s.giveUpLocked(t)
}

// giveUpLocked lets go of a tail that nobody reads and nobody may start in.
func (s *stream) giveUpLocked(t *tail) {
	if t == s.current || t == s.closed || t.readers > 0 {
		return
	}
	t.empty()
	t.emptyEphemerals()
	s.settleLocked(t)
	if i := slices.Index(s.former, t); i >= 0 {
		s.former = slices.Delete(s.former, i, i+1)
	}
}

// settleLocked brings the hub's total up to date with a tail.
func (s *stream) settleLocked(t *tail) {
	s.hub.addTailBytes(t.bytes - t.counted)
	t.counted = t.bytes
}

// settleHeldLocked does so with the ephemeral frames that are held.
func (s *stream) settleHeldLocked() {
	s.hub.addTailBytes(s.held.ephemeral.bytes - s.held.counted)
	s.held.counted = s.held.ephemeral.bytes
}

// shrink empties the stream's tails, gives up the ephemeral frames that are held, and returns the bytes that were freed.
func (s *stream) shrink() int {
	var hooks hooks
	defer hooks.call()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shrinkLocked(&hooks)
}

func (s *stream) shrinkLocked(hooks *hooks) int {
	freed := s.held.ephemeral.bytes
	s.hub.counts.missed.Add(uint64(s.held.giveUpEphemerals()))
	s.settleHeldLocked()
	for _, t := range append(slices.Clone(s.former), s.current) {
		if t == nil {
			continue
		}
		freed += t.bytes
		t.empty()
		t.emptyEphemerals()
		t.wakeLostLocked(hooks)
		s.settleLocked(t)
	}
	return freed
}

// remove frees a stream that is no longer in the map and has no subscription.
func (s *stream) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = true
	s.held = held{counted: s.held.counted}
	s.shrinkLocked(&hooks{}) // nobody waits
}

func (s *stream) queueLoadLocked() {
	if !s.loadQueued {
		s.loadQueued = true
		s.hub.loads.push(s)
	}
}

// queueRefreshLocked queues a refresh, unless the stream is loading: then the
// load reads it, or is repeated.
func (s *stream) queueRefreshLocked() {
	if s.markRefreshLocked() {
		s.hub.refreshes.push(s)
	}
}

// markRefreshLocked reports whether the stream is to be put into the queue of
// refreshes.
func (s *stream) markRefreshLocked() bool {
	if s.refreshQueued || s.current == nil || s.removed {
		return false
	}
	s.refreshQueued = true
	return true
}

// wantRefresh has the stream read whatever is known of it, and reports whether
// it is to be put into the queue of refreshes.
func (s *stream) wantRefresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshWanted = true
	return s.markRefreshLocked()
}

// refreshDueLocked reports whether a queued refresh is still needed: what was
// held may have been explained by a read that was in flight.
func (s *stream) refreshDueLocked() bool {
	return s.refreshWanted || !s.held.explained() || (s.current != nil && s.current.ephemerals.reach > s.current.head.Sequence)
}
