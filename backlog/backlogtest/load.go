package backlogtest

import (
	"context"
	"fmt"
	"sync"

	"github.com/fanfare-io/fanfare/backlog"
)

var loadTests = []test{
	{"ManyStreams", testLoadMany},
	{"NewestWithinTheBounds", testLoadCuts},
	{"OneFrameWhateverItsSize", testLoadLarge},
	{"Verify", testVerify},
	{"OneSnapshot", testLoadSnapshot},
	{"OtherServer", testOtherServer},
	{"Ping", testPing},
}

func testLoadMany(h *harness) {
	const streams = 50
	var requests []backlog.LoadRequest
	for i := range streams {
		stream := name("many", fmt.Sprint(i))
		if i%5 != 0 {
			h.publishMany(stream, i)
		}
		requests = append(requests, everything(stream), backlog.LoadRequest{Stream: stream, MaxFrames: 1, MaxBytes: 100, Verify: []uint64{uint64(i), 0}})
	}
	result, err := h.Load(h.context(), 0, requests)
	if err != nil {
		h.Fatal(err)
	}
	equal(h, "streams", len(result.Streams), 2*streams)
	equal(h, "origin", result.Origin, h.origin())
	for i := range streams {
		all, newest := result.Streams[2*i], result.Streams[2*i+1]
		equal(h, "name", all.State.Stream, requests[2*i].Stream)
		equal(h, "same state", all.State, newest.State)
		if i%5 == 0 {
			equal(h, "exists", all.State.Exists, false)
			equal(h, "frames", len(all.Frames)+len(newest.Frames), 0)
			equal(h, "before", all.Before, backlog.Position{})
			equalAll(h, "verified", newest.Verified, []backlog.Position{{Sequence: uint64(i)}, {}})
			continue
		}
		equal(h, "frames", len(all.Frames), i)
		contiguous(h, all.Frames, 1)
		equalAll(h, "newest", framePositions(newest.Frames), []backlog.Position{all.State.Head})
		equalAll(h, "verified", newest.Verified, []backlog.Position{all.State.Head, all.Before})
	}
}

// testLoadCuts: the newest frames are kept, and Before is the position before
// the oldest of them.
func testLoadCuts(h *harness) {
	stream := name("cuts")
	p := make([]backlog.Position, 11) // by sequence
	for i := 1; i <= 10; i++ {
		p[i] = h.publish(backlog.Publication{Stream: stream, Payload: sized(100 * i)})
	}
	p[0] = h.before(stream)
	for _, tt := range []struct {
		after               uint64
		maxFrames, maxBytes int
		first               int // sequence of the first frame; 11: none
	}{
		{0, 100, 1 << 20, 1},
		{0, 10, 1 << 20, 1},
		{0, 9, 1 << 20, 2},
		{0, 1, 1 << 20, 10},
		{0, 0, 1 << 20, 11},
		{0, -1, -1, 11},
		{4, 100, 1 << 20, 5},
		{4, 2, 1 << 20, 9},
		{9, 100, 1 << 20, 10},
		{10, 100, 1 << 20, 11},
		{11, 100, 1 << 20, 11},
		{1<<64 - 1, 100, 1 << 20, 11},
		{0, 100, 5500, 1},
		{0, 100, 5499, 2},
		{0, 100, 1900, 9},
		{0, 100, 1899, 10},
		{0, 100, 1, 10},
		{0, 100, 0, 10},
		{0, 100, -1, 10},
		{8, 100, 1900, 9},
	} {
		what := fmt.Sprintf("after %d, %d frames, %d bytes", tt.after, tt.maxFrames, tt.maxBytes)
		l := h.load(backlog.LoadRequest{Stream: stream, After: tt.after, MaxFrames: tt.maxFrames, MaxBytes: tt.maxBytes})
		equalAll(h, what+": frames", framePositions(l.Frames), p[tt.first:])
		equal(h, what+": before", l.Before, p[tt.first-1])
		equal(h, what+": head", l.State.Head, p[10])
	}
}

func testLoadLarge(h *harness) {
	stream := name("large")
	h.publish(text(stream, "small"))
	h.roundTrip(backlog.Publication{Stream: stream, Payload: sized(backlog.DefaultMaxFrameBytes)})
	equal(h, "frames", len(h.load(backlog.LoadRequest{Stream: stream, MaxFrames: 5, MaxBytes: 1000}).Frames), 1)
}

func testVerify(h *harness) {
	stream := name("verify")
	p := h.publishMany(stream, 3)
	l := h.load(backlog.LoadRequest{Stream: stream, Verify: []uint64{3, 0, 1, 4, 2, 2, 1<<64 - 1}})
	equalAll(h, "verified", l.Verified, []backlog.Position{
		p[2], h.before(stream), p[0], {Sequence: 4}, p[1], p[1], {Sequence: 1<<64 - 1},
	})
	equal(h, "frames", len(l.Frames), 0)
	equal(h, "before", l.Before, p[2])
}

// testLoadSnapshot: while publishers are at work, frames are contiguous and end
// at the head that is returned with them.
func testLoadSnapshot(h *harness) {
	stream := name("snapshot")
	ctx, stop := context.WithCancel(h.context())
	var publisher sync.WaitGroup
	publisher.Go(func() {
		for ctx.Err() == nil {
			if _, err := backlog.Publish(ctx, h.Store, text(stream, "x")); err != nil && ctx.Err() == nil {
				h.Errorf("publish: %v", err)
				return
			}
		}
	})
	defer publisher.Wait()
	defer stop()
	for head := uint64(0); head < 100; {
		l := h.load(backlog.LoadRequest{Stream: stream, MaxFrames: 5, MaxBytes: 100})
		if l.State.Head.Sequence < head {
			h.Fatalf("head went from %d back to %d", head, l.State.Head.Sequence)
		}
		head = l.State.Head.Sequence
		equal(h, "frames", len(l.Frames), int(min(head, 5)))
		if head == 0 {
			continue
		}
		contiguous(h, l.Frames, head-uint64(len(l.Frames))+1)
		equal(h, "last frame", l.Frames[len(l.Frames)-1].Position, l.State.Head)
	}
}

func testOtherServer(h *harness) {
	stream := name("other")
	p := h.publish(text(stream, "x"))
	origin := h.origin()
	if origin == 0 || origin > backlog.MaxPositionValue {
		h.Fatalf("origin is %d", origin)
	}
	wrong := origin ^ 1
	_, err := h.Load(h.context(), wrong, []backlog.LoadRequest{everything(stream)})
	isError(h, "load", err, backlog.ErrOtherServer)
	_, err = h.ReadPage(h.context(), wrong, pageAfter(stream, backlog.Position{}))
	isError(h, "page", err, backlog.ErrOtherServer)
	// The store is not harmed.
	if _, err = h.Load(h.context(), origin, []backlog.LoadRequest{everything(stream)}); err != nil {
		h.Error(err)
	}
	page, err := h.ReadPage(h.context(), origin, pageAfter(stream, backlog.Position{}))
	if err != nil {
		h.Error(err)
	}
	equalAll(h, "frames", framePositions(page.Frames), []backlog.Position{p})
}

func testPing(h *harness) {
	if err := h.Ping(h.context()); err != nil {
		h.Error(err)
	}
}
