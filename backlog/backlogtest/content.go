package backlogtest

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/fanfare-io/fanfare/backlog"
)

var contentTests = []test{
	{"Payloads", testPayloads},
	{"Headers", testHeaders},
	{"Types", testTypes},
	{"OddNames", testOddNames},
	{"NamesAreComparedByteByByte", testNames},
	{"ManyScopes", testManyScopes},
}

// allBytes has every byte value, hence NUL and invalid UTF-8.
func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// sized is a payload of n bytes that no transport can shorten unnoticed.
func sized(n int) []byte {
	return bytes.Repeat(allBytes(), n/256+1)[:n]
}

// roundTrip publishes p and fails the test unless a load and a page return it.
func (h *harness) roundTrip(p backlog.Publication) {
	h.Helper()
	position := h.publish(p)
	l := h.load(backlog.LoadRequest{Stream: p.Stream, MaxFrames: 1, MaxBytes: 1})
	if len(l.Frames) != 1 || l.Frames[0].Position != position {
		h.Fatalf("load returned %v, want one frame at %s", framePositions(l.Frames), position)
	}
	sameContent(h, l.Frames[0], p)
	page := h.page(pageAfter(p.Stream, l.Before))
	if len(page.Frames) != 1 || page.Frames[0].Position != position {
		h.Fatalf("page returned %v, want one frame at %s", framePositions(page.Frames), position)
	}
	sameContent(h, page.Frames[0], p)
}

func testPayloads(h *harness) {
	stream := name("payloads")
	for _, payload := range [][]byte{
		{}, nil, {0}, {0, 0, 0}, []byte("\n"), []byte("\\x00"), []byte("\\000"), []byte("\ufeffBOM"), []byte("invalid \xff\xfe\xc0\x80"),
		[]byte(`{"nul":"\u0000"}`), []byte(strings.Repeat("😀", 1999)), []byte(strings.Repeat("e\u0301", 3000)), allBytes(),
	} {
		h.roundTrip(backlog.Publication{Stream: stream, Payload: payload})
	}
	// A notification holds less than 8,000 bytes, a page of a table 8 KiB.
	for _, n := range []int{1990, 2000, 4095, 4096, 4097, 5700, 5800, 5900, 5999, 6000, 7999, 8000, 8001, 8192, 10_000, 100_000, 1_000_000} {
		h.roundTrip(backlog.Publication{Stream: stream, Payload: sized(n)})
	}
	h.roundTrip(backlog.Publication{Stream: stream, Payload: sized(backlog.DefaultMaxFrameBytes)})
}

func testHeaders(h *harness) {
	stream := name("headers")
	full := map[string]string{}
	for i := range backlog.MaxHeaders {
		key := fmt.Sprintf("header %02d", i)
		full[key] = strings.Repeat("v", backlog.MaxHeaderBytes/backlog.MaxHeaders-len(key))
	}
	for _, headers := range []map[string]string{
		nil, {}, {"a": ""}, {"A": "1", "a": "2"}, {`quote"`: `back\slash`, "'": "\u0001\t\r\n\u0085\u2028", "ключ": "значение", "😀": "👍"},
		{"escape": `\u0000`, "surrogate": `\ud800`, "json": `{"a":[1,2,null]}`, "number": "1e400", " space ": "  "}, full,
	} {
		h.roundTrip(backlog.Publication{Stream: stream, Payload: []byte("x"), Headers: headers})
		h.roundTrip(backlog.Publication{Stream: stream, Headers: headers})
	}
}

func testTypes(h *harness) {
	stream := name("types")
	for _, s := range []string{"text/plain; charset=utf-8", "a|b", `"';--`, "%s$1", "Ünïcödé", strings.Repeat("é", 127) + "x", "fanfare"} {
		h.roundTrip(backlog.Publication{Stream: stream, ContentType: s, EventType: s, IdempotencyKey: s, Payload: []byte(s)})
	}
}

// oddNames would change the meaning of a statement into which they were pasted,
// or collide with each other where characters are replaced or case is folded.
var oddNames = []string{
	`a"b`, `a'b`, `a;b`, `a--b`, `"; NOTIFY x, 'y`, `pg_sleep(5)`, `$1`, `%s`, `a\b`, `😀`, `select`, `fanfare`, `fanfare.streams`,
	"orders", "Orders", "ORDERS", "a:b", "a_b", "a-b", "a b", "a/b", "a.b", "a|b", "a,b", "{a,b}", `{"a"}`, "NULL", "null", " ", "  ",
	"é", "e\u0301", "\u00a0", "\u200b", "a\u2028b", "ß", "SS", "ı", "I", "i", "https://example.com/channels?x=1#y",
}

func testOddNames(h *harness) {
	longest := strings.Repeat("é", 127) + "x" // 255 bytes
	names := append([]string{longest}, oddNames...)
	var streams []backlog.StreamName
	for _, n := range names {
		streams = append(streams, name(n), name("fixed", n), name(n, n))
	}
	batch := make([]backlog.Publication, len(streams))
	for i, s := range streams {
		batch[i] = text(s, s.Channel+"\x00"+s.Scope)
	}
	for i, o := range h.publishBatch(batch) {
		equal(h, fmt.Sprintf("sequence in %q", streams[i]), o.Position.Sequence, 1)
	}
	for i, s := range streams {
		h.publish(text(s, "second"))
		l := h.load(everything(s))
		equalAll(h, fmt.Sprintf("payloads of %q", s), payloads(l.Frames), []string{string(batch[i].Payload), "second"})
		equal(h, "name in the state", l.State.Stream, s)
	}
}

// testNames: the border between channel and scope is part of the name.
func testNames(h *harness) {
	streams := []backlog.StreamName{name("ab", "c"), name("a", "bc"), name("abc"), name("abc", " "), name("ab ", "c"), name("ab", " c")}
	for i, s := range streams {
		equal(h, fmt.Sprintf("sequence in %q", s), h.publish(text(s, fmt.Sprint(i))).Sequence, 1)
	}
	for i, s := range streams {
		equalAll(h, fmt.Sprintf("payloads of %q", s), payloads(h.load(everything(s)).Frames), []string{fmt.Sprint(i)})
	}
}

// testManyScopes has enough scopes for a 16-bit hash of names to collide many
// times; each must get its own frame only.
func testManyScopes(h *harness) {
	const total = 5000
	for start := 0; start < total; start += backlog.MaxBatchFrames {
		batch := make([]backlog.Publication, backlog.MaxBatchFrames)
		for i := range batch {
			scope := fmt.Sprintf("%x", uint64(start+i)*0x9e3779b97f4a7c15)
			batch[i] = text(name("scopes", scope), scope)
		}
		h.publishBatch(batch)
		requests := make([]backlog.LoadRequest, len(batch))
		for i := range batch {
			requests[i] = everything(batch[i].Stream)
		}
		result, err := h.Load(h.context(), 0, requests)
		if err != nil {
			h.Fatal(err)
		}
		for i, l := range result.Streams {
			equalAll(h, "payloads", payloads(l.Frames), []string{batch[i].Stream.Scope})
		}
	}
}
