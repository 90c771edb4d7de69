package service

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func encodeCases() map[string]backlog.Frame {
	position := backlog.Position{Epoch: 41, Sequence: 7}
	allBytes := make([]byte, 256)
	for i := range allBytes {
		allBytes[i] = byte(i)
	}
	headers := map[string]string{}
	for i := range backlog.MaxHeaders {
		headers[strings.Repeat("h", i+1)] = strings.Repeat("v", i*5)
	}
	return map[string]backlog.Frame{
		"zero":          {},
		"position only": {Position: position},
		"extremes": {
			Position: backlog.Position{Epoch: backlog.MaxPositionValue, Sequence: backlog.MaxPositionValue},
			Created:  time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
		},
		"before 1970":    {Position: position, Created: time.Date(1969, 1, 1, 0, 0, 0, 1000, time.UTC)},
		"whole second":   {Position: position, Created: time.Unix(1_700_000_000, 0).UTC()},
		"every byte":     {Position: position, Payload: allBytes},
		"large payload":  {Position: position, Payload: bytes.Repeat([]byte{0xff}, 1<<20)},
		"types":          {Position: position, ContentType: "text/plain", EventType: "düsseldorf"},
		"empty header":   {Position: position, Headers: map[string]string{"empty": ""}},
		"many headers":   {Position: position, Headers: headers},
		"length borders": {Position: position, Payload: make([]byte, 127), ContentType: strings.Repeat("c", 128)},
		"ephemeral":      {Position: position, Ephemeral: true},
		"ephemeral, everything": {
			Position: position, Ephemeral: true, Payload: bytes.Repeat([]byte("p"), 200), ContentType: "c", EventType: "e",
			Headers: map[string]string{"b": "2", "a": "1"}, Created: time.Unix(1, 5000).UTC(),
		},
		"everything": {
			Position: position, Payload: []byte("p"), ContentType: "c", EventType: "e",
			Headers: map[string]string{"b": "2", "a": "1"}, Created: time.Unix(1, 5000).UTC(),
		},
	}
}

func TestEncodeFrameEqualsProtoMarshal(t *testing.T) {
	for name, frame := range encodeCases() {
		t.Run(name, func(t *testing.T) {
			message := &fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{frameProto(frame)}}
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
			if err != nil {
				t.Fatal(err)
			}
			got := EncodeFrame(frame)
			if !bytes.Equal(got, want) {
				t.Errorf("EncodeFrame wrote\n%x\nproto.Marshal\n%x", got[:min(len(got), 200)], want[:min(len(want), 200)])
			}
			if cap(got) != len(got) {
				t.Errorf("the size was estimated as %d, it is %d", cap(got), len(got))
			}
		})
	}
}

// FuzzEncodeFrame compares EncodeFrame with proto.Marshal for arbitrary frames.
func FuzzEncodeFrame(f *testing.F) {
	f.Add(uint64(1), uint64(2), false, []byte("payload"), "type", "event", "name", "value", int64(5))
	f.Add(uint64(1), uint64(2), true, []byte("payload"), "type", "event", "name", "value", int64(5))
	f.Add(uint64(0), uint64(math.MaxUint64), false, []byte{}, "", "", "", "", int64(-1))
	f.Fuzz(func(t *testing.T, epoch, sequence uint64, ephemeral bool, payload []byte, contentType, eventType, name, value string, micros int64) {
		frame := backlog.Frame{
			Position:  backlog.Position{Epoch: epoch, Sequence: sequence},
			Ephemeral: ephemeral,
			Payload:   payload, ContentType: strings.ToValidUTF8(contentType, ""), EventType: strings.ToValidUTF8(eventType, ""),
			Headers: map[string]string{strings.ToValidUTF8(name, ""): strings.ToValidUTF8(value, "")},
			Created: time.UnixMicro(micros).UTC(),
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(
			&fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{frameProto(frame)}})
		if err != nil {
			t.Fatal(err)
		}
		if got := EncodeFrame(frame); !bytes.Equal(got, want) {
			t.Errorf("EncodeFrame wrote\n%x\nproto.Marshal\n%x", got, want)
		}
	})
}

// Encoded frames concatenate to one message: what the codec relies on.
func TestCodecPassesEncodedFramesThrough(t *testing.T) {
	var frames encodedFrames
	for i := range 3 {
		frames = append(frames, EncodeFrame(backlog.Frame{Position: backlog.Position{Epoch: 1, Sequence: uint64(i + 1)}}))
	}
	data, err := newCodec().Marshal(&outgoing{frames: frames, flight: newInFlight(newConnection(noConn{}), nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer data.Free()
	var message fanfarev1.SubscribeResponse
	if err := newCodec().Unmarshal(data, &message); err != nil {
		t.Fatal(err)
	}
	if len(message.GetFrames()) != 3 {
		t.Fatalf("three frames were decoded as %d", len(message.GetFrames()))
	}
	for i, f := range message.GetFrames() {
		if f.GetPosition().GetSequence() != uint64(i+1) {
			t.Errorf("frame %d has sequence %d", i, f.GetPosition().GetSequence())
		}
	}
}
