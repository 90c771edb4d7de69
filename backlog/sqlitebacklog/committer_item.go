package sqlitebacklog

import (
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"maps"

	"github.com/fanfare-io/fanfare/backlog"
)

// itemState says who may answer an item.
type itemState uint8

const (
	itemNew      itemState = iota // not queued yet: submit
	itemWaiting                   // in the queue: whoever removes it
	itemInFlight                  // in a transaction: whoever settles it, or its caller's context
	itemAnswered                  // nobody
)

// An item is what one caller wants: a publication, an atomic batch of them, or
// the close of a stream.
type item struct {
	// publications are one or, of a batch, several; none for a close.
	publications []publication
	atomic       bool
	closing      *closing
	size         int64
	// refusal is why the transaction did not do what was wanted. It and the
	// outcomes are the transaction's until the item is settled.
	refusal error
	// done is called once, without locks. It must not block.
	done func(*item)
	// gone is the error of the caller's context, and stop ends the watch over it; nil
	// if it cannot end.
	gone func() error
	stop func() bool

	// The committer's mu guards the rest until the item is answered.

	state itemState
	// place is where it waits in the queue.
	place *list.Element
	// err is what the caller is told; if it is nil there are outcomes.
	err error
}

// publication is one frame of an item.
type publication struct {
	backlog.Publication
	// headers are the publication's as JSON; empty if it has none.
	headers string
	// digest is of what must be equal under one key; nil without a key.
	digest  []byte
	outcome backlog.Outcome
}

// closing is the close of a stream.
type closing struct {
	stream  backlog.StreamName
	epoch   *uint64 // that the head's position must have; nil: any
	outcome backlog.CloseOutcome
}

// newPublication makes a copy that is the store's: a caller that leaves may use
// its memory for something else while the frame is being written, and the hub
// keeps the frame.
func newPublication(p backlog.Publication) publication {
	own := publication{Publication: p}
	if own.Expected = clonePointer(p.Expected); own.Expected != nil {
		own.Expected.Epoch = clonePointer(own.Expected.Epoch)
	}
	own.Payload = append(make([]byte, 0, len(p.Payload)), p.Payload...) // not nil, which would be null
	if len(p.Headers) > 0 {
		own.Headers = maps.Clone(p.Headers)
		// Maps of strings always marshal, and their keys are sorted.
		headers, _ := json.Marshal(p.Headers)
		own.headers = string(headers)
	} else {
		own.Headers = nil
	}
	if p.IdempotencyKey != "" {
		own.digest = own.newDigest()
	}
	return own
}

// newDigest is SHA-256 of the payload's SHA-256, the types, which contain no line
// breaks, and the headers.
func (p *publication) newDigest() []byte {
	payload := sha256.Sum256(p.Payload)
	content := payload[:]
	for _, part := range []string{p.ContentType, "\n", p.EventType, "\n", p.headers} {
		content = append(content, part...)
	}
	digest := sha256.Sum256(content)
	return digest[:]
}

// frames is what the item counts for where frames are counted.
func (it *item) frames() int { return max(1, len(it.publications)) }

// answer tells the caller, outside the lock. It is called once.
func (it *item) answer() {
	if it.stop != nil {
		it.stop()
	}
	it.done(it)
}
