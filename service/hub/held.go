package hub

import (
	"slices"

	"github.com/fanfare-io/fanfare/backlog"
)

// Bounds of the durable announcements that are held for one stream. They are a
// convenience: without them a busy stream would be read again and again, because
// each read would end behind what was announced meanwhile. Ephemeral frames, which
// no read brings, are bounded as a tail is.
const (
	maxHeld      = 128
	maxHeldBytes = 256 << 10
)

// held are the announcements of one stream that did not fit its tail, numbered
// in their order. A read that begins after an announcement arrived sees what it
// told of; the others are taken in again after the read. Ephemeral frames, which
// no read sees, are always taken in.
type held struct {
	list []heldAnnouncement
	// durable and ephemeral are bounded apart from each other.
	durable, ephemeral heldSize
	// counted is how much of the bytes of ephemeral frames is in the hub's total.
	counted int
	// count is the number of the last announcement that was held.
	count uint64
	// missed is true if ephemeral frames were given up for want of room.
	missed bool
}

type heldAnnouncement struct {
	number  uint64
	outages uint64 // when it came
	backlog.Announcement
	// frame is an ephemeral frame, of which the announcement keeps the position.
	frame *entry
}

type heldSize struct{ count, bytes int }

// lacks reports whether there is no room for so many bytes more.
func (h heldSize) lacks(bytes, maxCount, maxBytes int) bool {
	return h.count >= maxCount || (h.count > 0 && h.bytes+bytes > maxBytes)
}

// add holds an announcement of something durable. If there is no room for it the
// older ones are given up: the read that explains this one sees them, too.
func (h *held) add(a *backlog.Announcement, at moment) {
	kept := *a
	if len(kept.Frame.Payload) > maxHeldBytes/4 {
		// As if it had not been carried.
		kept.Frame = backlog.Frame{Position: kept.Frame.Position}
		kept.Kind = backlog.AnnouncePointer
	}
	bytes := len(kept.Frame.Payload)
	if h.durable.lacks(bytes, maxHeld, maxHeldBytes) {
		h.giveUp(&h.durable, func(a *heldAnnouncement) bool { return a.frame == nil })
	}
	h.append(&h.durable, bytes, heldAnnouncement{outages: at.outages, Announcement: kept})
}

// addEphemeral holds an ephemeral frame. If there is no room for it the older ones
// are missed; it returns how many.
func (h *held) addEphemeral(a *backlog.Announcement, frame *entry, at moment, maxFrames, maxBytes int) (missed int) {
	kept := *a
	kept.Frame = backlog.Frame{Position: a.Frame.Position}
	bytes := frame.bytes() + entryOverhead
	if h.ephemeral.lacks(bytes, maxFrames, maxBytes) {
		missed = h.giveUpEphemerals()
	}
	h.append(&h.ephemeral, bytes, heldAnnouncement{outages: at.outages, Announcement: kept, frame: frame})
	return missed
}

// giveUpEphemerals gives up the ephemeral frames, which are then missed, and returns
// how many they were.
func (h *held) giveUpEphemerals() (missed int) {
	if missed = h.ephemeral.count; missed > 0 {
		h.missed = true
		h.giveUp(&h.ephemeral, func(a *heldAnnouncement) bool { return a.frame != nil })
	}
	return missed
}

func (h *held) giveUp(size *heldSize, which func(*heldAnnouncement) bool) {
	h.list = slices.DeleteFunc(h.list, func(a heldAnnouncement) bool { return which(&a) })
	*size = heldSize{}
}

func (h *held) append(size *heldSize, bytes int, a heldAnnouncement) {
	h.count++
	size.count++
	size.bytes += bytes
	a.number = h.count
	h.list = append(h.list, a)
}

// take returns what is held and holds nothing.
func (h *held) take() []heldAnnouncement {
	list := h.list
	h.list, h.durable, h.ephemeral = nil, heldSize{}, heldSize{}
	return list
}

// explained reports whether there is nothing to be explained, or told.
func (h *held) explained() bool { return len(h.list) == 0 && !h.missed }

// firstOf returns an announcement of the beginning of a numbering, the earliest
// held of those wanted: its first frame, or an ephemeral one before that. nil if
// there is none.
func (h *held) firstOf(wanted func(own uint64) bool) *backlog.Announcement {
	for i := range h.list {
		a := &h.list[i]
		if a.begins() && wanted(a.OwnEpoch) {
			return &a.Announcement
		}
	}
	return nil
}

