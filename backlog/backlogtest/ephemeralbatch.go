package backlogtest

import (
	"fmt"

	"github.com/fanfare-io/fanfare/backlog"
)

func testEphemeralBatch(h *harness) {
	a, b, only, closed := name("mixed", "a"), name("mixed", "b"), name("mixed", "only"), name("mixed", "closed")
	h.publishMany(a, 2)
	h.publishMany(closed, 2)
	h.close(closed)
	outcomes := h.publishBatch([]backlog.Publication{
		passing(a, "x"), text(a, "3"), passing(a, "x"), text(b, "1"), passing(only, "x"), passing(b, "x"), text(a, "4"),
		passing(closed, "x"), keyed(closed, "key", "1"), passing(closed, "y"),
	})
	var got []uint64
	for _, o := range outcomes {
		got = append(got, o.Position.Sequence)
		if o.Position.Sequence == 0 || o.Duplicate {
			equal(h, "outcome of an ephemeral frame", o, backlog.Outcome{})
		}
	}
	equalAll(h, "sequences", got, []uint64{0, 3, 0, 1, 0, 0, 4, 0, 1, 0})
	for _, want := range []struct {
		stream   backlog.StreamName
		payloads []string
	}{{a, []string{"1", "2", "3", "4"}}, {b, []string{"1"}}, {closed, []string{"1"}}} {
		l := h.load(everything(want.stream))
		equalAll(h, "payloads", payloads(l.Frames), want.payloads)
		equal(h, "ephemeral", l.State.Ephemeral, true)
	}
	h.expectEmpty(only)

	for _, o := range h.publishBatch([]backlog.Publication{passing(name("new"), "1"), passing(name("new"), "2"), passing(b, "3")}) {
		equal(h, "outcome in a batch of ephemeral frames", o, backlog.Outcome{})
	}
	h.expectEmpty(name("new"))
}

// testEphemeralBatchExpectations: an expectation refers to the head including the
// batch's earlier frames, of which ephemeral ones move none, but make the stream
// exist.
func testEphemeralBatchExpectations(h *harness) {
	stream := name("expectations")
	p := positions(h.publishBatch([]backlog.Publication{
		passing(stream, "x"), expecting(text(stream, "1"), 0), passing(stream, "x"), passing(stream, "x"), expecting(text(stream, "2"), 1),
	}))
	equal(h, "last position", p[4], backlog.Position{Epoch: p[1].Epoch, Sequence: 2})
	_, err := h.PublishBatch(h.context(), []backlog.Publication{passing(stream, "x"), expecting(text(stream, "3"), 3)})
	equal(h, "index", asError[*backlog.BatchError](h, "refused", err).Index, 1)
	expectedHead(h, "refused", err, p[4])

	fresh := name("expectations", "fresh")
	_, err = h.PublishBatch(h.context(), []backlog.Publication{passing(fresh, "x"), expecting(text(fresh, "1"), 0, 0)})
	refused := asError[*backlog.ExpectationError](h, "the epoch of a stream that does not exist", err)
	if refused.Head.Sequence != 0 || refused.Head.Epoch == 0 {
		h.Errorf("the head in the error is %s", refused.Head)
	}
	equal(h, "exists", h.state(fresh).Exists, false)
	h.publish(expecting(text(fresh, "1"), 0, 0))
}

// testEphemeralBatchDuplicates: a batch that was published before is not published
// again, whatever the frames of it are that have no keys to tell by.
func testEphemeralBatchDuplicates(h *harness) {
	a, b, plain, closed, fresh := name("again", "a"), name("again", "b"), name("again", "plain"), name("again", "closed"), name("again", "fresh")
	batch := []backlog.Publication{passing(b, "x"), keyed(a, "1", "x"), passing(a, "y"), keyed(a, "2", "y"), passing(b, "z")}
	first := h.publishBatch(batch)
	h.publish(text(plain, "x"))
	h.publish(text(closed, "x"))
	h.close(closed)
	before := h.states(a, b, plain, closed, fresh)
	for i, o := range h.publishBatch(batch) {
		want := first[i]
		want.Duplicate = !batch[i].Ephemeral
		equal(h, fmt.Sprintf("outcome %d", i), o, want)
	}
	// The same keys among ephemeral frames that would change something.
	outcomes := h.publishBatch([]backlog.Publication{
		passing(fresh, "x"), passing(plain, "x"), passing(closed, "x"), batch[1], passing(fresh, "x"), batch[3], passing(closed, "x"),
	})
	for i, o := range outcomes {
		equal(h, fmt.Sprintf("outcome %d", i), o.Duplicate, i == 3 || i == 5)
	}
	equalAll(h, "states", h.states(a, b, plain, closed, fresh), before)
	h.pass(passing(fresh, "x"))
	h.expectEmpty(fresh)
}

func testEphemeralPartlyDuplicate(h *harness) {
	a, plain, fresh := name("partly", "a"), name("partly", "plain"), name("partly", "fresh")
	known := keyed(a, "known", "x")
	h.publish(known)
	h.publish(text(plain, "x"))
	before := h.states(a, plain, fresh)
	for what, batch := range map[string][]backlog.Publication{
		"a new key": {known, passing(fresh, "x"), keyed(a, "new", "x")},
		"no key":    {passing(plain, "x"), text(fresh, "x"), known, passing(a, "x")},
	} {
		_, err := h.PublishBatch(h.context(), batch)
		isError(h, what+" among duplicates", err, backlog.ErrPartlyDuplicate)
	}
	equalAll(h, "states", h.states(a, plain, fresh), before)
	h.publish(keyed(a, "new", "not known"))
}

func testEphemeralBatchRefused(h *harness) {
	plain, closed, fresh := name("refused", "plain"), name("refused", "closed"), name("refused", "fresh")
	h.publish(keyed(plain, "key", "x"))
	h.publishMany(closed, 2)
	h.close(closed)
	before := h.states(plain, closed, fresh)
	for what, bad := range map[string]backlog.Publication{
		"expectation": expecting(text(plain, "x"), 7),
		"conflict":    keyed(plain, "key", "y"),
	} {
		_, err := h.PublishBatch(h.context(), []backlog.Publication{
			passing(fresh, "x"), passing(closed, "x"), passing(plain, "x"), text(closed, "x"), bad, passing(fresh, "x"),
		})
		equal(h, what+": index", asError[*backlog.BatchError](h, what, err).Index, 4)
	}
	equalAll(h, "states", h.states(plain, closed, fresh), before)
	h.pass(passing(closed, "x"))
	h.expectEmpty(closed)
}
