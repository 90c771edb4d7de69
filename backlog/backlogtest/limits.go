package backlogtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/fanfare-io/fanfare/backlog"
)

var limitTests = []test{
	{"RefusedByField", testRefused},
	{"ExactlyTheLimit", testExactLimits},
	{"BatchLimits", testBatchLimits},
	{"NamesOfOtherMethods", testOtherMethodsNames},
	{"LoadRequests", testLoadRequestLimit},
	{"RefusedNeighbours", testRefusedNeighbours},
}

// refusal is a publication outside a limit.
type refusal struct {
	field, why string
	change     func(*backlog.Publication)
}

func refusals() []refusal {
	long := strings.Repeat("x", 256)
	headers := func(n, size int) map[string]string {
		m := make(map[string]string, n)
		for i := range n {
			m[fmt.Sprintf("h%04d", i)] = strings.Repeat("v", size)
		}
		return m
	}
	list := []refusal{
		{"channel", "empty", func(p *backlog.Publication) { p.Stream.Channel = "" }},
		{"event_type", "reserved", func(p *backlog.Publication) { p.EventType = "fanfare.gap" }},
		{"payload", "too long", func(p *backlog.Publication) { p.Payload = make([]byte, backlog.DefaultMaxFrameBytes+1) }},
		{"headers", "too many", func(p *backlog.Publication) { p.Headers = headers(backlog.MaxHeaders+1, 1) }},
		{"headers", "too long", func(p *backlog.Publication) { p.Headers = headers(1, backlog.MaxHeaderBytes-4) }},
		{"headers", "empty name", func(p *backlog.Publication) { p.Headers = map[string]string{"": "x"} }},
		{"headers", "control character in a name", func(p *backlog.Publication) { p.Headers = map[string]string{"a\nb": "x"} }},
		{"headers", "invalid UTF-8 in a value", func(p *backlog.Publication) { p.Headers = map[string]string{"a": "\xff"} }},
		{"headers", "NUL in a value", func(p *backlog.Publication) { p.Headers = map[string]string{"a": "x\x00"} }},
		{"expected_sequence", "2^63", func(p *backlog.Publication) { p.Expected = &backlog.Expectation{Sequence: 1 << 63} }},
		{"expected_epoch", "2^63", func(p *backlog.Publication) { *p = expecting(*p, 1, 1<<63) }},
	}
	for field, set := range map[string]func(*backlog.Publication, string){
		"channel":         func(p *backlog.Publication, s string) { p.Stream.Channel = s },
		"scope":           func(p *backlog.Publication, s string) { p.Stream.Scope = s },
		"content_type":    func(p *backlog.Publication, s string) { p.ContentType = s },
		"event_type":      func(p *backlog.Publication, s string) { p.EventType = s },
		"idempotency_key": func(p *backlog.Publication, s string) { p.IdempotencyKey = s },
	} {
		for why, value := range map[string]string{
			"too long": long, "too long in bytes": strings.Repeat("é", 128), "invalid UTF-8": "a\xc3", "overlong UTF-8": "\xc0\xaf",
			"surrogate": "\xed\xa0\x80", "NUL": "a\x00b", "tab": "a\tb", "line feed": "a\nb", "carriage return": "a\rb", "DEL": "a\x7f", "C1": "a\u0085b",
		} {
			list = append(list, refusal{field, why, func(p *backlog.Publication) { set(p, value) }})
		}
	}
	return list
}

// testRefused: every field outside its limit is refused by name, alone and in a
// batch, and nothing is stored.
func testRefused(h *harness) {
	for _, r := range refusals() {
		what := r.field + " " + r.why
		p := text(name("refused"), "x")
		r.change(&p)
		_, err := h.tryPublish(p)
		equal(h, what+": field", asError[*backlog.LimitError](h, what, err).Field, r.field)
		_, err = h.PublishBatch(h.context(), []backlog.Publication{text(name("good"), "x"), p})
		equal(h, what+" in a batch: field", asError[*backlog.LimitError](h, what+" in a batch", err).Field, r.field)
		equal(h, what+": index", asError[*backlog.BatchError](h, what, err).Index, 1)
	}
	streams, err := h.ListStreams(h.context(), "", backlog.StreamName{}, 1000)
	if err != nil || len(streams) != 0 {
		h.Errorf("streams after refusals: %v, %v", streams, err)
	}
}

