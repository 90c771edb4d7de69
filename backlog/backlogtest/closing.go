package backlogtest

import (
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var closingTests = []test{
	{"CloseAndTombstone", testClose},
	{"NothingToClose", testCloseNothing},
	{"ExpectedEpoch", testCloseEpoch},
	{"ReopeningStartsANewNumbering", testReopening},
	{"OldNumberingStaysForTheGrace", testOldNumbering},
	{"ClosedFramesStayForTheGrace", testClosedFrames},
	{"RemovedAfterStreamRetention", testStreamRetention},
}

func testClose(h *harness) {
	stream := name("close")
	p := h.publishMany(stream, 3)
	o := h.close(stream)
	equal(h, "outcome", o, backlog.CloseOutcome{Last: p[2]})
	state := h.state(stream)
	equal(h, "closed", state.Closed && state.EverClosed && state.Exists, true)
	equal(h, "head", state.Head, p[2])
	equal(h, "second outcome", h.close(stream), backlog.CloseOutcome{Last: p[2], AlreadyClosed: true})
	h.hooks.Sweep(h.T, h.Store)
	l := h.load(backlog.LoadRequest{Stream: stream, MaxFrames: 10, MaxBytes: 100, Verify: []uint64{3, 2}})
	equal(h, "head after the grace", l.State.Head, p[2])
	equal(h, "base after the grace", l.State.Base, p[2])
	equal(h, "frames after the grace", len(l.Frames), 0)
	equal(h, "before", l.Before, p[2])
	equalAll(h, "verified", l.Verified, []backlog.Position{p[2], {Sequence: 2}})
	equal(h, "page at the head", len(h.page(pageAfter(stream, p[2])).Frames), 0)
}

func testCloseNothing(h *harness) {
	stream := name("nothing")
	equal(h, "outcome", h.close(stream), backlog.CloseOutcome{AlreadyClosed: true})
	equal(h, "exists", h.state(stream).Exists, false)
	equal(h, "sequence afterwards", h.publish(text(stream, "x")).Sequence, 1)
	equal(h, "ever closed", h.state(stream).EverClosed, false)
}

// testCloseEpoch: a late retry of a close cannot close the next numbering.
func testCloseEpoch(h *harness) {
	stream := name("epoch")
	first := h.publish(text(stream, "x"))
	wrong := first.Epoch ^ 1
	_, err := h.CloseStream(h.context(), stream, &wrong)
	expectedHead(h, "wrong epoch", err, first)
	equal(h, "closed", h.state(stream).Closed, false)
	if _, err := h.CloseStream(h.context(), stream, &first.Epoch); err != nil {
		h.Fatal(err)
	}
	second := h.publish(text(stream, "y"))
	_, err = h.CloseStream(h.context(), stream, &first.Epoch)
	expectedHead(h, "epoch of the numbering before", err, second)
	equal(h, "closed", h.state(stream).Closed, false)
}

func testReopening(h *harness) {
	stream := name("reopening")
	old := h.publishMany(stream, 5)
	oldEpoch := h.state(stream).OwnEpoch
	h.close(stream)
	p := h.publish(text(stream, "new"))
	equal(h, "sequence", p.Sequence, 1)
	l := h.load(backlog.LoadRequest{Stream: stream, MaxFrames: 10, MaxBytes: 100, Verify: []uint64{1, 5}})
	if l.State.OwnEpoch == oldEpoch || p.Epoch == old[0].Epoch {
		h.Error("the new numbering has the old one's epoch")
	}
	equal(h, "closed", l.State.Closed, false)
	equal(h, "ever closed", l.State.EverClosed, true)
	equal(h, "own epoch of the numbering before", l.State.PreviousOwnEpoch, oldEpoch)
	equalAll(h, "payloads", payloads(l.Frames), []string{"new"})
	equalAll(h, "verified", l.Verified, []backlog.Position{p, {Sequence: 5}})
	for _, after := range []backlog.Position{old[0], old[4], {}, {Sequence: 1}} {
		_, err := h.ReadPage(h.context(), 0, pageAfter(stream, after))
		isError(h, "page after "+after.String(), err, backlog.ErrNumberingGone)
	}
	equalAll(h, "page of the new numbering", payloads(h.page(pageAfter(stream, l.State.Base)).Frames), []string{"new"})
}

// testOldNumbering: a subscription that was reading a numbering when it was
// closed and reopened can finish it.
func testOldNumbering(h *harness) {
	stream := name("old")
	old := h.publishMany(stream, 5)
	oldEpoch := h.state(stream).OwnEpoch
	h.close(stream)
	h.publish(text(stream, "new"))
	page := h.page(running(pageAfter(stream, old[1]), oldEpoch))
	equalAll(h, "rest of the old numbering", framePositions(page.Frames), old[2:])
	equal(h, "its head", page.State.Head, old[4])
	equal(h, "its epoch", page.State.OwnEpoch, oldEpoch)
	equal(h, "closed", page.State.Closed, true)
	equal(h, "page at its head", len(h.page(running(pageAfter(stream, old[4]), oldEpoch)).Frames), 0)
	equal(h, "its frames from the start", len(h.page(running(pageAfter(stream, backlog.Position{}), oldEpoch)).Frames), 5)
	_, err := h.ReadPage(h.context(), 0, running(pageAfter(stream, old[1]), oldEpoch^1))
	isError(h, "a numbering that never was", err, backlog.ErrNumberingGone)
	_, err = h.ReadPage(h.context(), 0, running(pageAfter(name("another"), old[1]), oldEpoch))
	isError(h, "the numbering of another stream", err, backlog.ErrNumberingGone)

	h.hooks.Sweep(h.T, h.Store)
	_, err = h.ReadPage(h.context(), 0, running(pageAfter(stream, old[1]), oldEpoch))
	isError(h, "old numbering after the grace", err, backlog.ErrNumberingGone)
	equalAll(h, "new numbering after the grace", payloads(h.load(everything(stream)).Frames), []string{"new"})
}

func testClosedFrames(h *harness) {
	stream := name("closed")
	p := h.publishMany(stream, 5)
	epoch := h.state(stream).OwnEpoch
	h.close(stream)
	page := h.page(running(pageAfter(stream, p[1]), epoch))
	equalAll(h, "frames within the grace", framePositions(page.Frames), p[2:])
	equal(h, "closed", page.State.Closed, true)
	h.hooks.Sweep(h.T, h.Store)
	_, err := h.ReadPage(h.context(), 0, running(pageAfter(stream, p[1]), epoch))
	isError(h, "after the grace", err, backlog.ErrTrimmed)
}

func testStreamRetention(h *harness) {
	closed, idle, full := name("retention", "closed"), name("retention", "idle"), name("retention", "full")
	h.setBounds(backlog.Bounds{Backlog: 0, StreamRetention: time.Hour})
	old := h.publish(text(closed, "x"))
	oldEpoch := h.state(closed).OwnEpoch
	h.publish(text(idle, "x"))
	h.close(closed)
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "kept within the retention", h.state(closed).Exists && h.state(idle).Exists, true)

	h.setBounds(backlog.Bounds{Backlog: 10, StreamRetention: time.Hour})
	h.publish(text(full, "x"))
	for _, s := range []backlog.StreamName{closed, idle, full} {
		h.hooks.Age(h.T, h.Store, s, 2*time.Hour)
	}
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "closed stream exists after the retention", h.state(closed).Exists, false)
	equal(h, "idle empty stream exists after the retention", h.state(idle).Exists, false)
	equal(h, "idle stream with frames exists", h.state(full).Exists, true)
	expectGone := func(when string) {
		h.Helper()
		for _, request := range []backlog.PageRequest{pageAfter(closed, old), running(pageAfter(closed, old), oldEpoch)} {
			_, err := h.ReadPage(h.context(), 0, request)
			isError(h, when+": a position of the removed stream", err, backlog.ErrNumberingGone)
		}
	}
	expectGone("removed")
	// It comes back with the same sequences, of which none is the old position.
	p := h.publish(text(closed, "y"))
	equal(h, "sequence", p.Sequence, old.Sequence)
	if p.Epoch == old.Epoch {
		h.Error("the stream came back with its old epoch")
	}
	expectGone("created again")
	h.publish(text(closed, "z"))
	expectGone("with more frames")
}
