package backlog

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits that do not depend on configuration. Lengths are in bytes.
const (
	MaxChannelBytes        = 255
	MaxScopeBytes          = 255
	MaxIdempotencyKeyBytes = 255
	MaxTypeBytes           = 255 // content type and event type, each
	MaxHeaders             = 32
	MaxHeaderBytes         = 8 << 10 // names and values of all headers of a frame together
	MaxBatchFrames         = 1000
	MaxBatchBytes          = 4 << 20 // see Size
	DefaultMaxFrameBytes   = 1 << 20
	// ReservedEventTypePrefix begins the event types of Fanfare's own events.
	ReservedEventTypePrefix = "fanfare."
)

// Validate checks a stream's name. The error is a *LimitError.
func (n StreamName) Validate() error {
	if n.Channel == "" {
		return &LimitError{"channel", "must not be empty"}
	}
	if err := checkName("channel", n.Channel, MaxChannelBytes); err != nil {
		return err
	}
	return checkName("scope", n.Scope, MaxScopeBytes)
}

// Validate checks a publication against every limit, with maxFrameBytes for the
// payload (0 means DefaultMaxFrameBytes). The error is a *LimitError.
func (p *Publication) Validate(maxFrameBytes int) error {
	if maxFrameBytes == 0 {
		maxFrameBytes = DefaultMaxFrameBytes
	}
	if err := p.Stream.Validate(); err != nil {
		return err
	}
	if len(p.Payload) > maxFrameBytes {
		return &LimitError{"payload", fmt.Sprintf("has %d bytes, the limit is %d", len(p.Payload), maxFrameBytes)}
	}
	if err := checkName("content_type", p.ContentType, MaxTypeBytes); err != nil {
		return err
	}
	if err := checkName("event_type", p.EventType, MaxTypeBytes); err != nil {
		return err
	}
	if strings.HasPrefix(p.EventType, ReservedEventTypePrefix) {
		return &LimitError{"event_type", fmt.Sprintf("must not begin with %q, which is reserved", ReservedEventTypePrefix)}
	}
	if err := checkName("idempotency_key", p.IdempotencyKey, MaxIdempotencyKeyBytes); err != nil {
		return err
	}
	if err := p.checkEphemeral(); err != nil {
		return err
	}
	if e := p.Expected; e != nil {
		if e.Sequence > MaxPositionValue {
			return &LimitError{"expected_sequence", "must be below 2^63"}
		}
		if e.Epoch != nil && *e.Epoch > MaxPositionValue {
			return &LimitError{"expected_epoch", "must be below 2^63"}
		}
	}
	return checkHeaders(p.Headers)
}

// checkEphemeral refuses what needs a row or a number of its own.
func (p *Publication) checkEphemeral() error {
	switch {
	case !p.Ephemeral:
		return nil
	case p.IdempotencyKey != "":
		return &LimitError{"idempotency_key", "must be empty for an ephemeral frame, which is not stored"}
	case p.Expected != nil:
		return &LimitError{"expected_sequence", "must not be set for an ephemeral frame, which is not numbered"}
	default:
		return nil
	}
}

// ValidateBatch checks what PublishBatch is given, each frame with maxFrameBytes
// as [Publication.Validate] does. The error is a *LimitError, in a *BatchError if
// it is of one frame.
func ValidateBatch(batch []Publication, maxFrameBytes int) error {
	if len(batch) == 0 {
		return &LimitError{"frames", "must not be empty"}
	}
	if len(batch) > MaxBatchFrames {
		return &LimitError{"frames", fmt.Sprintf("has %d entries, the limit is %d", len(batch), MaxBatchFrames)}
	}
	bytes := 0
	for i := range batch {
		if err := batch[i].Validate(maxFrameBytes); err != nil {
			return &BatchError{Index: i, Err: err}
		}
		bytes += batch[i].Size()
	}
	if bytes > MaxBatchBytes {
		return &LimitError{"frames", fmt.Sprintf("has %d bytes, the limit is %d", bytes, MaxBatchBytes)}
	}
	return nil
}

