package service_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// roundTrip publishes frames and checks that they arrive as they were sent, live
// and replayed, on both replicas.
func roundTrip(t *testing.T, w *world, s backlog.StreamName, frames []*fanfarev1.NewFrame) {
	t.Helper()
	readers := []*reader{subscribe(t, w.a, live(s)), subscribe(t, w.b, live(s))}
	for _, f := range frames {
		f.Channel, f.Scope = s.Channel, s.Scope
		publish(t, w.a, f)
	}
	readers = append(readers, subscribe(t, w.b, fromOldest(s)))
	for _, r := range readers {
		got := r.take(len(frames))
		contiguous(t, got, 1)
		for i, want := range frames {
			received := &fanfarev1.NewFrame{
				Channel: s.Channel, Scope: s.Scope, Payload: got[i].GetPayload(),
				ContentType: got[i].GetContentType(), EventType: got[i].GetEventType(), Headers: got[i].GetHeaders(),
			}
			if !proto.Equal(received, want) {
				t.Errorf("frame %d of %d bytes arrived changed, with %d bytes", i, len(want.GetPayload()), len(got[i].GetPayload()))
			}
			if age := time.Since(got[i].GetCreated().AsTime()); age < -time.Minute || age > 10*time.Minute {
				t.Errorf("frame %d was created %s ago", i, age)
			}
		}
		r.cancel()
	}
}

// Scenarios S116, S117 and S124, symptoms: text cut within a character, a large
// payload rolled back by its notification, an empty one dropped. Cause: limits
// counted in characters; the payload put into the notification. Sizes are around
// what fits a notification once it is base64.
func TestPayloadsArriveUnchanged(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		everyByte := make([]byte, 256)
		for i := range everyByte {
			everyByte[i] = byte(i)
		}
		headers := map[string]string{"empty": "", "CamelCase": "kept", "ünï": "cödé\n\ttab"}
		for i := range 10 {
			headers[fmt.Sprint("large", i)] = strings.Repeat("v", 700)
		}
		frames := []*fanfarev1.NewFrame{
			{},
			{Payload: []byte{0}},
			{Payload: everyByte},
			{Payload: []byte("{\"nul\":\"\\u0000\"}"), ContentType: "application/json"},
			{Payload: []byte{0xc3, 0x28, 0xff}},
			{Headers: headers},
			{Payload: []byte("x"), Headers: headers, ContentType: strings.Repeat("c", 255), EventType: strings.Repeat("é", 127)},
			{EventType: "💥", ContentType: "text/plain; charset=utf-8"},
		}
		for _, n := range []int{1990, 1999, 2000, 8000} {
			frames = append(frames,
				&fanfarev1.NewFrame{Payload: []byte(strings.Repeat("😀", n))},
				&fanfarev1.NewFrame{Payload: []byte(strings.Repeat("é", n))}, // combining
			)
		}
		for _, n := range []int{4095, 4096, 4097, 5800, 5990, 6000, 7999, 8000, 10_000, 100_000, 1<<20 - 1, 1 << 20} {
			frames = append(frames, &fanfarev1.NewFrame{Payload: bytes.Repeat([]byte{0xfe}, n)})
		}
		roundTrip(t, w, stream("payloads", ""), frames)
	})
}

