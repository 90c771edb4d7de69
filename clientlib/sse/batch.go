package sse

import (
	"sync"

	"github.com/fanfare-io/fanfare/clientlib"
)

// batchBytes is after how many bytes a batch is written; one event is always taken. A
// connection that is stuck holds two or three times as much, and one event more that may be
// larger. That is of a page or was lent by the budget, which bounds what all hold of these
// together ([Config.MaxReplayBytes]).
const batchBytes = 16 << 10

// outKind is how an event is sent.
type outKind uint8

const (
	// frame has the id after it.
	frame outKind = iota
	// passing is an ephemeral frame: it has none.
	passing
	// notice has none.
	notice
	// gap moves the position: a bare id follows.
	gap
	// missedGap is a gap that moves nothing.
	missedGap
)

// out is an event on its way to a connection.
type out struct {
	kind   outKind
	stream int
	// after is the stream's position after it.
	after clientlib.Position
	block []byte
}

// batch is what is written at once.
type batch struct {
	outs  []out
	bytes int
	// text is what is written of it.
	text []byte
	// spent are pages whose last events are in it.
	spent []*page
	// lent is an entry of a ring that is in it, by lender, if that is large.
	lent   *entry
	lender *budget
}

var batches = sync.Pool{New: func() any { return &batch{} }}

// reset makes it empty, after it was written.
func (b *batch) reset() {
	clear(b.outs)
	b.outs, b.bytes = b.outs[:0], 0
	for _, p := range b.spent {
		p.release()
	}
	clear(b.spent)
	b.spent = b.spent[:0]
	if b.lent != nil {
		b.lender.takeBack(b.lent)
		b.lent = nil
	}
}

// borrow has the batch hold a large entry of a ring, if there is room. It takes no other then.
func (b *batch) borrow(from *budget, e *entry) bool {
	if !from.lend(e) {
		return false
	}
	b.lent, b.lender = e, from
	return true
}

// release gives back what only busy connections need.
func (b *batch) release() {
	b.reset()
	if cap(b.text) > 2*batchBytes {
		b.text = nil
	}
	batches.Put(b)
}

func (b *batch) room() bool { return b.bytes < batchBytes }

func (b *batch) add(c *cursor, kind outKind, block []byte) {
	b.outs = append(b.outs, out{kind, c.index, c.position, block})
	b.bytes += len(block)
}
