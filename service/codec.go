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

// outgoing is a message and what counts it until it has been written.
type outgoing struct {
	message any
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
	if !counted {
		return c.marshal(v)
	}
	o.flight.Ref()
	out, err := c.marshal(o.message)
	if err != nil {
		o.flight.Free()
		return nil, err
	}
	return append(out, o.flight), nil
}

func (c codec) marshal(v any) (mem.BufferSlice, error) {
	frames, ok := v.(encodedFrames)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	out := make(mem.BufferSlice, len(frames), len(frames)+1)
	for i, f := range frames {
		out[i] = mem.SliceBuffer(f)
	}
	return out, nil
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