// ValidateClose checks what CloseStream is given. The error is a *LimitError.
func ValidateClose(stream StreamName, epoch *uint64) error {
	if err := stream.Validate(); err != nil {
		return err
	}
	if epoch != nil && *epoch > MaxPositionValue {
		return &LimitError{"expected_epoch", "must be below 2^63"}
	}
	return nil
}

// ValidateLoad checks what Load is given. The error is a *LimitError.
func ValidateLoad(requests []LoadRequest) error {
	if n := len(requests); n > MaxLoadRequests {
		return &LimitError{"requests", fmt.Sprintf("has %d entries, the limit is %d", n, MaxLoadRequests)}
	}
	for i := range requests {
		if err := requests[i].Stream.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// ValidateKnown checks what Changed is given. The error is a *LimitError.
func ValidateKnown(known []StreamState) error {
	if n := len(known); n > MaxLoadRequests {
		return &LimitError{"known", fmt.Sprintf("has %d entries, the limit is %d", n, MaxLoadRequests)}
	}
	for i := range known {
		if err := known[i].Stream.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// ValidateList checks what ListStreams is given. The error is a *LimitError.
func ValidateList(channel string, after StreamName, limit int) error {
	if limit < 1 || limit > MaxListedStreams {
		return &LimitError{"limit", fmt.Sprintf("is %d, it must be 1 to %d", limit, MaxListedStreams)}
	}
	if after != (StreamName{}) {
		if err := after.Validate(); err != nil {
			return err
		}
	}
	if channel != "" {
		return (StreamName{Channel: channel}).Validate()
	}
	return nil
}

// Size is what a publication counts for in a batch and in queues: its payload,
// types, headers and names, in bytes.
func (p *Publication) Size() int {
	n := len(p.Payload) + len(p.ContentType) + len(p.EventType) + len(p.IdempotencyKey) + len(p.Stream.Channel) + len(p.Stream.Scope)
	for k, v := range p.Headers {
		n += len(k) + len(v)
	}
	return n
}

// checkName checks text that must be printable everywhere it is shown: in
// event streams, logs and psql. Line breaks in an event type would forge whole
// events in an event stream.
func checkName(field, s string, maxBytes int) error {
	if len(s) > maxBytes {
		return &LimitError{field, fmt.Sprintf("has %d bytes, the limit is %d", len(s), maxBytes)}
	}
	if !utf8.ValidString(s) {
		return &LimitError{field, "is not valid UTF-8"}
	}
	for _, r := range s {
		// C0, DEL and C1: Unicode category Cc.
		if r < 0x20 || (r >= 0x7f && r <= 0x9f) {
			return &LimitError{field, fmt.Sprintf("contains the control character U+%04X", r)}
		}
	}
	return nil
}

func checkHeaders(headers map[string]string) error {
	if len(headers) > MaxHeaders {
		return &LimitError{"headers", fmt.Sprintf("has %d entries, the limit is %d", len(headers), MaxHeaders)}
	}
	bytes := 0
	for name, value := range headers {
		if name == "" {
			return &LimitError{"headers", "has an entry with an empty name"}
		}
		if err := checkName("headers", name, MaxHeaderBytes); err != nil {
			return err
		}
		if !utf8.ValidString(value) {
			return &LimitError{"headers", fmt.Sprintf("has a value of %q that is not valid UTF-8", name)}
		}
		// PostgreSQL's text types have no NUL.
		if strings.IndexByte(value, 0) >= 0 {
			return &LimitError{"headers", fmt.Sprintf("has a value of %q that contains the control character U+0000", name)}
		}
		bytes += len(name) + len(value)
	}
	if bytes > MaxHeaderBytes {
		return &LimitError{"headers", fmt.Sprintf("has %d bytes, the limit is %d", bytes, MaxHeaderBytes)}
	}
	return nil
}
