package backlogtest

import (
	"context"
	"fmt"

	"github.com/fanfare-io/fanfare/backlog"
)

var batchTests = []test{
	{"Order", testBatchOrder},
	{"AllOrNothing", testBatchAtomic},
	{"ExpectationsSeeEarlierFrames", testBatchExpectations},
	{"Duplicates", testBatchDuplicates},
	{"Reopening", testBatchReopens},
	{"OverlappingBatches", testOverlappingBatches},
}

func testBatchOrder(h *harness) {
	a, b := name("order", "a"), name("order", "b")
	p := positions(h.publishBatch([]backlog.Publication{text(b, "b1"), text(a, "a1"), text(b, "b2"), text(a, "a2"), text(b, "b3")}))
	var got []uint64
	for _, position := range p {
		got = append(got, position.Sequence)
	}
	equalAll(h, "sequences", got, []uint64{1, 1, 2, 2, 3})
	equalAll(h, "payloads of a", payloads(h.load(everything(a)).Frames), []string{"a1", "a2"})
	equalAll(h, "payloads of b", payloads(h.load(everything(b)).Frames), []string{"b1", "b2", "b3"})
}

func testBatchAtomic(h *harness) {
	a, b, fresh := name("atomic", "a"), name("atomic", "b"), name("atomic", "new")
	first := h.publish(keyed(a, "key", "x"))
	for what, bad := range map[string]backlog.Publication{
		"expectation": expecting(text(b, "x"), 7),
		"conflict":    keyed(a, "key", "y"),
	} {
		_, err := h.PublishBatch(h.context(), []backlog.Publication{text(a, "x"), text(fresh, "x"), bad, text(b, "x")})
		equal(h, what+": index", asError[*backlog.BatchError](h, what, err).Index, 2)
	}
	equal(h, "head of a", h.state(a).Head, first)
	equal(h, "b or the new stream exists", h.state(b).Exists || h.state(fresh).Exists, false)
	// Keys of the refused batch are not known.
	_, err := h.PublishBatch(h.context(), []backlog.Publication{keyed(b, "mine", "x"), expecting(text(b, "x"), 7)})
	expectedHead(h, "refused", err, backlog.Position{Epoch: asError[*backlog.ExpectationError](h, "refused", err).Head.Epoch, Sequence: 1})
	h.publish(keyed(b, "mine", "another content"))
}

func testBatchExpectations(h *harness) {
	stream := name("expectations")
	outcomes := h.publishBatch([]backlog.Publication{
		expecting(text(stream, "1"), 0), expecting(text(stream, "2"), 1), text(stream, "3"), expecting(text(stream, "4"), 3),
	})
	equal(h, "last sequence", outcomes[3].Position.Sequence, 4)
	_, err := h.PublishBatch(h.context(), []backlog.Publication{text(stream, "5"), expecting(text(stream, "6"), 4)})
	equal(h, "index", asError[*backlog.BatchError](h, "an earlier frame's head", err).Index, 1)
	equal(h, "head", h.state(stream).Head.Sequence, 4)
	epoch := h.state(stream).Head.Epoch
	h.publishBatch([]backlog.Publication{expecting(text(stream, "5"), 4, epoch), text(stream, "6")})
}

func testBatchDuplicates(h *harness) {
	a, b := name("duplicates", "a"), name("duplicates", "b")
	batch := []backlog.Publication{keyed(a, "1", "x"), keyed(b, "1", "y"), keyed(a, "2", "z")}
	first := h.publishBatch(batch)
	again := h.publishBatch(batch)
	for i := range again {
		equal(h, "outcome", again[i], backlog.Outcome{Position: first[i].Position, Duplicate: true})
	}
	for what, extra := range map[string]backlog.Publication{"a new key": keyed(b, "new", "x"), "no key": text(b, "x")} {
		_, err := h.PublishBatch(h.context(), append([]backlog.Publication{extra}, batch...))
		isError(h, what+" among duplicates", err, backlog.ErrPartlyDuplicate)
	}
	equal(h, "heads", [2]uint64{h.state(a).Head.Sequence, h.state(b).Head.Sequence}, [2]uint64{2, 1})
	h.publish(keyed(b, "new", "not known"))
}

func testBatchReopens(h *harness) {
	a, b := name("reopening", "a"), name("reopening", "b")
	h.publishMany(a, 3)
	h.publishMany(b, 3)
	h.close(a)
	p := positions(h.publishBatch([]backlog.Publication{text(b, "4"), text(a, "1"), text(a, "2")}))
	equal(h, "sequences", [3]uint64{p[0].Sequence, p[1].Sequence, p[2].Sequence}, [3]uint64{4, 1, 2})
	equalAll(h, "payloads", payloads(h.load(everything(a)).Frames), []string{"1", "2"})
}

// testOverlappingBatches: batches over the same streams in opposite orders do
// not get into each other's way, nor into that of single publishes.
func testOverlappingBatches(h *harness) {
	const publishers, rounds, streams = 6, 15, 8
	for _, err := range concurrently(h, publishers, func(ctx context.Context, i int) error {
		for range rounds {
			batch := make([]backlog.Publication, streams)
			for n := range batch {
				scope := n
				if i%2 == 1 {
					scope = streams - 1 - n
				}
				batch[n] = text(name("overlap", fmt.Sprint(scope)), "x")
			}
			if _, err := h.PublishBatch(ctx, batch); err != nil {
				return err
			}
			if _, err := backlog.Publish(ctx, h.Store, batch[i%streams]); err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			h.Fatal(err)
		}
	}
	total := uint64(0)
	for n := range streams {
		l := h.load(everything(name("overlap", fmt.Sprint(n))))
		contiguous(h, l.Frames, 1)
		total += l.State.Head.Sequence
	}
	equal(h, "frames", total, publishers*rounds*(streams+1))
}
