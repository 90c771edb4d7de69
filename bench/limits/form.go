package main

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	codecproto "google.golang.org/grpc/encoding/proto" // registers the codec that is wrapped
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// form is in what form frames wait for their subscriptions.
type form interface {
	// message returns one frame's. Many subscriptions send it at once.
	message(*fanfarev1.Frame) (*message, error)
	// join returns what SendMsg takes for one message with all frames of ms, in
	// order.
	join(ms []*message) any
}

func formOf(mode string) (form, error) {
	switch mode {
	case "bare":
		return encodedForm{}, nil
	case "naive":
		return plainForm{}, nil
	}
	return nil, fmt.Errorf("--mode %q is neither bare nor naive", mode)
}

// encoded is a SubscribeResponse that has been encoded. The memory is shared: a
// mem.SliceBuffer counts no references.
type encoded struct{ buffers mem.BufferSlice }

// encodedForm encodes a frame once.
type encodedForm struct{}

func (encodedForm) message(f *fanfarev1.Frame) (*message, error) {
	b, err := proto.Marshal(&fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{f}})
	if err != nil {
		return nil, err
	}
	return &message{&encoded{mem.BufferSlice{mem.SliceBuffer(b)}}, len(b)}, nil
}

// join puts messages one after another, which protobuf reads as one message with
// the elements of all.
func (encodedForm) join(ms []*message) any {
	joined := &encoded{make(mem.BufferSlice, 0, len(ms))}
	for _, m := range ms {
		joined.buffers = append(joined.buffers, m.content.(*encoded).buffers...)
	}
	return joined
}

// plainForm leaves the encoding to each subscription's SendMsg.
type plainForm struct{}

func (plainForm) message(f *fanfarev1.Frame) (*message, error) {
	m := &fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{f}}
	return &message{m, proto.Size(m)}, nil
}

func (plainForm) join(ms []*message) any {
	joined := &fanfarev1.SubscribeResponse{Frames: make([]*fanfarev1.Frame, 0, len(ms))}
	for _, m := range ms {
		joined.Frames = append(joined.Frames, m.content.(*fanfarev1.SubscribeResponse).GetFrames()...)
	}
	return joined
}

// codec is the protobuf codec, except that it passes encoded on.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(codecproto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*encoded); ok {
		return m.buffers, nil
	}
	return c.CodecV2.Marshal(v)
}
