package service

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto" // registers the codec that is wrapped
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
)

// encodedFrames is a SubscribeResponse that has been encoded: each element is
// what EncodeFrame returned. The bytes are shared with other subscribers.
type encodedFrames [][]byte

// outgoing is a message, or without one frames, with the field numbers of a Session
// after it if there is any, and what counts it until it has been written.
type outgoing struct {
	message any
	frames  encodedFrames
	// numbers is the encoded field, nil for none. It is not changed any more.
	numbers *mem.SliceBuffer
	flight  *inFlight
}

// codec is the protobuf codec, except that it passes encodedFrames through and
// tells invalid UTF-8 to validation instead of failing.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2. mem.SliceBuffer counts no references, so
// that one frame's bytes may be in flight on many streams.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	o, counted := v.(*outgoing)
	switch {
	case !counted:
		return c.CodecV2.Marshal(v)
	case o.message == nil:
		o.flight.Ref()
		return o.frames.message(o.numbers, o.flight), nil
	}
	o.flight.Ref()
	out, err := c.CodecV2.Marshal(o.message)
	if err != nil {
		o.flight.Free()
		return nil, err
	}
	if o.numbers != nil {
		out = append(out, o.numbers)
	}
	return append(out, o.flight), nil
}

// message returns the frames, the numbers, unless they are nil, and the last buffer.
func (f encodedFrames) message(numbers *mem.SliceBuffer, last mem.Buffer) mem.BufferSlice {
	n := len(f) + 1
	if numbers != nil {
		n++
	}
	out := make(mem.BufferSlice, n)
	for i := range f {
		out[i] = (*mem.SliceBuffer)(&f[i]) // a pointer, which an interface holds without an allocation
	}
	if numbers != nil {
		out[len(f)] = numbers
	}
	out[n-1] = last
	return out
}

// Unmarshal implements encoding.CodecV2. A string that is not UTF-8 makes the
// protobuf codec refuse the message, which grpc would report as INTERNAL, and
// on a stream would end it. It is the client's mistake in one field, so the
// field is replaced by a text that validation refuses by name.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	message, ok := v.(protobuf.Message)
	if !ok {
		return err
	}
	marked, found := markInvalidText(data.Materialize(), message.ProtoReflect().Descriptor())
	if !found {
		return err
	}
	return protobuf.Unmarshal(marked, message)
}
