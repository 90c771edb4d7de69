package sse

import (
	"sync"

	"github.com/fanfare-io/fanfare/clientlib"
)

// batchBytes is after how many bytes a batch is written; one event is always taken. It is
// what a connection that is stuck holds.
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
}

var batches = sync.Pool{New: func() any { return &batch{} }}

// release gives back what only busy connections need.
func (b *batch) release() {
	clear(b.outs)
	b.outs, b.bytes = b.outs[:0], 0
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
