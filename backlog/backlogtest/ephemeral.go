package backlogtest

import (
	"context"
	"fmt"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var ephemeralTests = []test{
	{"NothingIsStored", testEphemeralNotStored},
	{"TheFirstCreatesAStream", testEphemeralCreates},
	{"OnlyTheFirstChangesTheStream", testEphemeralChangesOnce},
	{"ReopensAClosedStream", testEphemeralReopens},
	{"ClosingWithoutDurableFrames", testCloseEphemeralOnly},
	{"RestartOfTheStore", testEphemeralAfterRestart},
	{"RemovedAfterStreamRetention", testEphemeralRetention},
	{"KeptWhileInUse", testEphemeralUse},
	{"ExhaustedSequence", testEphemeralOnExhausted},
	{"Expectations", testEphemeralExpectations},
	{"Limits", testEphemeralLimits},
	{"MixedBatches", testEphemeralBatch},
	{"BatchExpectations", testEphemeralBatchExpectations},
	{"BatchOfDuplicates", testEphemeralBatchDuplicates},
	{"PartlyDuplicateBatches", testEphemeralPartlyDuplicate},
	{"RefusedBatchesLeaveNothing", testEphemeralBatchRefused},
	{"ManyPublishers", testEphemeralPublishers},
}

func passing(stream backlog.StreamName, payload string) backlog.Publication {
	p := text(stream, payload)
	p.Ephemeral = true
	return p
}

// pass publishes an ephemeral frame.
func (h *harness) pass(p backlog.Publication) {
	h.Helper()
	o, err := h.tryPublish(p)
	if err != nil {
		h.Fatalf("publish an ephemeral frame to %q: %v", p.Stream, err)
	}
	equal(h, "outcome of an ephemeral frame", o, backlog.Outcome{})
}

// states are those of several streams.
func (h *harness) states(streams ...backlog.StreamName) []backlog.StreamState {
	h.Helper()
	states := make([]backlog.StreamState, len(streams))
	for i, s := range streams {
		states[i] = h.state(s)
	}
	return states
}

// expectEmpty fails the test unless a stream exists with a numbering in which no
// frame was stored yet, and returns its state.
func (h *harness) expectEmpty(stream backlog.StreamName) backlog.StreamState {
	h.Helper()
	l := h.load(backlog.LoadRequest{Stream: stream, MaxFrames: 10, MaxBytes: 100, Verify: []uint64{0, 1}})
	s := l.State
	equal(h, "exists, ephemeral, closed", [3]bool{s.Exists, s.Ephemeral, s.Closed}, [3]bool{true, true, false})
	start := backlog.Position{Epoch: s.OwnEpoch ^ h.origin()}
	equal(h, "head", s.Head, start)
	equal(h, "base", s.Base, start)
	equal(h, "before", l.Before, start)
	equal(h, "floor", s.Floor, 0)
	equal(h, "frames", len(l.Frames), 0)
	equalAll(h, "verified", l.Verified, []backlog.Position{start, {Sequence: 1}})
	equal(h, "frames of a page", len(h.page(pageAfter(stream, start)).Frames), 0)
	return s
}

func testEphemeralNotStored(h *harness) {
	stream := name("stored")
	h.publish(text(stream, "1"))
	equal(h, "ephemeral before", h.state(stream).Ephemeral, false)
	full := passing(stream, "not stored")
	full.ContentType, full.EventType, full.Headers = "text/plain", "typing", map[string]string{"a": "b"}
	h.pass(full)
	large := passing(stream, "")
	large.Payload = sized(backlog.DefaultMaxFrameBytes)
	h.pass(large)
	two := h.publish(text(stream, "2"))
	equal(h, "sequence", two.Sequence, 2)
	h.pass(passing(stream, ""))
	l := h.load(everything(stream))
	equal(h, "head", l.State.Head, two)
	equal(h, "ephemeral", l.State.Ephemeral, true)
	equalAll(h, "payloads", payloads(l.Frames), []string{"1", "2"})
	for _, f := range append(l.Frames, h.page(pageAfter(stream, l.Before)).Frames...) {
		equal(h, "a stored frame is ephemeral", f.Ephemeral, false)
	}
}

func testEphemeralCreates(h *harness) {
	stream := name("created")
	h.pass(passing(stream, "x"))
	s := h.expectEmpty(stream)
	equal(h, "ever closed", s.EverClosed, false)
	equal(h, "own epoch of the numbering before", s.PreviousOwnEpoch, 0)
	if s.Created.IsZero() || s.Updated.Before(s.Created) {
		h.Errorf("created at %v, updated at %v", s.Created, s.Updated)
	}
	streams, err := h.ListStreams(h.context(), "", backlog.StreamName{}, 10)
	if err != nil {
		h.Fatal(err)
	}
	equalAll(h, "listed", streams, []backlog.StreamState{s})

	equal(h, "first position", h.publish(text(stream, "1")), backlog.Position{Epoch: s.Head.Epoch, Sequence: 1})
	equalAll(h, "page after the position before it", payloads(h.page(pageAfter(stream, s.Head)).Frames), []string{"1"})
	equal(h, "ephemeral", h.state(stream).Ephemeral, true)
}

// testEphemeralChangesOnce: ephemeral frames are cheap because the second one
// writes nothing for a while.
func testEphemeralChangesOnce(h *harness) {
	fresh, used := name("once", "fresh"), name("once", "used")
	h.publishMany(used, 3)
	before := h.state(used)
	h.pass(passing(fresh, "x"))
	h.pass(passing(used, "x"))
	after := h.states(fresh, used)
	if after[1].Updated.Before(before.Updated) {
		h.Errorf("updated went from %v to %v", before.Updated, after[1].Updated)
	}
	before.Ephemeral, before.Updated = true, after[1].Updated
	equal(h, "state after the first", after[1], before)
	for range 5 {
		h.pass(passing(fresh, "x"))
		h.publishBatch([]backlog.Publication{passing(used, "x"), passing(used, "y"), passing(fresh, "z")})
	}
	equalAll(h, "states", h.states(fresh, used), after)
}

func testEphemeralReopens(h *harness) {
	stream := name("reopened")
	old := h.publishMany(stream, 3)
	oldEpoch := h.state(stream).OwnEpoch
	h.close(stream)
	h.pass(passing(stream, "x"))
	s := h.expectEmpty(stream)
	equal(h, "ever closed", s.EverClosed, true)
	equal(h, "own epoch of the numbering before", s.PreviousOwnEpoch, oldEpoch)
	if s.OwnEpoch == oldEpoch {
		h.Error("the new numbering has the old one's epoch")
	}
	page := h.page(running(pageAfter(stream, old[0]), oldEpoch))
	equalAll(h, "rest of the old numbering", framePositions(page.Frames), old[1:])
	_, err := h.ReadPage(h.context(), 0, pageAfter(stream, old[0]))
	isError(h, "an old position", err, backlog.ErrNumberingGone)
	equal(h, "first position", h.publish(text(stream, "1")), backlog.Position{Epoch: s.Head.Epoch, Sequence: 1})
	equalAll(h, "payloads", payloads(h.load(everything(stream)).Frames), []string{"1"})

	// A durable frame that reopens the stream leaves the mark.
	h.close(stream)
	h.publish(text(stream, "1"))
	equal(h, "ephemeral", h.state(stream).Ephemeral, true)
	h.hooks.Sweep(h.T, h.Store)
	equalAll(h, "payloads after the grace", payloads(h.load(everything(stream)).Frames), []string{"1"})
}

func testCloseEphemeralOnly(h *harness) {
	stream := name("closed")
	h.pass(passing(stream, "x"))
	s := h.expectEmpty(stream)
	wrong := s.Head.Epoch ^ 1
	_, err := h.CloseStream(h.context(), stream, &wrong)
	expectedHead(h, "wrong epoch", err, s.Head)
	if _, err := h.CloseStream(h.context(), stream, &s.Head.Epoch); err != nil {
		h.Fatal(err)
	}
	equal(h, "second close", h.close(stream), backlog.CloseOutcome{Last: s.Head, AlreadyClosed: true})
	closed := h.state(stream)
	equal(h, "closed", closed.Closed && closed.EverClosed && closed.Ephemeral, true)
	equal(h, "head", closed.Head, s.Head)
	h.pass(passing(stream, "x"))
	again := h.expectEmpty(stream)
	equal(h, "own epoch of the numbering before", again.PreviousOwnEpoch, s.OwnEpoch)
	page := h.page(running(pageAfter(stream, s.Head), s.OwnEpoch))
	equal(h, "head of the old numbering", page.State.Head, s.Head)
	equal(h, "frames of the old numbering", len(page.Frames), 0)
	h.hooks.Sweep(h.T, h.Store)
	_, err = h.ReadPage(h.context(), 0, running(pageAfter(stream, s.Head), s.OwnEpoch))
	isError(h, "the old numbering after the grace", err, backlog.ErrNumberingGone)
	equal(h, "state after the grace", h.expectEmpty(stream), again)
}

func testEphemeralAfterRestart(h *harness) {
	fresh, used, closed := name("restart", "fresh"), name("restart", "used"), name("restart", "closed")
	h.pass(passing(fresh, "x"))
	h.publish(text(used, "1"))
	h.pass(passing(used, "x"))
	h.pass(passing(closed, "x"))
	h.close(closed)
	before := h.states(fresh, used, closed)
	h.Store = h.hooks.Reopen(h.T, h.Store)
	equalAll(h, "states", h.states(fresh, used, closed), before)
	h.pass(passing(fresh, "y"))
	h.pass(passing(used, "y"))
	equalAll(h, "states after more ephemeral frames", h.states(fresh, used, closed), before)
	head := before[0].Head
	_, err := h.tryPublish(expecting(text(fresh, "x"), 0, head.Epoch^1))
	expectedHead(h, "another epoch", err, head)
	equal(h, "sequence", h.publish(expecting(text(fresh, "1"), 0, head.Epoch)).Sequence, 1)
}

// testEphemeralRetention: a stream whose last ephemeral frame is older than its
// retention is removed.
func testEphemeralRetention(h *harness) {
	stream, full := name("retention", "empty"), name("retention", "full")
	h.setBounds(backlog.Bounds{Backlog: 10, StreamRetention: time.Hour})
	h.publish(text(full, "x"))
	h.pass(passing(full, "x"))
	h.pass(passing(stream, "x"))
	h.hooks.Sweep(h.T, h.Store)
	old := h.expectEmpty(stream)
	for _, s := range []backlog.StreamName{stream, full} {
		h.hooks.Age(h.T, h.Store, s, 2*time.Hour)
	}
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "empty stream exists after the retention", h.state(stream).Exists, false)
	equal(h, "stream with frames exists", h.state(full).Exists, true)
	h.pass(passing(stream, "x"))
	if h.expectEmpty(stream).OwnEpoch == old.OwnEpoch {
		h.Error("the stream came back with its old epoch")
	}
}

