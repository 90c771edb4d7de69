package sse_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	gosse "github.com/tmaxmax/go-sse"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
)

// independent reads an event stream by a library that knows nothing of this package.
func independent(text []byte) (events []event, err error) {
	for e, err := range gosse.Read(bytes.NewReader(text), &gosse.ReadConfig{MaxEventSize: len(text) + 1}) {
		if err != nil {
			return nil, err
		}
		kind := e.Type
		if kind == "" {
			kind = "message"
		}
		events = append(events, event{kind: kind, data: e.Data, id: e.LastEventID})
	}
	return events, nil
}

// strict reads one by the test's own parser.
func strict(source io.Reader) (events []event, err error) {
	p := newParser(source)
	for {
		e, err := p.next()
		if errors.Is(err, errEnded) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
}

// received is the frame that a page makes of an event, by the package's documentation.
func received(e event, asJSON bool) (f clientlib.Frame, err error) {
	if e.kind != "fanfare.frame" && !asJSON {
		f.Payload, f.EventType = []byte(e.data), e.kind
		if e.kind == "message" {
			f.EventType = ""
		}
		f.Position, err = clientlib.ParsePosition(e.id)
		return f, err
	}
	var d data
	if err := json.Unmarshal([]byte(e.data), &d); err != nil {
		return f, fmt.Errorf("%q: %w", e.data, err)
	}
	f = clientlib.Frame{EventType: d.EventType, Payload: d.PayloadBase64, Ephemeral: d.Ephemeral, ContentType: d.ContentType, Headers: d.Headers}
	if d.Payload != nil {
		f.Payload = []byte(*d.Payload)
	}
	if d.Created != nil {
		f.Created = *d.Created
	}
	if d.Position != "" {
		f.Position, err = clientlib.ParsePosition(d.Position)
	}
	return f, err
}

// checkEncoding has a frame between two others read by both parsers, in both formats: what
// comes is exactly these three, and their ids.
func checkEncoding(t testing.TB, f clientlib.Frame) {
	t.Helper()
	s := clientlib.Stream{Channel: "orders", Scope: "7"}
	f.Position = clientlib.Position{Epoch: 1<<63 - 1, Sequence: 2}
	before := clientlib.Frame{Payload: []byte("before"), Position: clientlib.Position{Epoch: 5, Sequence: 1}}
	after := clientlib.Frame{Payload: []byte("after"), Position: clientlib.Position{Epoch: 5, Sequence: 3}}
	for _, asJSON := range []bool{false, true} {
		var text []byte
		for _, frame := range []*clientlib.Frame{&before, &f, &after} {
			text = append(text, sse.FrameBlock(s, frame, asJSON)...)
		}
		own, err := strict(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("the strict parser, json %t: %v in %.300q", asJSON, err, text)
		}
		others, err := independent(text)
		if err != nil {
			t.Fatalf("the independent parser, json %t: %v in %.300q", asJSON, err, text)
		}
		if !slices.Equal(own, others) {
			t.Fatalf("json %t: the parsers differ: %.300q and %.300q", asJSON, own, others)
		}
		if len(own) != 3 || own[0].id != "5-1" || own[1].id != f.Position.String() || own[2].id != "5-3" {
			t.Fatalf("json %t: %d events came of three frames: %.300q", asJSON, len(own), own)
		}
		for i, want := range []*clientlib.Frame{&before, &f, &after} {
			got, err := received(own[i], asJSON)
			if !asJSON && want.EventType == "message" { // to a browser that is the same as none
				got.EventType = "message"
			}
			if err != nil || !bytes.Equal(got.Payload, want.Payload) || got.EventType != strings.ToValidUTF8(want.EventType, "\ufffd") || got.Position != want.Position {
				t.Fatalf("json %t: frame %.100q of type %q came as %.100q of type %q: %v", asJSON, want.Payload, want.EventType, got.Payload, got.EventType, err)
			}
		}
	}
}

// Names that would forge fields, or be taken for events of this package or the browser.
var hostileNames = []string{
	"", " ", " x", "x:y", "data", "id: 1", "message", "open", "error", "fanfare.gap", "fanfare.frame", "fanfare.", "fanfare",
	"x\ndata: forged\n\nid: 1", "a\rb", "a\r\nb", "a\x00b", "a\u0085b", "a\u2028b\u2029", "\ufeff", "ünï😀", "\xff",
}

// Payloads at whose edges encoders slip.
var hostilePayloads = []string{
	"", " ", "\n", "\n\n", "\r", "\r\n", "\n\r", "a\n", "\na", "a\rb", "a\r\nb", "\x00", "a\x00b", ":", ": comment", "data: x\n\nid: 9-9",
	"\ufeff", "\ufeffx", "x\ufeff", "\u2028\u2029\u0085", "\xff", "\xc3", "é", "😀", "\xed\xa0\x80", "{\"stream\":1}", "retry: 1", "id\n", "event: x\ndata: y\n\n",
}

func TestEveryByteAndHostileTextComesUnchanged(t *testing.T) {
	for b := range 256 {
		checkEncoding(t, clientlib.Frame{Payload: []byte{byte(b)}})
		checkEncoding(t, clientlib.Frame{Payload: []byte{'a', byte(b), 'z'}, EventType: "kind"})
		checkEncoding(t, clientlib.Frame{Payload: []byte("x"), EventType: "a" + string(rune(b)) + "z"})
	}
	for _, name := range hostileNames {
		for _, payload := range hostilePayloads {
			checkEncoding(t, clientlib.Frame{Payload: []byte(payload), EventType: name})
		}
	}
	for _, huge := range []string{strings.Repeat("x", 4<<20), strings.Repeat("\n", 1<<17), strings.Repeat("é\r", 1<<17), strings.Repeat("\xff", 1<<20)} {
		checkEncoding(t, clientlib.Frame{Payload: []byte(huge)})
	}
}

func FuzzEncode(f *testing.F) {
	for i, name := range hostileNames {
		f.Add([]byte(hostilePayloads[i%len(hostilePayloads)]), name)
	}
	for i, payload := range hostilePayloads {
		f.Add([]byte(payload), hostileNames[i%len(hostileNames)])
	}
	f.Fuzz(func(t *testing.T, payload []byte, eventType string) {
		// The protocol's strings are UTF-8.
		checkEncoding(t, clientlib.Frame{Payload: payload, EventType: strings.ToValidUTF8(eventType, "")})
	})
}

func TestAFrameAsJSONHasAllOfIt(t *testing.T) {
	created := time.Date(2026, 1, 2, 15, 4, 5, 123456000, time.UTC)
	want := clientlib.Frame{
		Position: clientlib.Position{Epoch: 1<<63 - 1, Sequence: 1<<63 - 2}, Payload: []byte("<p>\r\n"), ContentType: "text/html", EventType: "a",
		Headers: map[string]string{"n": "v\r\n"}, Created: created,
	}
	block := sse.FrameBlock(clientlib.Stream{Channel: "o", Scope: "1"}, &want, true)
	const text = "id: 9223372036854775807-9223372036854775806\n" +
		`data: {"stream":{"channel":"o","scope":"1"},"position":"9223372036854775807-9223372036854775806","payload":"<p>\r\n",` +
		`"content_type":"text/html","event_type":"a","headers":{"n":"v\r\n"},"created":"2026-01-02T15:04:05.123456Z"}` + "\n\n"
	if string(block) != text {
		t.Errorf("got  %s\nwant %s", block, text)
	}
	ephemeral := sse.FrameBlock(clientlib.Stream{Channel: "o"}, &clientlib.Frame{Payload: []byte{0xff}, Ephemeral: true}, true)
	if want := `data: {"stream":{"channel":"o","scope":""},"payload_base64":"/w==","ephemeral":true}` + "\n\n"; string(ephemeral) != want {
		t.Errorf("got  %s\nwant %s", ephemeral, want)
	}
}

// What the tests read with must itself read by the standard: the same events wherever the
// stream is cut, with each kind of line end, with comments, and with a byte order mark.
func TestTheStrictParserReadsByTheStandard(t *testing.T) {
	const text = "\ufeff: hello\nretry: 10\nid: 1\n\nevent:a\ndata:x\ndata:  y\n\nid: 2\ndata: \ufeffz\n\ndata:\n\n:\nid: 3\n\n"
	want := []event{{"a", "x\n y", "1"}, {"message", "\ufeffz", "2"}, {"message", "", "2"}}
	for _, end := range []string{"\n", "\r\n", "\r"} {
		stream := strings.ReplaceAll(text, "\n", end)
		for cut := range len(stream) {
			got, err := strict(io.MultiReader(strings.NewReader(stream[:cut]), strings.NewReader(stream[cut:])))
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("cut at %d, line end %q: %q, %v", cut, end, got, err)
			}
		}
	}
	for _, bad := range []string{"data: x", "data: x\n", "x: y\n\n", "data\n\n", "data: \xff\n\n", "retry: 1s\n\n"} {
		if got, err := strict(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken: %q", bad, got)
		}
	}
	if !utf8.ValidString(text) {
		t.Error("the text of the test is not UTF-8")
	}
}
