package backlog

import "time"

// StreamName names a stream, the unit of order, replay and close. Both parts
// are compared byte by byte: nothing is folded or normalised.
type StreamName struct {
	// Channel is what kind of thing is published, 1 to 255 bytes.
	Channel string
	// Scope is which one, 0 to 255 bytes.
	Scope string
}

// Frame is a published frame: a durable one as it stands in the backlog, or an
// ephemeral one as it was announced. Its slices and maps are shared by everyone
// who got it: nobody may change them.
type Frame struct {
	// Position is where a durable frame stands in its stream. Of an ephemeral one,
	// which has no place of its own, it is the position of the durable frame that
	// it follows: the head when it was published, or the position before the first
	// frame if the numbering has none.
	Position Position
	// Ephemeral is true if the frame is not stored and not numbered: it reaches
	// those who are subscribed when it commits, and is never part of a position.
	Ephemeral bool
	// ContentType and EventType are the publisher's, 0 to 255 bytes each.
	ContentType string
	EventType   string
	// Headers are the publisher's; nil if it gave none.
	Headers map[string]string
	// Payload is opaque, up to the store's limit; it may be empty.
	Payload []byte
	// Created is when the frame was numbered or, if it is ephemeral, published, by
	// the store's clock, in UTC with microseconds. Order is by sequence alone: clocks step.
	Created time.Time
}

// Publication is a request to publish one frame.
type Publication struct {
	Stream StreamName
	// Ephemeral asks for a frame that is announced and not stored. It has no key
	// and no expectation.
	Ephemeral   bool
	Payload     []byte
	ContentType string
	EventType   string
	Headers     map[string]string
	// IdempotencyKey, 0 to 255 bytes, makes a retry safe: a second publication
	// with the same key on the stream gets the first one's outcome. Empty means
	// none.
	IdempotencyKey string
	// Expected, if not nil, is what the stream's head must be.
	Expected *Expectation
}

// Expectation is a condition on a stream's head at the moment of numbering. A
// stream that does not exist or is closed has sequence 0: the next frame will
// be 1.
type Expectation struct {
	Sequence uint64
	// Epoch, if not nil, must equal the epoch of the head's position.
	Epoch *uint64
}

// Outcome is what became of a publication that succeeded.
type Outcome struct {
	// Position is the frame's; of a duplicate, that of the frame stored first.
	Position Position
	// Duplicate is true if the idempotency key was known and nothing was stored.
	Duplicate bool
}