// testEphemeralOnExhausted: what needs no sequence is published where none is left.
func testEphemeralOnExhausted(h *harness) {
	stream := name("exhausted")
	h.publish(text(stream, "x"))
	h.hooks.SetHead(h.T, h.Store, stream, backlog.MaxPositionValue)
	h.pass(passing(stream, "x"))
	_, err := h.tryPublish(text(stream, "x"))
	isError(h, "a durable frame", err, backlog.ErrSequenceExhausted)
	h.publishBatch([]backlog.Publication{passing(stream, "x"), text(name("another"), "x")})
	equal(h, "head", h.state(stream).Head.Sequence, backlog.MaxPositionValue)
}

func testEphemeralExpectations(h *harness) {
	fresh, used := name("expected", "fresh"), name("expected", "used")
	one := h.publish(text(used, "1"))
	h.pass(passing(used, "x"))
	h.pass(passing(fresh, "x"))
	start := h.state(fresh).Head
	for what, p := range map[string]backlog.Publication{
		"a sequence that ephemeral frames do not have": expecting(text(fresh, "x"), 1),
		"the epoch of a stream that does not exist":    expecting(text(fresh, "x"), 0, 0),
		"another epoch": expecting(text(fresh, "x"), 0, start.Epoch^1),
	} {
		_, err := h.tryPublish(p)
		expectedHead(h, what, err, start)
	}
	_, err := h.tryPublish(expecting(text(used, "x"), 2))
	expectedHead(h, "the next sequence", err, one)
	h.publish(expecting(text(used, "2"), one.Sequence, one.Epoch))
	h.publish(expecting(text(fresh, "1"), 0, start.Epoch))

	only := name("expected", "only")
	h.pass(passing(only, "x"))
	h.close(only)
	_, err = h.tryPublish(expecting(text(only, "x"), 0, 1))
	expectedHead(h, "head of a closed stream", err, backlog.Position{})
	h.publish(expecting(text(only, "1"), 0, 0))
}

