package backlogtest

import (
	"context"
	"errors"

	"github.com/fanfare-io/fanfare/backlog"
)

var expectationTests = []test{
	{"Sequence", testExpectedSequence},
	{"Epoch", testExpectedEpoch},
	{"ClosedStreamHasNoHead", testExpectationOnClosed},
	{"RefusalCreatesNoStream", testRefusalCreatesNothing},
	{"Race", testExpectationRace},
}

func testExpectedSequence(h *harness) {
	stream := name("expected")
	one := h.publish(expecting(text(stream, "1"), 0))
	for _, wrong := range []uint64{0, 2, 1 << 40, backlog.MaxPositionValue} {
		_, err := h.tryPublish(expecting(text(stream, "x"), wrong))
		expectedHead(h, "wrong sequence", err, one)
	}
	two := h.publish(expecting(text(stream, "2"), 1))
	equal(h, "head", h.state(stream).Head, two)
	equal(h, "sequence", two.Sequence, 2)
}

func testExpectedEpoch(h *harness) {
	stream := name("epoch")
	one := h.publish(text(stream, "1"))
	for _, wrong := range []uint64{0, one.Epoch + 1, backlog.MaxPositionValue} {
		_, err := h.tryPublish(expecting(text(stream, "x"), 1, wrong))
		expectedHead(h, "wrong epoch", err, one)
	}
	h.publish(expecting(text(stream, "2"), one.Sequence, one.Epoch))
}

func testExpectationOnClosed(h *harness) {
	stream := name("closed")
	old := h.publish(text(stream, "1"))
	h.close(stream)
	_, err := h.tryPublish(expecting(text(stream, "x"), old.Sequence, old.Epoch))
	expectedHead(h, "head of a closed stream", err, backlog.Position{})
	equal(h, "still closed", h.state(stream).Closed, true)
	p := h.publish(expecting(text(stream, "2"), 0))
	equal(h, "sequence", p.Sequence, 1)
}

func testRefusalCreatesNothing(h *harness) {
	stream := name("nothing")
	_, err := h.tryPublish(expecting(text(stream, "x"), 1))
	expectedHead(h, "stream that does not exist", err, backlog.Position{})
	equal(h, "exists", h.state(stream).Exists, false)
	_, err = h.PublishBatch(h.context(), []backlog.Publication{text(name("other"), "x"), expecting(text(stream, "x"), 1)})
	expectedHead(h, "stream that does not exist, in a batch", err, backlog.Position{})
	equal(h, "exists", h.state(stream).Exists || h.state(name("other")).Exists, false)
	h.publish(expecting(text(stream, "x"), 0))
}

// testExpectationRace: of those who expect the same head exactly one succeeds.
func testExpectationRace(h *harness) {
	const rounds, publishers = 20, 8
	stream := name("race")
	for round := range uint64(rounds) {
		won := 0
		for _, err := range concurrently(h, publishers, func(ctx context.Context, _ int) error {
			_, err := backlog.Publish(ctx, h.Store, expecting(text(stream, "x"), round))
			return err
		}) {
			var refused *backlog.ExpectationError
			switch {
			case err == nil:
				won++
			case !errors.As(err, &refused):
				h.Fatal(err)
			default:
				equal(h, "head in the error", refused.Head.Sequence, round+1)
			}
		}
		equal(h, "winners", won, 1)
	}
}
