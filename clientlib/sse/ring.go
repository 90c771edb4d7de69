package sse

import (
	"sort"

	"github.com/fanfare-io/fanfare/clientlib"
)

// kind is what an entry is.
type kind uint8

const (
	durable kind = iota
	ephemeral
	// loss is a Gap that moves the position.
	loss
	// missed is a Gap of ephemeral frames only.
	missed
	status
	// closed is only in pages: a ring's relay tells of it.
	closed
)

// ofNumbering reports whether an entry has its place among durable frames: who comes to
// the ring behind it has had it. The others are for everybody who was there when they
// came.
func (k kind) ofNumbering() bool { return k == durable || k == loss || k == closed }

// entry is an event of a stream, encoded for all who get it. It does not change once it
// can be seen, but for blocks that are added under the relay's mutex.
type entry struct {
	kind kind
	// after is the position after it.
	after clientlib.Position
	// frame is nil if it is none.
	frame *clientlib.Frame
	// blocks are the event in each form; nil in one that nobody has asked for.
	blocks [forms][]byte
	size   int
	// holders are the connections that write it from a ring, if it is large, and lent what
	// the budget counts for it, whose mutex guards them.
	holders, lent int
}

// entryOverhead is about what an entry takes beside its bytes.
const entryOverhead = 256

// newEntry encodes a frame in the forms wanted.
func newEntry(stream clientlib.Stream, f *clientlib.Frame, after clientlib.Position, wanted [forms]bool) *entry {
	e := &entry{kind: durable, after: after, frame: f, size: entryOverhead + len(f.Payload)}
	if f.Ephemeral {
		e.kind = ephemeral
	}
	for as, want := range wanted {
		if want {
			e.encode(stream, form(as)) //nolint:gosec // one of two
		}
	}
	return e
}

// newNotice is an entry whose block is the same in all forms.
func newNotice(k kind, after clientlib.Position, block []byte) *entry {
	return &entry{kind: k, after: after, blocks: [forms][]byte{block, block}, size: entryOverhead + len(block)}
}

// encode adds a form and returns by how much the entry grew.
func (e *entry) encode(stream clientlib.Stream, as form) int {
	if e.frame == nil || e.blocks[as] != nil {
		return 0
	}
	e.blocks[as] = frameBlock(stream, e.frame, as)
	e.size += len(e.blocks[as])
	return len(e.blocks[as])
}

func (e *entry) isPassing() bool { return e.kind == ephemeral || e.kind == missed }

// ring has the newest entries of a stream. They are counted from its beginning: entry
// number base is the oldest there, and end is that of the next.
type ring struct {
	entries   []*entry
	base, end uint64
	bytes     int
	// since is the number of the first entry of the current numbering, and before the
	// position before the oldest entry of it that is there. Only in it positions are
	// found: others are judged by a server.
	since  uint64
	before clientlib.Position
	// reopens is true if the stream was closed when 0-0 became before: then 0-0 may
	// be from before that numbering, which a server judges.
	reopens bool
	// passing is the number after the newest entry that is nowhere else: an ephemeral
	// frame, or a notice of such. lost is the same of those that nobody who is placed now
	// will get: they were dropped, or are of an earlier numbering.
	passing, lost uint64
}

// restart begins a numbering at a position.
func (r *ring) restart(at clientlib.Position, reopens bool) {
	r.since, r.before, r.reopens, r.lost = r.end, at, reopens, r.passing
}

func (r *ring) add(e *entry) {
	r.entries = append(r.entries, e)
	r.end++
	r.bytes += e.size
	if e.isPassing() {
		r.passing = r.end
	}
}

// trim drops the oldest entries until limit bytes are left, or the newest entry alone.
func (r *ring) trim(limit int) {
	for r.bytes > limit && len(r.entries) > 1 {
		r.drop()
	}
}

// empty drops all.
func (r *ring) empty() {
	for len(r.entries) > 0 {
		r.drop()
	}
}

func (r *ring) drop() {
	e := r.entries[0]
	r.entries[0] = nil
	if r.entries = r.entries[1:]; len(r.entries) == 0 {
		r.entries = nil
	}
	switch {
	case e.isPassing():
		r.lost = max(r.lost, r.base+1)
	case e.kind == durable && r.base >= r.since:
		r.before, r.reopens = e.after, false
	}
	r.base++
	r.bytes -= e.size
}

func (r *ring) at(number uint64) *entry { return r.entries[number-r.base] }

// find returns the number of the entry that follows a position; ok is false if the ring
// does not tell. judged is true if a server took the position a moment ago.
func (r *ring) find(p clientlib.Position, judged bool) (number uint64, ok bool) {
	if r.isBefore(p, judged) {
		return max(r.since, r.base), true
	}
	number, ok = r.findFrame(p)
	return number + 1, ok
}

// isBefore reports whether a position is the one before the oldest entry. That of a
// stream without durable frames has an epoch from its first ephemeral frame on.
func (r *ring) isBefore(p clientlib.Position, judged bool) bool {
	if p == r.before {
		return judged || !r.reopens
	}
	return judged && p.Sequence == 0 && r.before.Sequence == 0 && (p.Epoch == 0 || r.before.Epoch == 0)
}

// findFrame returns the number of a durable frame.
func (r *ring) findFrame(p clientlib.Position) (number uint64, ok bool) {
	first := max(r.since, r.base)
	n := r.end - first
	i := uint64(sort.Search(int(n), func(i int) bool { //nolint:gosec // entries in memory
		return r.at(first+uint64(i)).after.Sequence >= p.Sequence //nolint:gosec // not negative
	}))
	// An entry of another kind has the position of the frame before it. If it is the
	// first with this sequence, that frame is not in the ring.
	if i == n {
		return 0, false
	}
	e := r.at(first + i)
	return first + i, e.kind == durable && e.after == p
}