func testEphemeralLimits(h *harness) {
	extra := []refusal{
		{"idempotency_key", "with an ephemeral frame", func(p *backlog.Publication) { p.IdempotencyKey = "key" }},
		{"expected_sequence", "with an ephemeral frame", func(p *backlog.Publication) { *p = expecting(*p, 0) }},
		{"expected_sequence", "and epoch with an ephemeral frame", func(p *backlog.Publication) { *p = expecting(*p, 1, 2) }},
	}
	for _, r := range append(refusals(), extra...) {
		if r.field == "expected_epoch" { // its sequence is refused before
			continue
		}
		what := r.field + " " + r.why
		p := passing(name("refused"), "x")
		r.change(&p)
		_, err := h.tryPublish(p)
		equal(h, what+": field", asError[*backlog.LimitError](h, what, err).Field, r.field)
		_, err = h.PublishBatch(h.context(), []backlog.Publication{passing(name("good"), "x"), p})
		equal(h, what+" in a batch: field", asError[*backlog.LimitError](h, what+" in a batch", err).Field, r.field)
		equal(h, what+": index", asError[*backlog.BatchError](h, what, err).Index, 1)
	}
	batch := make([]backlog.Publication, backlog.MaxBatchFrames+1)
	for i := range batch {
		batch[i] = passing(name("many"), "")
	}
	_, err := h.PublishBatch(h.context(), batch)
	asError[*backlog.LimitError](h, "too many frames", err)
	streams, err := h.ListStreams(h.context(), "", backlog.StreamName{}, 1000)
	if err != nil || len(streams) != 0 {
		h.Errorf("streams after refusals: %v, %v", streams, err)
	}
	h.publishBatch(batch[1:])
	h.expectEmpty(name("many"))
}

// testEphemeralPublishers: ephemeral frames, durable ones and batches of both race
// to create the same streams; durable ones are numbered without a hole.
func testEphemeralPublishers(h *harness) {
	const publishers, rounds, streams = 9, 20, 3
	for _, err := range concurrently(h, publishers, func(ctx context.Context, i int) error {
		for n := range rounds {
			stream := name("race", fmt.Sprint(n%streams))
			var err error
			switch i % 3 {
			case 0:
				_, err = backlog.Publish(ctx, h.Store, passing(stream, "x"))
			case 1:
				_, err = backlog.Publish(ctx, h.Store, text(stream, "x"))
			default:
				_, err = h.PublishBatch(ctx, []backlog.Publication{passing(stream, "x"), text(stream, "x"), passing(stream, "x")})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			h.Fatal(err)
		}
	}
	total := 0
	for n := range streams {
		l := h.load(everything(name("race", fmt.Sprint(n))))
		contiguous(h, l.Frames, 1)
		equal(h, "ephemeral", l.State.Ephemeral, true)
		equal(h, "epoch", l.State.Head.Epoch, l.State.OwnEpoch^h.origin())
		total += len(l.Frames)
	}
	equal(h, "durable frames", total, publishers/3*2*rounds)
}
