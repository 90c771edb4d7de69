package backlogtest

import (
	"context"
	"fmt"

	"github.com/fanfare-io/fanfare/backlog"
)

var idempotencyTests = []test{
	{"KnownKeyIsADuplicate", testDuplicate},
	{"AnotherContentIsAConflict", testConflict},
	{"KeysBelongToAStream", testKeysPerStream},
	{"ClosedStreamStaysClosed", testDuplicateOnClosed},
	{"TrimmedFrame", testDuplicateOfTrimmed},
	{"BeforeTheExpectation", testDuplicateBeforeExpectation},
	{"Race", testKeyRace},
	{"ForgottenAfterTheWindow", testKeyWindow},
}

// duplicate publishes p, which was published before, and returns the position
// of the frame stored first.
func (h *harness) duplicate(p backlog.Publication) backlog.Position {
	h.Helper()
	o, err := h.tryPublish(p)
	if err != nil {
		h.Fatalf("publish again under key %q: %v", p.IdempotencyKey, err)
	}
	equal(h, "duplicate", o.Duplicate, true)
	return o.Position
}

func (h *harness) conflict(p backlog.Publication, first backlog.Position) {
	h.Helper()
	_, err := h.tryPublish(p)
	equal(h, "position in the conflict", asError[*backlog.KeyConflictError](h, "another content", err).Position, first)
}

func testDuplicate(h *harness) {
	stream := name("duplicate")
	h.publish(text(stream, "x"))
	p := keyed(stream, `key "'; 😀`, "once")
	p.Headers = map[string]string{"a": "1", "b": "2"}
	first := h.publish(p)
	h.publish(text(stream, "y"))
	equal(h, "first position", h.duplicate(p), first)
	equal(h, "first position in a batch", h.publishBatch([]backlog.Publication{p})[0], backlog.Outcome{Position: first, Duplicate: true})
	equal(h, "head", h.state(stream).Head.Sequence, 3)
}

func testConflict(h *harness) {
	stream := name("conflict")
	p := keyed(stream, "key", "content")
	p.ContentType, p.EventType, p.Headers = "text/plain", "created", map[string]string{"a": "1"}
	first := h.publish(p)
	for what, change := range map[string]func(*backlog.Publication){
		"payload":       func(p *backlog.Publication) { p.Payload = []byte("other") },
		"empty payload": func(p *backlog.Publication) { p.Payload = nil },
		"content type":  func(p *backlog.Publication) { p.ContentType = "" },
		"event type":    func(p *backlog.Publication) { p.EventType = "deleted" },
		"moved types":   func(p *backlog.Publication) { p.ContentType, p.EventType = "text/plaincreated", "" },
		"headers":       func(p *backlog.Publication) { p.Headers = map[string]string{"a": "2"} },
		"no headers":    func(p *backlog.Publication) { p.Headers = nil },
	} {
		other := p
		change(&other)
		h.Log(what)
		h.conflict(other, first)
	}
	equal(h, "head", h.state(stream).Head.Sequence, 1)
	equal(h, "first position", h.duplicate(p), first)
}

func testKeysPerStream(h *harness) {
	a, b := name("keys", "a"), name("keys", "b")
	h.publish(keyed(a, "key", "x"))
	equal(h, "sequence on another stream", h.publish(keyed(b, "key", "x")).Sequence, 1)
	equal(h, "sequence under another key", h.publish(keyed(a, "KEY", "x")).Sequence, 2)
}

// testDuplicateOnClosed: a retry gets its old answer and does not reopen what
// was closed since; after a reopening it still does.
func testDuplicateOnClosed(h *harness) {
	stream := name("closed")
	first := h.publish(keyed(stream, "key", "x"))
	h.close(stream)
	equal(h, "position", h.duplicate(keyed(stream, "key", "x")), first)
	h.conflict(keyed(stream, "key", "y"), first)
	equal(h, "still closed", h.state(stream).Closed, true)
	h.publish(text(stream, "reopened"))
	equal(h, "position after reopening", h.duplicate(keyed(stream, "key", "x")), first)
	equal(h, "head", h.state(stream).Head.Sequence, 1)
}

func testDuplicateOfTrimmed(h *harness) {
	stream := name("trimmed")
	h.setBounds(backlog.Bounds{Backlog: 1})
	first := h.publish(keyed(stream, "key", "x"))
	h.publishMany(stream, 5)
	h.hooks.Sweep(h.T, h.Store)
	if floor := h.state(stream).Floor; floor < first.Sequence {
		h.Fatalf("floor is %d, want the first frame to be gone", floor)
	}
	equal(h, "position", h.duplicate(keyed(stream, "key", "x")), first)
	h.conflict(keyed(stream, "key", "y"), first)
}

func testDuplicateBeforeExpectation(h *harness) {
	stream := name("expectation")
	p := expecting(keyed(stream, "key", "x"), 0)
	first := h.publish(p)
	equal(h, "position", h.duplicate(p), first)
}

// testKeyRace: of equal publications at the same time one is stored, and all get
// its position.
func testKeyRace(h *harness) {
	const publishers, keys = 8, 30
	stream := name("race")
	outcomes := make([][keys]backlog.Outcome, publishers)
	errs := concurrently(h, publishers, func(ctx context.Context, i int) (err error) {
		for k := range keys {
			p := keyed(stream, fmt.Sprint(k), fmt.Sprint("content ", k))
			if outcomes[i][k], err = backlog.Publish(ctx, h.Store, p); err != nil {
				return err
			}
		}
		return nil
	})
	for _, err := range errs {
		if err != nil {
			h.Fatal(err)
		}
	}
	for k := range keys {
		stored := 0
		for i := range publishers {
			equal(h, "position", outcomes[i][k].Position, outcomes[0][k].Position)
			if !outcomes[i][k].Duplicate {
				stored++
			}
		}
		equal(h, "stored", stored, 1)
	}
	equal(h, "head", h.state(stream).Head.Sequence, keys)
}

func testKeyWindow(h *harness) {
	stream := name("window")
	first := h.publish(keyed(stream, "key", "x"))
	h.hooks.Age(h.T, h.Store, stream, IdempotencyWindow/2)
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "position within the window", h.duplicate(keyed(stream, "key", "x")), first)
	h.hooks.Age(h.T, h.Store, stream, IdempotencyWindow)
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "sequence after the window", h.publish(keyed(stream, "key", "x")).Sequence, 2)
}
