package service

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/fanfare-io/fanfare/backlog"
)

// Field numbers of the messages that EncodeFrame writes. TestEncodeFrame holds
// them against the generated code.
const (
	responseFrames  = 1  // SubscribeResponse.frames and SessionResponse.frames
	responseNumbers = 15 // SessionResponse.numbers

	framePosition    = 1
	framePayload     = 2
	frameContentType = 3
	frameEventType   = 4
	frameHeaders     = 5
	frameCreated     = 6
	frameEphemeral   = 7

	positionEpoch    = 1
	positionSequence = 2

	headerName  = 1
	headerValue = 2

	timestampSeconds = 1
	timestampNanos   = 2
)

// EncodeFrame returns the bytes of one element of SubscribeResponse.frames, with
// its tag and length. Concatenations of such bytes are valid SubscribeResponse
// messages, which is what lets one encoding serve every subscriber and every
// batch. They equal what proto.Marshal writes with deterministic maps. The
// position of an ephemeral frame, which is another frame's, is not among them.
func EncodeFrame(f backlog.Frame) []byte {
	frameSize := sizeFrame(f)
	b := make([]byte, 0, sizeField(responseFrames, frameSize))
	b = appendTag(b, responseFrames, frameSize)

	if !f.Ephemeral {
		b = appendTag(b, framePosition, sizePosition(f.Position))
		b = appendPosition(b, f.Position)
	}
	if len(f.Payload) > 0 {
		b = appendTag(b, framePayload, len(f.Payload))
		b = append(b, f.Payload...)
	}
	b = appendText(b, frameContentType, f.ContentType)
	b = appendText(b, frameEventType, f.EventType)
	for _, name := range slices.Sorted(maps.Keys(f.Headers)) {
		b = appendHeader(b, name, f.Headers[name])
	}
	if !f.Created.IsZero() {
		seconds, nanos := f.Created.Unix(), f.Created.Nanosecond()
		b = appendTag(b, frameCreated, sizeTimestamp(seconds, nanos))
		b = appendVarint(b, timestampSeconds, uint64(seconds))
		b = appendVarint(b, timestampNanos, uint64(nanos))
	}
	if f.Ephemeral {
		b = appendVarint(b, frameEphemeral, 1)
	}
	return b
}

func sizeFrame(f backlog.Frame) int {
	n := 0
	if f.Ephemeral {
		n += sizeVarint(frameEphemeral, 1)
	} else {
		n += sizeField(framePosition, sizePosition(f.Position))
	}
	if len(f.Payload) > 0 {
		n += sizeField(framePayload, len(f.Payload))
	}
	n += sizeText(frameContentType, f.ContentType)
	n += sizeText(frameEventType, f.EventType)
	for name, value := range f.Headers {
		n += sizeField(frameHeaders, sizeHeader(name, value))
	}
	if !f.Created.IsZero() {
		n += sizeField(frameCreated, sizeTimestamp(f.Created.Unix(), f.Created.Nanosecond()))
	}
	return n
}

func appendPosition(b []byte, p backlog.Position) []byte {
	if p.Epoch != 0 {
		b = protowire.AppendTag(b, positionEpoch, protowire.Fixed64Type)
		b = protowire.AppendFixed64(b, p.Epoch)
	}
	return appendVarint(b, positionSequence, p.Sequence)
}

func sizePosition(p backlog.Position) int {
	n := sizeVarint(positionSequence, p.Sequence)
	if p.Epoch != 0 {
		n += protowire.SizeTag(positionEpoch) + protowire.SizeFixed64()
	}
	return n
}

// appendHeader writes a map entry. Unlike other fields, both halves are written
// even if empty.
func appendHeader(b []byte, name, value string) []byte {
	b = appendTag(b, frameHeaders, sizeHeader(name, value))
	b = appendTag(b, headerName, len(name))
	b = append(b, name...)
	b = appendTag(b, headerValue, len(value))
	return append(b, value...)
}

func sizeHeader(name, value string) int {
	return sizeField(headerName, len(name)) + sizeField(headerValue, len(value))
}

func sizeTimestamp(seconds int64, nanos int) int {
	return sizeVarint(timestampSeconds, uint64(seconds)) + sizeVarint(timestampNanos, uint64(nanos))
}

// appendTag writes the beginning of a length-delimited field of size bytes.
func appendTag(b []byte, field protowire.Number, size int) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}

func sizeField(field protowire.Number, size int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(size)
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendTag(b, field, len(s)), s...)
}

func sizeText(field protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return sizeField(field, len(s))
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func sizeVarint(field protowire.Number, v uint64) int {
	if v == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeVarint(v)
}
