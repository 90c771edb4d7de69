package service

import (
	"errors"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// invalidUTF8 replaces the marker "@@" of a message by bytes that are not UTF-8,
// as a client in another language may send them.
func invalidUTF8(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i := range len(b) - 1 {
		if b[i] == '@' && b[i+1] == '@' {
			b[i], b[i+1] = 0xc3, 0x28
			found = true
		}
	}
	if !found {
		t.Fatal("the message has no marker")
	}
	return b
}

// Symptom: a channel in Latin-1 was answered INTERNAL. Cause: the codec refuses
// the message before validation sees it.
func TestInvalidUTF8IsNamedByField(t *testing.T) {
	for name, test := range map[string]struct {
		frame *fanfarev1.NewFrame
		field string
	}{
		"channel":         {&fanfarev1.NewFrame{Channel: "@@"}, "frame.channel"},
		"scope":           {&fanfarev1.NewFrame{Channel: "c", Scope: "a@@b"}, "frame.scope"},
		"content type":    {&fanfarev1.NewFrame{Channel: "c", ContentType: "@@"}, "frame.content_type"},
		"event type":      {&fanfarev1.NewFrame{Channel: "c", EventType: "@@"}, "frame.event_type"},
		"idempotency key": {&fanfarev1.NewFrame{Channel: "c", IdempotencyKey: "@@"}, "frame.idempotency_key"},
		"header name":     {&fanfarev1.NewFrame{Channel: "c", Headers: map[string]string{"@@": "v"}}, "frame.headers"},
		"header value":    {&fanfarev1.NewFrame{Channel: "c", Headers: map[string]string{"n": "@@"}}, "frame.headers"},
	} {
		t.Run(name, func(t *testing.T) {
			encoded := invalidUTF8(t, &fanfarev1.PublishStreamRequest{Number: 9, Frame: test.frame})
			var decoded fanfarev1.PublishStreamRequest
			if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &decoded); err != nil {
				t.Fatal(err)
			}
			if decoded.GetNumber() != 9 {
				t.Errorf("the number was lost: %d", decoded.GetNumber())
			}
			_, err := testServer(t, nil).publication("frame", decoded.GetFrame())
			var limit *backlog.LimitError
			if !errors.As(err, &limit) || limit.Field != test.field || limit.Message != "is not valid UTF-8" {
				t.Errorf("got %v, want %s is not valid UTF-8", err, test.field)
			}
		})
	}
}

func TestCodecRefusesGarbage(t *testing.T) {
	for _, garbage := range [][]byte{{0xff}, {0x0a, 0x05, 'a'}, protowire.AppendTag(nil, 1, protowire.BytesType)} {
		var decoded fanfarev1.PublishRequest
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(garbage)}, &decoded); err == nil {
			t.Errorf("%x was decoded as %v", garbage, &decoded)
		}
	}
}

// FuzzMarkInvalidText: whatever comes in, the result decodes if anything was
// marked, and nothing panics.
func FuzzMarkInvalidText(f *testing.F) {
	valid, _ := proto.Marshal(&fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c", Headers: map[string]string{"a": "b"}}})
	f.Add(valid)
	f.Add([]byte{0x0a, 0x04, 0x0a, 0x02, 0xc3, 0x28})
	descriptor := (&fanfarev1.PublishRequest{}).ProtoReflect().Descriptor()
	f.Fuzz(func(t *testing.T, b []byte) {
		marked, found := markInvalidText(b, descriptor)
		if found {
			// It may still be refused for another reason, but not for its text.
			_ = proto.Unmarshal(marked, &fanfarev1.PublishRequest{})
			if again, twice := markInvalidText(marked, descriptor); twice {
				t.Errorf("%x is still not UTF-8: %x", marked, again)
			}
		}
	})
}
