package backlogtest

import (
	"fmt"

	"github.com/fanfare-io/fanfare/backlog"
)

var pageTests = []test{
	{"FromStartToHead", testPages},
	{"PositionsAreExclusive", testExclusive},
	{"Cuts", testPageCuts},
	{"WrongPositions", testWrongPositions},
	{"StreamThatNeverExisted", testPageOfNothing},
	{"NotYetExisting", testPageOfNewStream},
}

func testPages(h *harness) {
	stream := name("pages")
	p := h.publishMany(stream, 25)
	var got []backlog.Position
	after := backlog.Position{}
	for {
		page := h.page(backlog.PageRequest{Stream: stream, After: after, MaxFrames: 7, MaxBytes: 1 << 20})
		equal(h, "head", page.State.Head, p[24])
		if len(page.Frames) == 0 {
			break
		}
		got = append(got, framePositions(page.Frames)...)
		after = got[len(got)-1]
	}
	equalAll(h, "positions", got, p)
}

// testExclusive: a position is what a client has seen.
func testExclusive(h *harness) {
	stream := name("exclusive")
	p := h.publishMany(stream, 5)
	for i, want := range map[int]int{1: 4, 4: 1, 5: 0} {
		page := h.page(pageAfter(stream, p[i-1]))
		equal(h, fmt.Sprintf("frames after %d", i), len(page.Frames), want)
		contiguous(h, page.Frames, uint64(i)+1)
	}
	for _, start := range []backlog.Position{{}, h.before(stream)} {
		equalAll(h, "frames from the start", framePositions(h.page(pageAfter(stream, start)).Frames), p)
	}
}

func testPageCuts(h *harness) {
	stream := name("cuts")
	for i := 1; i <= 10; i++ {
		h.publish(backlog.Publication{Stream: stream, Payload: sized(100 * i)})
	}
	for _, tt := range []struct{ maxFrames, maxBytes, want int }{
		{100, 1 << 20, 10}, {10, 1 << 20, 10}, {3, 1 << 20, 3}, {1, 1 << 20, 1}, {100, 5500, 10}, {100, 5499, 9},
		{100, 600, 3}, {100, 599, 2}, {100, 100, 1}, {100, 99, 1}, {100, 0, 1},
	} {
		page := h.page(backlog.PageRequest{Stream: stream, MaxFrames: tt.maxFrames, MaxBytes: tt.maxBytes})
		equal(h, fmt.Sprintf("%d frames, %d bytes", tt.maxFrames, tt.maxBytes), len(page.Frames), tt.want)
		contiguous(h, page.Frames, 1)
	}
}

func testWrongPositions(h *harness) {
	stream, other := name("wrong"), name("wrong", "other")
	p := h.publishMany(stream, 3)
	q := h.publishMany(other, 3)
	for what, after := range map[string]backlog.Position{
		"ahead":                  {Epoch: p[2].Epoch, Sequence: 4},
		"far ahead":              {Epoch: p[2].Epoch, Sequence: 1 << 63},
		"another epoch":          {Epoch: p[1].Epoch ^ 1, Sequence: 2},
		"another epoch, head":    {Epoch: p[2].Epoch ^ 1, Sequence: 3},
		"another epoch, start":   {Epoch: p[2].Epoch ^ 1, Sequence: 0},
		"no epoch":               {Sequence: 2},
		"another stream's":       q[1],
		"another stream's first": h.before(other),
	} {
		_, err := h.ReadPage(h.context(), 0, pageAfter(stream, after))
		isError(h, what, err, backlog.ErrNumberingGone)
		_, err = h.ReadPage(h.context(), 0, running(pageAfter(stream, after), h.state(stream).OwnEpoch))
		isError(h, what+", running", err, backlog.ErrNumberingGone)
	}
}

func testPageOfNothing(h *harness) {
	stream := name("nothing")
	page := h.page(pageAfter(stream, backlog.Position{}))
	equal(h, "state", page.State, backlog.StreamState{Stream: stream})
	equal(h, "frames", len(page.Frames), 0)
	_, err := h.ReadPage(h.context(), 0, pageAfter(stream, backlog.Position{Epoch: 5, Sequence: 3}))
	isError(h, "a position of a stream that does not exist", err, backlog.ErrNumberingGone)
	_, err = h.ReadPage(h.context(), 0, running(pageAfter(stream, backlog.Position{}), 7))
	isError(h, "a numbering of a stream that does not exist", err, backlog.ErrNumberingGone)
}

// testPageOfNewStream: who waited at 0-0 for a stream's first frame reads on
// from there.
func testPageOfNewStream(h *harness) {
	stream := name("new")
	h.publishMany(stream, 3)
	page := h.page(running(pageAfter(stream, backlog.Position{}), h.state(stream).OwnEpoch))
	equal(h, "frames", len(page.Frames), 3)
}
