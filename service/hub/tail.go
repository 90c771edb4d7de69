package hub

import (
	"sort"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// entryOverhead is what an entry costs beside its bytes: its own size, its slot
// in the window, and the allocator's rounding.
const entryOverhead = 128

// entry is an encoded frame. It never changes.
type entry struct {
	position backlog.Position
	created  time.Time
	// frame holds the encoded bytes: an array, so that a delivery of one frame
	// needs no slice of its own.
	frame [1][]byte
}

func (e *entry) bytes() int { return len(e.frame[0]) }

// ending says how a tail ended; the zero value is that it did not.
type ending uint8

const (
	// endedClosed: the stream was closed after the head.
	endedClosed ending = iota + 1
	// endedCut: what follows the head in the store is not what would have
	// followed; subscriptions go on in the next tail after a Gap.
	endedCut
)

// tail is the window of the newest frames of one numbering, or waits for a
// numbering to begin. It is guarded by its stream's mutex.
type tail struct {
	// own is the numbering's own epoch; 0 while the tail waits for sequence 1.
	own uint64
	// successorOf is the own epoch of the closed numbering that a waiting tail
	// follows; 0 if there is none.
	successorOf uint64
	// zeroEpoch is the epoch of the position before sequence 1, for subscriptions
	// that waited at 0-0; 0 if it is not known.
	zeroEpoch uint64

	// base is the position before entries[0]; its epoch is 0 if not known. The
	// entries are contiguous and end at head.
	base    backlog.Position
	entries []*entry
	head    backlog.Position
	// ephemerals are the ephemeral frames between and after them.
	ephemerals ephemerals
	// bytes is what all of these cost; counted is how much of it is in the hub's
	// total.
	bytes, counted int

	// start is where subscriptions that come from a cut tail begin.
	start backlog.Position
	// replayable is the base sequence of the last known state: frames at or below
	// are not for new subscriptions.
	replayable uint64

	// announced is the greatest sequence of an announcement that was held; left is
	// what is left out until it is announced, and closeRead since when a close is, too.
	announced uint64
	left      leftOuts
	closeRead time.Time
	// heard is the greatest sequence that the bus has announced of the numbering under
	// this listening: every ephemeral frame that was committed before has come, or never
	// will. What was only read is not heard.
	heard uint64
	// closedAt is where an announcement said the numbering was closed, which is
	// believed once everything up to there has been read.
	closedAt backlog.Position
	// retired is true while the rest of a replaced numbering is being read.
	retired bool
	// closing is since when the close is known from a read, of it or of what replaced
	// the numbering, and closingUnder the listening of that time, while its
	// announcement is awaited; see closeLocked and retireLocked.
	closing      time.Time
	closingUnder uint64
	ending       ending
	// reason and next are those of endedCut; next is also set while retired.
	reason GapReason
	next   *tail

	// readers counts the subscriptions whose cursor is in this tail.
	readers int
	// parked are those which wait at its end, resting those which want no frames; nil
	// if there was never one.
	parked  waiters
	resting *resting
	// pages are those being read or used, by the sequence that they follow.
	pages map[uint64]*page
}

// newTail makes the tail of a numbering from what a load returned. fresh are
// the loaded frames, encoded.
func newTail(l backlog.Loaded, fresh []*entry) *tail {
	t := &tail{
		own:        l.State.OwnEpoch,
		base:       l.Before,
		head:       l.Before,
		start:      l.State.Base,
		replayable: l.State.Base.Sequence,
	}
	t.add(fresh)
	return t
}

// unended reports whether a tail that is no longer current waits for what is left
// of its numbering.
func (t *tail) unended() bool { return t.retired || !t.closing.IsZero() }

// waitingTail makes a tail that waits for the numbering after successorOf.
func waitingTail(successorOf uint64) *tail { return &tail{successorOf: successorOf} }

// add appends those of the entries that are next in line.
func (t *tail) add(entries []*entry) {
	for _, e := range entries {
		if e.position.Sequence != t.head.Sequence+1 {
			continue
		}
		t.entries = append(t.entries, e)
		t.bytes += e.bytes() + entryOverhead
		t.head = e.position
	}
}

// merge takes in what a load returned of the tail's own numbering. If the load
// begins after the head, the window is replaced by the newer one; if it ends
// where the window begins, the window is extended.
func (t *tail) merge(before backlog.Position, fresh []*entry) {
	switch {
	case before.Sequence > t.head.Sequence:
		t.empty()
		t.base, t.head = before, before
	case before.Sequence < t.base.Sequence:
		t.extend(before, fresh)
	case before.Sequence == t.base.Sequence && t.base.Epoch == 0:
		t.base = before
	}
	t.add(fresh)
}

// extend puts the frames up to the base before the window.
func (t *tail) extend(before backlog.Position, fresh []*entry) {
	n := int(min(t.base.Sequence-before.Sequence, uint64(len(fresh))))
	if n == 0 {
		return
	}
	last := fresh[n-1].position
	if last.Sequence != t.base.Sequence || (t.base.Epoch != 0 && last != t.base) {
		return
	}
	t.entries = append(fresh[:n:n], t.entries...)
	for _, e := range fresh[:n] {
		t.bytes += e.bytes() + entryOverhead
	}
	t.base = before
}

// trim drops the oldest of both kinds of frames beyond the bounds, but not the
// newest frame. An outage goes with a frame that came after it.
func (t *tail) trim(maxFrames, maxBytes int) {
	frames, bytes := len(t.entries)+t.ephemerals.frames, t.bytes
	list := t.ephemerals.list
	n, m, dropped := 0, 0, 0 // of the entries; of the list; of the list up to a frame
	for frames > 1 && (frames > maxFrames || bytes > maxBytes) {
		var oldest *entry
		if m == len(list) || n < len(t.entries) && t.entries[n].position.Sequence <= list[m].follows {
			oldest = t.entries[n]
			n++
		} else {
			oldest = list[m].entry
			m++
			if oldest == nil {
				continue
			}
			dropped = m
		}
		bytes -= oldest.bytes() + entryOverhead
		frames--
	}
	t.drop(n)
	t.dropEphemerals(dropped)
}

// drop drops the n oldest entries.
func (t *tail) drop(n int) {
	if n == 0 {
		return
	}
	for i, e := range t.entries[:n] {
		t.bytes -= e.bytes() + entryOverhead
		t.base = e.position
		t.entries[i] = nil // the array outlives the window
	}
	t.entries = t.entries[n:]
	if len(t.entries) == 0 {
		t.entries = nil
	}
}

// empty drops all entries: what is below the head is then read from the store.
func (t *tail) empty() { t.drop(len(t.entries)) }

// at returns the position at a sequence; ok is false if it is outside the
// window or not known.
func (t *tail) at(sequence uint64) (p backlog.Position, ok bool) {
	switch {
	case sequence < t.base.Sequence || sequence > t.head.Sequence:
		return backlog.Position{}, false
	case sequence == t.base.Sequence:
		return t.base, t.base.Epoch != 0
	default:
		return t.entries[sequence-t.base.Sequence-1].position, true
	}
}

// lower returns the sequence after which a new subscription may replay, as far
// as the tail can tell: exact if it is inside the window.
func (t *tail) lower(backlogFrames uint64, notBefore time.Time) uint64 {
	lower := max(t.replayable, minus(t.head.Sequence, backlogFrames))
	if notBefore.IsZero() {
		return lower
	}
	// By sequence, created ascends except where the server's clock stepped, which
	// makes the bound inexact by that step.
	expired := sort.Search(len(t.entries), func(i int) bool { return !t.entries[i].created.Before(notBefore) })
	if expired == 0 {
		return lower
	}
	return max(lower, t.base.Sequence+uint64(expired))
}

// following returns the encoded frames after a sequence inside the window, up
// to the sequence limit and maxBytes, at least one, and the last position.
func (t *tail) following(after, limit uint64, maxBytes int) ([][]byte, backlog.Position) {
	from := t.entries[after-t.base.Sequence:]
	return collect(from, limit, maxBytes)
}

// collect returns the bytes of entries up to the sequence limit and maxBytes,
// at least one.
func collect(from []*entry, limit uint64, maxBytes int) ([][]byte, backlog.Position) {
	n, bytes := 1, from[0].bytes()
	for n < len(from) && from[n].position.Sequence <= limit && bytes+from[n].bytes() <= maxBytes {
		bytes += from[n].bytes()
		n++
	}
	last := from[n-1].position
	if n == 1 {
		return from[0].frame[:], last
	}
	frames := make([][]byte, n)
	for i, e := range from[:n] {
		frames[i] = e.frame[0]
	}
	return frames, last
}

// readAfter returns the position that a page after the cursor names: waiting
// subscriptions stand at 0-0, which in a numbering is its own zero position.
func (t *tail) readAfter(cursor backlog.Position) backlog.Position {
	if cursor.IsZero() {
		return backlog.Position{Epoch: t.zeroEpoch}
	}
	return cursor
}
