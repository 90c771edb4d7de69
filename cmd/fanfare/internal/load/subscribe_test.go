package load

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func position(sequence uint64) *fanfarev1.Position {
	return &fanfarev1.Position{Epoch: 1 << 60, Sequence: sequence}
}

func durable(sequence uint64) *fanfarev1.Frame {
	return &fanfarev1.Frame{Position: position(sequence), Payload: []byte("payload"), Headers: map[string]string{"a": "b"}}
}

var ephemeral = &fanfarev1.Frame{Payload: []byte("payload"), Ephemeral: true}

func response(frames ...*fanfarev1.Frame) []byte {
	return marshal(&fanfarev1.SubscribeResponse{Frames: frames})
}

// notice is a response with the notice of a field, whose last position is as given.
func notice(field protowire.Number, resumeAfter *fanfarev1.Position) []byte {
	switch field {
	case 2:
		return marshal(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{
			Subscribed: &fanfarev1.Subscribed{ResumeAfter: resumeAfter},
		}})
	default:
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), nil)
	}
}

func marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// recorded is what a handler was called with.
type recorded struct {
	runs    []run
	notices []NoticeKind
	after   uint64
}

func (r *recorded) Subscribed(after uint64, _ time.Time) { r.after = after }

func (r *recorded) Frames(n int, first, last uint64, bytes int, _ time.Time) {
	r.runs = append(r.runs, run{n, first, last, bytes})
}

func (r *recorded) Notice(kind NoticeKind, _ time.Time) { r.notices = append(r.notices, kind) }

func (r *recorded) End(error) {}

