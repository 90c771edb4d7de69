package clientlib

import (
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// NewFrame is a frame to publish. The server checks its limits; what is outside
// them is an [Error] with the code INVALID_ARGUMENT and the field's name.
//
// The library only reads a frame's payload and headers. They must not change before
// the publish has been answered.
type NewFrame struct {
	// Stream is where to.
	Stream
	// Payload is any bytes, up to the server's limit (1 MiB by default); may be nil.
	Payload []byte
	// ContentType is 0 to 255 bytes of UTF-8 without control characters, by
	// convention a media type.
	ContentType string
	// EventType is 0 to 255 bytes of UTF-8 without control characters, not beginning
	// with "fanfare.".
	EventType string
	// Headers are at most 32, with names and values of 8 KiB together; may be nil.
	Headers map[string]string
	// IdempotencyKey makes a retry safe: the server answers a key that it knows of
	// this stream with the first position, and stores nothing. 0 to 255 bytes of
	// UTF-8 without control characters. Empty: the library makes one, see
	// [Client.Publish].
	IdempotencyKey string
	// Expected, if not nil, is what the stream's head must be. Not for ephemeral
	// frames.
	Expected *Expected
	// Ephemeral frames are announced and not stored: whoever is subscribed gets them,
	// no replay has them, they have no position, and a retry may deliver one twice.
	Ephemeral bool
}

// Expected is what the head of a stream must be for a frame to be stored. If it is
// not, the [Error] has the code ABORTED, the reason EXPECTATION_FAILED and the head
// as its position.
type Expected struct {
	// Sequence is the head's; 0: the stream has no frame or is closed.
	Sequence uint64
	// Epoch is that of the head's position; 0: any.
	Epoch uint64
}

// Published is what became of a frame.
type Published struct {
	// Position is where the frame stands; of a duplicate, where the one stored first
	// does. Zero if the frame is ephemeral.
	Position Position
	// Duplicate is true if the caller's idempotency key was known and nothing was
	// stored. With a key that the library made it is false: a frame that was stored by
	// one attempt and found by the next is no duplicate to the caller.
	Duplicate bool
}

// checkText is the error of a text that is not UTF-8, of the frame at path in its request.
func (f *NewFrame) checkText(path string) *Error {
	e := checkText(path,
		text{"channel", f.Channel},
		text{"scope", f.Scope},
		text{"content_type", f.ContentType},
		text{"event_type", f.EventType},
		text{"idempotency_key", f.IdempotencyKey})
	for name, value := range f.Headers {
		if e == nil {
			e = checkText(path, text{"headers", name}, text{"headers", value})
		}
	}
	return e
}

func (f *NewFrame) proto() *fanfarev1.NewFrame {
	frame := &fanfarev1.NewFrame{
		Channel:        f.Channel,
		Scope:          f.Scope,
		Payload:        f.Payload,
		ContentType:    f.ContentType,
		EventType:      f.EventType,
		Headers:        f.Headers,
		IdempotencyKey: f.IdempotencyKey,
		Ephemeral:      f.Ephemeral,
	}
	if f.Expected != nil {
		frame.ExpectedSequence = &f.Expected.Sequence
		if f.Expected.Epoch != 0 {
			frame.ExpectedEpoch = &f.Expected.Epoch
		}
	}
	return frame
}
