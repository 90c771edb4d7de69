package backlogtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var numberingTests = []test{
	{"FromOneInOneEpoch", testFromOne},
	{"StreamsAreIndependent", testIndependentStreams},
	{"SubmitKeepsOrder", testSubmitOrder},
	{"ManyPublishersOfNewStreams", testNewStreams},
	{"EqualFramesAreTwoFrames", testEqualFrames},
	{"LargeSequences", testLargeSequences},
	{"LastSequence", testLastSequence},
	{"LastSequenceInBatches", testLastSequenceInBatches},
	{"GoesOnAfterReopening", testReopen},
}

func testFromOne(h *harness) {
	stream := name("numbering", "one")
	equal(h, "state of a stream that never existed", h.state(stream), backlog.StreamState{Stream: stream})
	began := time.Now()
	for want := uint64(1); want <= 3; want++ {
		p := h.publish(text(stream, "x"))
		equal(h, "sequence", p.Sequence, want)
		if p.Epoch == 0 || p.Epoch > backlog.MaxPositionValue {
			h.Errorf("epoch %d of %s is not between 1 and 2^63-1", p.Epoch, p)
		}
	}
	l := h.load(everything(stream))
	contiguous(h, l.Frames, 1)
	equal(h, "frames", len(l.Frames), 3)
	equal(h, "head", l.State.Head, l.Frames[2].Position)
	equal(h, "head's epoch", l.State.Head.Epoch, l.State.OwnEpoch^h.origin())
	equal(h, "exists", l.State.Exists, true)
	equal(h, "closed", l.State.Closed || l.State.EverClosed, false)
	for _, f := range l.Frames {
		equal(h, "epoch", f.Position.Epoch, l.State.Head.Epoch)
		// The store's clock may be another machine's.
		if d := f.Created.Sub(began).Abs(); d > time.Hour {
			h.Errorf("frame %s was created %v from now", f.Position, d)
		}
		if f.Created.Location() != time.UTC {
			h.Errorf("frame's time is in %v, want UTC", f.Created.Location())
		}
	}
}

func testIndependentStreams(h *harness) {
	a, b := name("numbering", "a"), name("numbering", "b")
	p := positions(h.publishBatch([]backlog.Publication{text(a, "1"), text(b, "1"), text(a, "2")}))
	equal(h, "sequences", [3]uint64{p[0].Sequence, p[1].Sequence, p[2].Sequence}, [3]uint64{1, 1, 2})
	if h.state(a).OwnEpoch == h.state(b).OwnEpoch {
		h.Error("two streams have the same epoch")
	}
}

// testSubmitOrder: what is submitted one after another to a stream is numbered
// in that order, whatever is in flight.
func testSubmitOrder(h *harness) {
	const frames, streams = 3000, 7
	ctx := h.context()
	var mu sync.Mutex // guards what follows
	calls := make([]int, frames)
	got := make([]backlog.Outcome, frames)
	var failed error
	var pending sync.WaitGroup
	pending.Add(frames)
	for i := range frames {
		p := text(name("order", fmt.Sprint(i%streams)), fmt.Sprint(i))
		if i%5 == 0 { // decided one by one, among frames that are not
			p.IdempotencyKey = fmt.Sprint("key ", i)
		}
		h.Submit(ctx, p, func(o backlog.Outcome, err error) {
			mu.Lock()
			defer mu.Unlock()
			got[i] = o
			if err != nil {
				failed = err
			}
			if calls[i]++; calls[i] == 1 {
				pending.Done()
			}
		})
	}
	pending.Wait()
	mu.Lock()
	defer mu.Unlock()
	if failed != nil {
		h.Fatal(failed)
	}
	for i := range frames {
		equal(h, "calls of done", calls[i], 1)
		if want := uint64(i/streams) + 1; got[i].Position.Sequence != want {
			h.Fatalf("publication %d has sequence %d, want %d", i, got[i].Position.Sequence, want)
		}
	}
	for n := range streams {
		l := h.load(everything(name("order", fmt.Sprint(n))))
		contiguous(h, l.Frames, l.Frames[0].Position.Sequence)
		for i, f := range l.Frames {
			if want := fmt.Sprint((int(l.Frames[0].Position.Sequence)-1+i)*streams + n); string(f.Payload) != want {
				h.Fatalf("stream %d frame %s holds %s, want %s", n, f.Position, f.Payload, want)
			}
		}
	}
}