func (a *heldAnnouncement) begins() bool {
	switch a.Kind {
	case backlog.AnnounceClosed:
		return false
	case backlog.AnnounceEphemeral:
		return a.Frame.Position.Sequence == 0
	default:
		return a.Frame.Position.Sequence == 1
	}
}

// closeOf returns where a numbering was closed, as held announcements tell; 0-0
// if they do not.
func (h *held) closeOf(own uint64) backlog.Position {
	for i := range h.list {
		if a := &h.list[i]; a.Kind == backlog.AnnounceClosed && a.OwnEpoch == own {
			return a.Frame.Position
		}
	}
	return backlog.Position{}
}

// endedNumberings remembers the own epochs of the numberings whose end a stream
// saw most recently: an announcement that comes so late tells nothing.
type endedNumberings struct {
	own  [8]uint64
	next int
}

func (e *endedNumberings) add(own uint64) {
	e.own[e.next] = own
	e.next = (e.next + 1) % len(e.own)
}

func (e *endedNumberings) has(own uint64) bool { return slices.Contains(e.own[:], own) }

// outagesOr returns how many outages there had been when the first ephemeral frame
// was held; counted if none is.
func (h *held) outagesOr(counted uint64) uint64 {
	for i := range h.list {
		if a := &h.list[i]; a.frame != nil {
			return min(a.outages, counted)
		}
	}
	return counted
}

// explainHeldLocked goes through what was held, after a read that began in the
// state k: of what was held by then, what is not there now never was; the others
// are taken in as if they came now. Ephemeral frames are taken in if there is a
// tail of their numbering, each after the outages before it.
func (s *stream) explainHeldLocked(k known, l backlog.Loaded, origin uint64, hooks *hooks) {
	if s.held.missed {
		s.held.missed, s.marked = false, true
		s.tellAllLocked(hooks)
	}
	list := s.held.take()
	s.settleHeldLocked()
	for len(list) > 0 && list[0].number <= k.held {
		a := &list[0]
		if s.leftOutLocked(a, l) {
			break // to be read, with what follows
		}
		list = list[1:]
		if !s.explainedLocked(a, moment{origin, a.outages}, hooks) {
			s.dropLocked(&a.Announcement)
		}
	}
	s.noteOutagesLocked(k.outages, hooks)
	for i := range list {
		s.announceLocked(&list[i].Announcement, list[i].frame, moment{origin, list[i].outages}, hooks)
	}
}

// explainedLocked takes in what a read does not show: ephemeral frames, and the
// close of a tail whose end waits for it.
func (s *stream) explainedLocked(a *heldAnnouncement, at moment, hooks *hooks) bool {
	if t := s.unendedLocked(a.OwnEpoch); t != nil {
		s.announceFormerLocked(t, &a.Announcement, a.frame, at, hooks)
		return a.frame != nil
	}
	if a.frame == nil || s.current.own == 0 || s.current.own != a.OwnEpoch {
		return false
	}
	s.announceEphemeralLocked(s.current, &a.Announcement, a.frame, at, hooks)
	return true
}

// dropLocked logs an announcement if it told of a frame that is not there. What
// tells of another numbering than the current one may just be late.
func (s *stream) dropLocked(a *backlog.Announcement) {
	t := s.current
	current := a.OwnEpoch == t.own || (t.own == 0 && !s.knewLocked(a.OwnEpoch))
	if a.Kind == backlog.AnnounceClosed || !current || a.Frame.Position.Sequence <= t.head.Sequence {
		return
	}
	t.heard = 0 // as far as it was heard before is not known any more
	id := a.RowID
	if id == "" {
		id = a.Frame.Position.String()
	}
	s.hub.counts.dropped.Add(1)
	s.hub.log.Warn("channel dropped "+id, "channel", s.name.Channel, "scope", s.name.Scope, "position", a.Frame.Position.String())
}

// knewLocked reports whether a numbering is one that is over, or is being read
// to its end.
func (s *stream) knewLocked(own uint64) bool {
	return s.ended.has(own) || s.unendedLocked(own) != nil
}