func testExactLimits(h *harness) {
	max := strings.Repeat("é", 127) + "x" // 255 bytes
	p := backlog.Publication{
		Stream: name(max, max), ContentType: max, EventType: max, IdempotencyKey: max, Payload: sized(backlog.DefaultMaxFrameBytes),
		Headers: map[string]string{"h": strings.Repeat("v", backlog.MaxHeaderBytes-1)},
	}
	h.roundTrip(p)
	equal(h, "duplicate", h.duplicate(p).Sequence, 1)
}

func testBatchLimits(h *harness) {
	stream := name("batch")
	_, err := h.PublishBatch(h.context(), nil)
	asError[*backlog.LimitError](h, "empty batch", err)

	batch := make([]backlog.Publication, backlog.MaxBatchFrames+1)
	for i := range batch {
		batch[i] = text(stream, "")
	}
	_, err = h.PublishBatch(h.context(), batch)
	asError[*backlog.LimitError](h, "too many frames", err)
	equal(h, "last sequence of a full batch", h.publishBatch(batch[1:])[backlog.MaxBatchFrames-1].Position.Sequence, backlog.MaxBatchFrames)

	// The stream's name counts.
	part := backlog.Publication{Stream: stream, Payload: sized(backlog.MaxBatchBytes/4 - len(stream.Channel))}
	batch = []backlog.Publication{part, part, part, part}
	h.publishBatch(batch)
	batch[3].EventType = "x"
	_, err = h.PublishBatch(h.context(), batch)
	asError[*backlog.LimitError](h, "too many bytes", err)
	equal(h, "head", h.state(stream).Head.Sequence, backlog.MaxBatchFrames+4)
}

// testOtherMethodsNames: names are checked wherever they are given.
func testOtherMethodsNames(h *harness) {
	ctx := h.context()
	for _, n := range []backlog.StreamName{{}, name("a\x00"), name("a", "\xff"), name(strings.Repeat("x", 256))} {
		_, err := h.CloseStream(ctx, n, nil)
		asError[*backlog.LimitError](h, fmt.Sprintf("close %q", n), err)
		_, err = h.Load(ctx, 0, []backlog.LoadRequest{{Stream: n}})
		asError[*backlog.LimitError](h, fmt.Sprintf("load %q", n), err)
		_, err = h.ReadPage(ctx, 0, pageAfter(n, backlog.Position{}))
		asError[*backlog.LimitError](h, fmt.Sprintf("read %q", n), err)
		if n != (backlog.StreamName{}) {
			_, err = h.ListStreams(ctx, "", n, 1)
			asError[*backlog.LimitError](h, fmt.Sprintf("list after %q", n), err)
		}
	}
	_, err := h.ListStreams(ctx, "a\xff", backlog.StreamName{}, 1)
	asError[*backlog.LimitError](h, "list an invalid channel", err)
	for _, limit := range []int{-1, 0, 1001} {
		_, err = h.ListStreams(ctx, "", backlog.StreamName{}, limit)
		asError[*backlog.LimitError](h, fmt.Sprintf("list %d streams", limit), err)
	}
}

func testLoadRequestLimit(h *harness) {
	requests := make([]backlog.LoadRequest, backlog.MaxLoadRequests+1)
	for i := range requests {
		requests[i] = everything(name("load", fmt.Sprint(i)))
	}
	_, err := h.Load(h.context(), 0, requests)
	asError[*backlog.LimitError](h, "too many requests", err)
	result, err := h.Load(h.context(), 0, requests[1:])
	if err != nil {
		h.Fatal(err)
	}
	equal(h, "streams", len(result.Streams), backlog.MaxLoadRequests)
}

// testRefusedNeighbours: one caller's refusal changes nothing for the others
// that share a transaction with it.
func testRefusedNeighbours(h *harness) {
	stream := name("neighbours")
	first := h.publish(keyed(stream, "key", "first"))
	errs := concurrently(h, 60, func(ctx context.Context, i int) error {
		var p backlog.Publication
		switch i % 3 {
		case 0:
			p = keyed(stream, "key", "another content")
		case 1:
			p = expecting(text(stream, "x"), 1<<40)
		default:
			p = text(stream, "good")
		}
		_, err := backlog.Publish(ctx, h.Store, p)
		return err
	})
	for i, err := range errs {
		switch i % 3 {
		case 0:
			equal(h, "position", asError[*backlog.KeyConflictError](h, "conflict", err).Position, first)
		case 1:
			asError[*backlog.ExpectationError](h, "expectation", err)
		default:
			isError(h, "neighbour", err, nil)
		}
	}
	equal(h, "head", h.state(stream).Head.Sequence, 21)
}
