package hub

import (
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// announceGrace is how long the announcement of what was read is awaited, where it
// matters: of a close, and of the frames of a stream that carries ephemeral ones.
const announceGrace = time.Second

// leftOut is what one read showed and was not announced.
type leftOut struct {
	upTo  uint64 // the sequence of the head that was read
	since time.Time
}

// leftOuts are the announcements that a tail awaits, in the order of both fields.
type leftOuts []leftOut

// leftOutStep is how far what is left out is told apart, which bounds the list.
const leftOutStep = announceGrace / 8

func (l *leftOuts) add(upTo uint64, now time.Time) {
	last := len(*l) - 1
	switch {
	case last >= 0 && (*l)[last].upTo >= upTo:
	case last >= 0 && now.Sub((*l)[last].since) < leftOutStep:
		(*l)[last].upTo = upTo
	default:
		*l = append(*l, leftOut{upTo, now})
	}
}

// settle drops what has been announced since.
func (l *leftOuts) settle(announced uint64) {
	for len(*l) > 0 && (*l)[0].upTo <= announced {
		*l = (*l)[1:]
	}
	if len(*l) == 0 {
		*l = nil
	}
}

// overdue reports whether the oldest was left out a grace before a time.
func (l leftOuts) overdue(at time.Time) bool { return len(l) > 0 && isOverdue(l[0].since, at) }

// isOverdue reports whether what is awaited since a time, if that is not zero, has
// been for the grace.
func isOverdue(since, at time.Time) bool {
	return !since.IsZero() && at.Sub(since) >= announceGrace+leftOutStep
}

// announcedTo is the sequence up to which the tail's numbering was announced: by
// frames and pointers, by a close, and by ephemeral frames that follow them.
func (t *tail) announcedTo() uint64 {
	return max(t.head.Sequence, t.announced, t.ephemerals.reach)
}

// hear notes an announcement of the tail's numbering. One of an ephemeral frame tells
// no more than that of the frame which it follows.
func (t *tail) hear(a *backlog.Announcement) {
	if t.own != 0 && t.own == a.OwnEpoch && a.Kind != backlog.AnnounceEphemeral {
		t.heard = max(t.heard, a.Frame.Position.Sequence)
	}
}

// announcedOf is announcedTo of a numbering that has no tail yet, as held announcements
// tell.
func (h *held) announcedOf(own uint64) (upTo uint64) {
	for i := range h.list {
		if a := &h.list[i]; a.OwnEpoch == own {
			upTo = max(upTo, a.Frame.Position.Sequence)
		}
	}
	return upTo
}

// leaveOutLocked returns what of a load is taken in, with its frames encoded. It is
// all of it, unless the load overtook announcements: of frames that were committed
// after an ephemeral one, which would come too late. Then that is left out until it
// is announced. What was left out for the grace may never be; that is taken in, and
// so is all of the first load under a listening, and the subscriptions are told of
// an outage. told is true if they just have been.
func (s *stream) leaveOutLocked(k known, l backlog.Loaded, fresh []*entry, listening uint64, told bool, hooks *hooks) (backlog.Loaded, []*entry, bool) {
	t := s.current
	upTo, overtook := s.overtookLocked(k, l)
	switch {
	case !overtook:
		t.left = nil
		return l, fresh, told
	case told, t.own != 0 && t.left.overdue(k.began), s.confirmed != listening:
		if !told {
			s.tellOutageLocked(t, hooks)
		}
		t.left = nil
		return l, fresh, true
	}
	for len(fresh) > 0 && fresh[len(fresh)-1].position.Sequence > upTo.Sequence {
		fresh = fresh[:len(fresh)-1]
	}
	return loadedTo(l, upTo), fresh, told
}

// overtookLocked reports whether a load shows what was not announced, and how far
// it may be taken in. That is not asked where no ephemeral frame can be late, or
// nobody reads them.
func (s *stream) overtookLocked(k known, l backlog.Loaded) (upTo backlog.Position, overtook bool) {
	t := s.current
	if !l.State.Exists || !s.lateLocked(t) || (t.own == 0 && t.successorOf == l.State.OwnEpoch) {
		return upTo, false
	}
	// The second is for a load that begins after what is announced: the position is
	// among those that were asked for.
	sequences := [2]uint64{s.held.announcedOf(l.State.OwnEpoch), 0}
	if t.own == l.State.OwnEpoch {
		sequences = [2]uint64{t.announcedTo(), max(k.announced, t.head.Sequence)}
		t.left.settle(sequences[0])
	}
	if sequences[0] >= l.State.Head.Sequence {
		return upTo, false
	}
	if _, cut := cutReason(k.head, l); cut && t.own == l.State.OwnEpoch {
		return upTo, false
	}
	for _, sequence := range sequences {
		upTo = positionIn(l, sequence)
		if upTo.Epoch == 0 && t.own == l.State.OwnEpoch && sequence == t.head.Sequence {
			upTo = t.head
		}
		if upTo.Epoch != 0 {
			return upTo, true
		}
	}
	return upTo, false // gone, and what follows it maybe, too
}

// loadedTo returns a load as it would have been when a position was the head.
func loadedTo(l backlog.Loaded, head backlog.Position) backlog.Loaded {
	l.State.Head, l.State.Closed = head, false
	if l.State.Base.Sequence > head.Sequence {
		l.State.Base = head
	}
	if l.Before.Sequence >= head.Sequence {
		l.Before, l.Frames = head, nil
	} else {
		l.Frames = l.Frames[:head.Sequence-l.Before.Sequence]
	}
	return l
}

// awaitLocked notes what the current tail lacks of a load, and has the stream read
// again if that is not announced.
func (s *stream) awaitLocked(l backlog.Loaded) {
	if !s.lacksLocked(l) {
		return
	}
	t, now := s.current, time.Now()
	t.left.add(l.State.Head.Sequence, now)
	if l.State.Closed && t.closeRead.IsZero() {
		t.closedAt, t.closeRead = l.State.Head, now
	}
	s.watchLocked()
}

// lacksLocked reports whether the current tail was left behind a load.
func (s *stream) lacksLocked(l backlog.Loaded) bool {
	t := s.current
	return t.own != 0 && t.own == l.State.OwnEpoch && t.head.Sequence < l.State.Head.Sequence
}

// leftOutLocked reports whether what is announced was left out of a load.
func (s *stream) leftOutLocked(a *heldAnnouncement, l backlog.Loaded) bool {
	sequence := a.Frame.Position.Sequence
	return a.frame == nil && a.OwnEpoch == l.State.OwnEpoch && s.lacksLocked(l) &&
		sequence > s.current.head.Sequence && sequence <= l.State.Head.Sequence
}

// watchLocked has the scheduler look after what the stream awaits.
func (s *stream) watchLocked() {
	if !s.watched {
		s.watched = true
		s.hub.watched.push(s)
	}
}

// overdue reports whether the stream still awaits announcements of what was read,
// and whether it has to be read again because one may never come.
func (s *stream) overdue(now time.Time) (awaits, overdue bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.current; t != nil && !s.removed {
		t.left.settle(t.announcedTo())
		awaits = len(t.left) > 0 || !t.closeRead.IsZero()
		overdue = t.left.overdue(now) || isOverdue(t.closeRead, now)
		for _, f := range s.former {
			awaits = awaits || !f.closing.IsZero()
			overdue = overdue || isOverdue(f.closing, now)
		}
	}
	s.watched = awaits && !overdue
	return awaits, overdue
}

// overdueOf returns those of the watched streams that are to be read again, and
// those that are still to be watched.
func overdueOf(watched []*stream) (overdue, still []*stream) {
	now := time.Now()
	for _, s := range watched {
		switch awaits, late := s.overdue(now); {
		case late:
			overdue = append(overdue, s)
		case awaits:
			still = append(still, s)
		}
	}
	return overdue, still
}

// placement is a subscription that was judged by a load of which frames were left
// out: it is placed once the tail has them. The verdict stands under the listening of
// the load only: another server may have lost what it was about.
type placement struct {
	*pending
	verdict   Verdict
	state     backlog.StreamState
	tail      *tail
	listening uint64
}

// placeReachedLocked places who waits for what was left out, as far as the tail has
// it. Those for whom the verdict does not stand any more wait for a load.
func (s *stream) placeReachedLocked(hooks *hooks) {
	if len(s.placements) == 0 {
		return
	}
	waiting, listening := s.placements[:0], s.hub.listened.Load()
	for _, p := range s.placements {
		switch {
		case p.listening < listening:
			s.judgeAnewLocked(p)
		case p.tail == s.current && p.tail.head.Sequence < p.state.Head.Sequence:
			waiting = append(waiting, p)
		case p.tail == s.current && !p.state.Closed:
			p.place(s.verdictLocked(p.verdict, p.state), hooks)
		default:
			s.judgeAnewLocked(p)
		}
	}
	clear(s.placements[len(waiting):])
	s.placements = waiting
}

// judgeAnewLocked has a subscription wait for a load, as if it had just come.
func (s *stream) judgeAnewLocked(p placement) {
	if !p.sub.closed {
		s.pending = append(s.pending, p.pending)
		s.queueLoadLocked()
	}
}

// giveUpPlacements has those that wait for announcements wait for a load instead,
// which fails in time if there is no listening any more.
func (s *stream) giveUpPlacements() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.placements {
		s.judgeAnewLocked(p)
	}
	s.placements = nil
}
