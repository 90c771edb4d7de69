package backlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Each limit is tested at its edge: the last value that is accepted, and the
// first that is refused with the field's name.
func TestLimits(t *testing.T) {
	const limit = 100 // of a payload
	tooLarge := uint64(MaxPositionValue + 1)
	headers := func(n, bytes int) map[string]string {
		m := make(map[string]string)
		for i := range n {
			m[fmt.Sprintf("%02d", i)] = strings.Repeat("v", bytes/n-2)
		}
		return m
	}
	for _, c := range []struct {
		field          string
		accept, refuse func(p *Publication)
	}{
		{"channel", func(p *Publication) { p.Stream.Channel = strings.Repeat("c", 255) }, func(p *Publication) { p.Stream.Channel = strings.Repeat("c", 256) }},
		{"channel", func(p *Publication) { p.Stream.Channel = " " }, func(p *Publication) { p.Stream.Channel = "" }},
		{"channel", func(p *Publication) { p.Stream.Channel = "\u00a0\u2028" }, func(p *Publication) { p.Stream.Channel = "a\u0085" }},
		{"scope", func(p *Publication) { p.Stream.Scope = strings.Repeat("é", 127) }, func(p *Publication) { p.Stream.Scope = strings.Repeat("é", 128) }},
		{"scope", func(p *Publication) { p.Stream.Scope = "\ufffd" }, func(p *Publication) { p.Stream.Scope = "\xff" }},
		{"content_type", func(p *Publication) { p.ContentType = strings.Repeat("t", 255) }, func(p *Publication) { p.ContentType = strings.Repeat("t", 256) }},
		{"event_type", func(p *Publication) { p.EventType = "fanfare" }, func(p *Publication) { p.EventType = "fanfare." }},
		{"event_type", func(p *Publication) { p.EventType = "x: 1" }, func(p *Publication) { p.EventType = "x\ndata: forged" }},
		{"event_type", func(p *Publication) { p.EventType = "~" }, func(p *Publication) { p.EventType = "\x7f" }},
		{"idempotency_key", func(p *Publication) { p.IdempotencyKey = strings.Repeat("k", 255) }, func(p *Publication) { p.IdempotencyKey = strings.Repeat("k", 256) }},
		{"payload", func(p *Publication) { p.Payload = make([]byte, limit) }, func(p *Publication) { p.Payload = make([]byte, limit+1) }},
		{"headers", func(p *Publication) { p.Headers = headers(32, 64) }, func(p *Publication) { p.Headers = headers(33, 66) }},
		{"headers", func(p *Publication) { p.Headers = headers(2, MaxHeaderBytes) }, func(p *Publication) { p.Headers = headers(2, MaxHeaderBytes+2) }},
		{"headers", func(p *Publication) { p.Headers = map[string]string{"n": "a\nb"} }, func(p *Publication) { p.Headers = map[string]string{"n\n": "a"} }},
		{"headers", func(p *Publication) { p.Headers = map[string]string{"n": ""} }, func(p *Publication) { p.Headers = map[string]string{"": "a"} }},
		{"headers", func(p *Publication) { p.Headers = map[string]string{"n": "\x01"} }, func(p *Publication) { p.Headers = map[string]string{"n": "a\x00"} }},
		{"headers", func(p *Publication) { p.Headers = map[string]string{"n": "é"} }, func(p *Publication) { p.Headers = map[string]string{"n": "\xc3"} }},
		{"expected_sequence", func(p *Publication) { p.Expected = &Expectation{Sequence: MaxPositionValue} }, func(p *Publication) { p.Expected = &Expectation{Sequence: tooLarge} }},
		{"idempotency_key", func(p *Publication) { p.Ephemeral = true }, func(p *Publication) { p.Ephemeral, p.IdempotencyKey = true, "k" }},
		{"expected_sequence", func(p *Publication) { p.Ephemeral = true }, func(p *Publication) { p.Ephemeral, p.Expected = true, &Expectation{} }},
		{"expected_epoch", func(p *Publication) { p.Expected = &Expectation{Epoch: new(uint64)} }, func(p *Publication) { p.Expected = &Expectation{Epoch: &tooLarge} }},
	} {
		valid := func() *Publication { return &Publication{Stream: StreamName{Channel: "c"}} }
		p := valid()
		c.accept(p)
		if err := p.Validate(limit); err != nil {
			t.Errorf("%s at its limit: %v", c.field, err)
		}
		p = valid()
		c.refuse(p)
		var refused *LimitError
		if err := p.Validate(limit); !errors.As(err, &refused) || refused.Field != c.field {
			t.Errorf("%s beyond its limit: %v", c.field, err)
		}
	}
}

func TestDefaultPayloadLimit(t *testing.T) {
	p := &Publication{Stream: StreamName{Channel: "c"}, Payload: make([]byte, DefaultMaxFrameBytes)}
	if err := p.Validate(0); err != nil {
		t.Error(err)
	}
	p.Payload = append(p.Payload, 0)
	if err := p.Validate(0); err == nil {
		t.Error("one byte more was accepted")
	}
}