func TestFramesAreHandedOnInRuns(t *testing.T) {
	for _, test := range []struct {
		name   string
		frames []*fanfarev1.Frame
		want   []run
	}{
		{"ascending", []*fanfarev1.Frame{durable(7), durable(8), durable(9)}, []run{{n: 3, first: 7, last: 9}}},
		{"a hole", []*fanfarev1.Frame{durable(7), durable(9)}, []run{{n: 1, first: 7, last: 7}, {n: 1, first: 9, last: 9}}},
		{"twice", []*fanfarev1.Frame{durable(7), durable(7)}, []run{{n: 1, first: 7, last: 7}, {n: 1, first: 7, last: 7}}},
		{"both kinds", []*fanfarev1.Frame{ephemeral, ephemeral, durable(1), durable(2), ephemeral},
			[]run{{n: 2}, {n: 2, first: 1, last: 2}, {n: 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got recorded
			b := response(test.frames...)
			if err := (subscription{&got}).message(b, time.Time{}); err != nil {
				t.Fatal(err)
			}
			bytes := 0
			for i := range got.runs {
				bytes += got.runs[i].bytes
				got.runs[i].bytes = 0
			}
			if !slices.Equal(got.runs, test.want) {
				t.Errorf("got %v, want %v", got.runs, test.want)
			}
			if bytes != len(b) {
				t.Errorf("got %d bytes of %d", bytes, len(b))
			}
		})
	}
}

func TestNotices(t *testing.T) {
	var got recorded
	for field := range protowire.Number(12) {
		if field < 2 {
			continue
		}
		if err := (subscription{&got}).message(notice(field, position(41)), time.Time{}); err != nil {
			t.Errorf("field %d: %v", field, err)
		}
	}
	if want := []NoticeKind{CaughtUp, Gap, Progress, Status, Closed, Closing}; got.after != 41 || !slices.Equal(got.notices, want) {
		t.Errorf("got %d and %v, want 41 and %v", got.after, got.notices, want)
	}
	// The numbers are those of the protocol.
	fields := (&fanfarev1.SubscribeResponse{}).ProtoReflect().Descriptor().Fields()
	for kind, name := range map[NoticeKind]string{
		CaughtUp: "caught_up", Gap: "gap", Progress: "progress", Status: "status", Closed: "closed", Closing: "closing",
	} {
		if field := fields.ByNumber(protowire.Number(kind)); string(field.Name()) != name {
			t.Errorf("%v has the number of %s", kind, field.Name())
		}
	}
}

func TestMessagesThatAreNone(t *testing.T) {
	field := func(number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
	}
	for name, b := range map[string][]byte{
		"a tag without an end":        {0x80},
		"a length beyond the end":     {0x0a, 5, 1},
		"a frame of neither kind":     field(1, nil),
		"a frame that ends in a tag":  field(1, []byte{0x80}),
		"a frame with sequence 0":     field(1, field(1, nil)),
		"a position that is cut":      field(1, field(1, []byte{0x09, 1, 2})),
		"Subscribed that is none":     field(2, []byte{0xff}),
		"a number that is no varint":  {0x50, 0xff},
		"a frame that is not durable": field(1, []byte{0x38, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			if err := (subscription{&recorded{}}).message(b, time.Time{}); !errors.Is(err, errMalformed) {
				t.Errorf("it was taken: %v", err)
			}
		})
	}
	if err := (subscription{&recorded{}}).message([]byte{0x50, 1}, time.Time{}); err != nil {
		t.Errorf("a field of a newer server: %v", err)
	}
}

// FuzzMessage compares the sequences that are found with those that the generated
// code finds.
func FuzzMessage(f *testing.F) {
	f.Add(response(durable(1), ephemeral, durable(2)))
	f.Add(notice(2, position(3)))
	f.Add([]byte{0x0a, 2, 0x0a, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var got recorded
		if (subscription{&got}).message(b, time.Time{}) != nil {
			return
		}
		var want fanfarev1.SubscribeResponse
		if proto.Unmarshal(b, &want) != nil {
			// What stands behind a frame's position is not looked at.
			return
		}
		n := 0
		for _, run := range got.runs {
			n += run.n
		}
		if n != len(want.GetFrames()) {
			t.Errorf("found %d frames of %d", n, len(want.GetFrames()))
		}
	})
}

func TestOrder(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*Order)
		good bool
	}{
		{"in order", func(o *Order) { o.Begin(4); o.Frames(1, 5, 5); o.Frames(3, 6, 8); o.Frames(2, 0, 0); o.Frames(1, 9, 9) }, true},
		{"resumed", func(o *Order) { o.Begin(0); o.Frames(1, 1, 1); o.Begin(1); o.Frames(1, 2, 2) }, true},
		{"missing", func(o *Order) { o.Begin(4); o.Frames(1, 6, 6) }, false},
		{"twice", func(o *Order) { o.Begin(4); o.Frames(2, 5, 6); o.Frames(1, 6, 6) }, false},
		{"out of order", func(o *Order) { o.Begin(4); o.Frames(1, 5, 5); o.Frames(1, 7, 7); o.Frames(1, 6, 6) }, false},
		{"before Subscribed", func(o *Order) { o.Frames(1, 1, 1) }, false},
		{"resumed elsewhere", func(o *Order) { o.Begin(0); o.Frames(1, 1, 1); o.Begin(2) }, false},
		{"a gap", func(o *Order) { o.Begin(0); o.Notice(Gap) }, false},
		{"a notice", func(o *Order) { o.Begin(0); o.Notice(CaughtUp) }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var o Order
			test.run(&o)
			if got := o.Err() == nil; got != test.good {
				t.Errorf("it is judged: %v", o.Err())
			}
		})
	}
}

// BenchmarkMessage is what a delivery of 200 bytes costs beyond HTTP/2.
func BenchmarkMessage(b *testing.B) {
	frame := durable(rand.Uint64())
	frame.Payload, frame.Headers = make([]byte, 200), nil
	message := response(frame)
	s := subscription{&recorded{runs: make([]run, 0, 1)}}
	r := s.StreamHandler.(*recorded)
	b.ReportAllocs()
	for b.Loop() {
		r.runs = r.runs[:0]
		if err := s.message(message, time.Time{}); err != nil {
			b.Fatal(err)
		}
	}
}