// Scenarios S119 and S120, symptoms: names folded to lower case; names that
// broke out of the SQL text. Cause: names used as identifiers.
func TestNamesAreOpaque(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		names := []string{
			"orders", "Orders", "ORDERS", "\u00e9", "e\u0301",
			`a"b`, `a'b`, "a;b", "a--b", notifyingName, "'; drop table streams; --", "pg_sleep(5)", "$1", "?1", ":a", "%s", `a\b`, "emoji 😀", "select", "null", " ", "a/b/c", strings.Repeat("n", 255),
		}
		var readers []*reader
		for _, channel := range names {
			for _, scope := range []string{"", channel} {
				readers = append(readers, subscribe(t, w.b, live(stream(channel, scope))))
			}
		}
		for _, channel := range names {
			for _, scope := range []string{"", channel} {
				publish(t, w.a, newFrame(stream(channel, scope), channel+"|"+scope))
			}
		}
		for i, r := range readers {
			channel, scope := names[i/2], []string{"", names[i/2]}[i%2]
			f := r.take(1)[0]
			if string(f.GetPayload()) != channel+"|"+scope || f.GetPosition().GetSequence() != 1 {
				t.Errorf("the subscriber of %q/%q got %q at %v", channel, scope, f.GetPayload(), f.GetPosition())
			}
		}
		list, err := w.a.Client.ListStreams(t.Context(), &fanfarev1.ListStreamsRequest{})
		if err != nil || len(list.GetStreams()) != len(readers) {
			t.Errorf("%d streams are listed, %d were published to: %v", len(list.GetStreams()), len(readers), err)
		}
	})
}

// notifyingName would notify if it became a statement.
const notifyingName = `"; NOTIFY x, 'y`

// The same seen by a session that would hear the statement.
func TestNamesAreNoStatements(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Notifications}, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		eavesdropper := w.sql()
		w.exec(eavesdropper, "listen x")
		s := stream(notifyingName, notifyingName)
		r := subscribe(t, w.b, live(s))
		publish(t, w.a, newFrame(s, notifyingName))
		r.take(1)
		w.exec(w.sql(), "notify x, 'marker'")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if n, err := eavesdropper.WaitForNotification(ctx); err != nil || n.Payload != "marker" {
			t.Errorf("a name became a statement: %v, %v", n, err)
		}
	})
}

// Scenario S121, symptom: a NUL stopped everything with an internal error.
// Cause: text types have no NUL. It is refused by field, and the next call
// works.
func TestWhatTextCannotHoldIsRefused(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		for field, f := range map[string]*fanfarev1.NewFrame{
			"frame.channel":         {Channel: "a\x00b"},
			"frame.scope":           {Channel: "c", Scope: "\n"},
			"frame.event_type":      {Channel: "c", EventType: "a\x00"},
			"frame.content_type":    {Channel: "c", ContentType: "\r"},
			"frame.headers":         {Channel: "c", Headers: map[string]string{"h": "\x00"}},
			"frame.idempotency_key": {Channel: "c", IdempotencyKey: "\x7f"},
		} {
			_, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: f})
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", field, err)
			}
			for _, d := range status.Convert(err).Details() {
				if bad, ok := d.(*errdetails.BadRequest); ok && bad.GetFieldViolations()[0].GetField() != field {
					t.Errorf("%s: %v", field, bad)
				}
			}
			publish(t, w.a, newFrame(stream("c", ""), "the next call works"))
		}
		subscription := open(t, w.b.Client, live(stream("\x00", "")))
		if code := subscription.end(); code != codes.InvalidArgument {
			t.Errorf("subscribe answers %s", code)
		}
	})
}

// Scenario S128, symptom: ids above 2^53 were rounded. Cause: numbers read as
// floating point. Exhaustion is an explicit error.
func TestLargeSequences(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		for name, head := range map[string]uint64{"2^53": 9007199254740990, "2^63": 1<<63 - 1 - 10} {
			t.Run(name, func(t *testing.T) {
				s := stream("large", name)
				publish(t, w.a, newFrame(s, "first"))
				db.SetHead(t, s, head)
				var positions []*fanfarev1.Position
				for i := range 10 {
					positions = append(positions, publish(t, w.a, newFrame(s, numbered(i))))
				}
				for i, p := range positions {
					if p.GetSequence() != head+uint64(i)+1 {
						t.Fatalf("frame %d stands at %v", i, p)
					}
					r := subscribe(t, w.b, after(s, p))
					if !r.subscribed.GetResumed() {
						t.Errorf("after %v: %v", p, r.subscribed)
					}
					contiguous(t, r.take(9-i), p.GetSequence()+1)
					r.cancel()
				}
			})
		}
		_, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: newFrame(stream("large", "2^63"), "one too many")})
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("after the last sequence: %v", err)
		}
	})
}