// concurrently runs do in n goroutines at a time and returns their errors.
func concurrently(h *harness, n int, do func(ctx context.Context, i int) error) []error {
	ctx := h.context()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(ctx, i) })
	}
	wg.Wait()
	return errs
}

// testNewStreams: many publishers race for a stream's first frame.
func testNewStreams(h *harness) {
	const publishers, streams = 16, 20
	errs := concurrently(h, publishers, func(ctx context.Context, i int) error {
		for n := range streams {
			if _, err := backlog.Publish(ctx, h.Store, text(name("new", fmt.Sprint(n)), fmt.Sprint(i))); err != nil {
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
	for n := range streams {
		l := h.load(everything(name("new", fmt.Sprint(n))))
		contiguous(h, l.Frames, 1)
		equal(h, "head", l.State.Head.Sequence, publishers)
		equal(h, "frames", len(l.Frames), publishers)
	}
}

// testEqualFrames: nothing on a frame's way folds equal content.
func testEqualFrames(h *harness) {
	stream := name("equal")
	p := positions(h.publishBatch([]backlog.Publication{text(stream, "same"), text(stream, "same")}))
	equal(h, "second sequence", p[1].Sequence, 2)
	equalAll(h, "payloads", payloads(h.load(everything(stream)).Frames), []string{"same", "same"})
}

// testLargeSequences: numbers beyond 2^53 are exact, which they are not in
// floating point.
func testLargeSequences(h *harness) {
	stream := name("large")
	h.publish(text(stream, "x"))
	const head = 9007199254740990
	h.hooks.SetHead(h.T, h.Store, stream, head)
	for i := range uint64(10) {
		equal(h, "sequence", h.publish(text(stream, "x")).Sequence, head+1+i)
	}
	page := h.page(pageAfter(stream, h.state(stream).Base))
	contiguous(h, page.Frames, head+1)
	equal(h, "frames", len(page.Frames), 10)
	page = h.page(pageAfter(stream, page.Frames[4].Position))
	contiguous(h, page.Frames, head+6)
}

func testLastSequence(h *harness) {
	stream := name("last")
	h.publish(text(stream, "x"))
	h.hooks.SetHead(h.T, h.Store, stream, backlog.MaxPositionValue-1)
	last := h.publish(text(stream, "last"))
	equal(h, "sequence", last.Sequence, backlog.MaxPositionValue)
	for range 2 {
		_, err := h.tryPublish(text(stream, "none left"))
		isError(h, "publish after the last sequence", err, backlog.ErrSequenceExhausted)
	}
	_, err := h.tryPublish(expecting(text(stream, "none left"), last.Sequence))
	isError(h, "publish after the last sequence with an expectation", err, backlog.ErrSequenceExhausted)
	page := h.page(pageAfter(stream, h.state(stream).Base))
	equalAll(h, "payloads", payloads(page.Frames), []string{"last"})
	equal(h, "frames after the last", len(h.page(pageAfter(stream, last)).Frames), 0)
	equal(h, "other streams' sequence", h.publish(text(name("last", "other"), "x")).Sequence, 1)
	h.close(stream)
	equal(h, "sequence after closing", h.publish(text(stream, "again")).Sequence, 1)
}

func testLastSequenceInBatches(h *harness) {
	stream := name("last")
	h.publish(text(stream, "x"))
	h.hooks.SetHead(h.T, h.Store, stream, backlog.MaxPositionValue-1)
	_, err := h.PublishBatch(h.context(), []backlog.Publication{text(stream, "fits"), text(stream, "does not")})
	isError(h, "batch over the last sequence", err, backlog.ErrSequenceExhausted)
	equal(h, "index", asError[*backlog.BatchError](h, "batch", err).Index, 1)
	equal(h, "head", h.state(stream).Head.Sequence, backlog.MaxPositionValue-1)
}

func testReopen(h *harness) {
	stream := name("reopen")
	before := h.publishMany(stream, 3)
	h.Store = h.hooks.Reopen(h.T, h.Store)
	l := h.load(everything(stream))
	equalAll(h, "positions after reopening", framePositions(l.Frames), before)
	equal(h, "next sequence", h.publish(text(stream, "4")).Sequence, 4)
	page := h.page(pageAfter(stream, before[1]))
	equalAll(h, "frames after an old position", payloads(page.Frames), []string{"3", "4"})
}
