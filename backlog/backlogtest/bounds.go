package backlogtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var boundTests = []test{
	{"BacklogIsExact", testBacklog},
	{"NoBacklog", testNoBacklog},
	{"RetentionAge", testRetentionAge},
	{"TrimmedAfterTheGrace", testTrim},
	{"TrimmingWhilePaging", testTrimWhilePaging},
}

// testBacklog: the base moves with every frame, not when rows are deleted.
func testBacklog(h *harness) {
	stream := name("backlog")
	h.setBounds(backlog.Bounds{Backlog: 5})
	var all []backlog.Position
	for range 12 {
		all = append(all, h.publish(text(stream, "x")))
		state := h.state(stream)
		equal(h, "base", state.Base.Sequence, uint64(max(0, len(all)-5)))
		if len(all) > 5 {
			equal(h, "base", state.Base, all[len(all)-6])
		}
		equal(h, "backlog", state.Backlog, 5)
		equal(h, "retention age", state.RetentionAge, 0)
	}
	page := h.page(pageAfter(stream, all[6]))
	equalAll(h, "page after the base", framePositions(page.Frames), all[7:])
	_, err := h.ReadPage(h.context(), 0, pageAfter(stream, all[5]))
	isError(h, "page after a position below the base", err, backlog.ErrTrimmed)
	page = h.page(running(pageAfter(stream, all[5]), 0))
	equalAll(h, "page of a running subscription", framePositions(page.Frames), all[6:])
	// A wrong position is wrong, also below the base.
	_, err = h.ReadPage(h.context(), 0, pageAfter(stream, backlog.Position{Epoch: all[5].Epoch ^ 1, Sequence: 6}))
	isError(h, "page after a position of another epoch", err, backlog.ErrNumberingGone)
}

// testNoBacklog: with backlog 0 nobody may replay, but frames are stored for
// the grace, which is how running subscriptions get what is not in memory.
func testNoBacklog(h *harness) {
	stream := name("none")
	h.setBounds(backlog.Bounds{Backlog: 0})
	p := h.publishMany(stream, 3)
	state := h.state(stream)
	equal(h, "base", state.Base, p[2])
	equal(h, "head", state.Head, p[2])
	equalAll(h, "rows", framePositions(h.page(running(pageAfter(stream, p[0]), state.OwnEpoch)).Frames), p[1:])
	h.hooks.Sweep(h.T, h.Store)
	l := h.load(backlog.LoadRequest{Stream: stream, MaxFrames: 10, MaxBytes: 100, Verify: []uint64{3}})
	equal(h, "frames after the grace", len(l.Frames), 0)
	equalAll(h, "verified head", l.Verified, p[2:])
	equal(h, "next sequence", h.publish(text(stream, "x")).Sequence, 4)
}

func testRetentionAge(h *harness) {
	stream := name("age")
	h.setBounds(backlog.Bounds{Backlog: 100, RetentionAge: time.Hour})
	old := h.publishMany(stream, 4)
	h.hooks.Age(h.T, h.Store, stream, 2*time.Hour)
	equal(h, "base when all frames are too old", h.state(stream).Base, old[3])
	fresh := h.publishMany(stream, 2)
	state := h.state(stream)
	equal(h, "base", state.Base, old[3])
	equal(h, "retention age", state.RetentionAge, time.Hour)
	l := h.load(everything(stream))
	equalAll(h, "frames that are not too old", framePositions(notBefore(l.Frames, l.NotBefore)), fresh)
	if since := l.Frames[5].Created.Add(-time.Hour); l.NotBefore.Before(since) || l.NotBefore.After(since.Add(patience)) {
		h.Errorf("frames before %s are too old, want an hour before the last frame or a little later, %s", l.NotBefore, since)
	}
	h.setBounds(backlog.Bounds{Backlog: 100})
	equal(h, "the time before which frames are too old when none is", h.load(everything(stream)).NotBefore, time.Time{})
	h.setBounds(backlog.Bounds{Backlog: 100, RetentionAge: time.Hour})
	equalAll(h, "page", framePositions(h.page(pageAfter(stream, state.Base)).Frames), fresh)
	_, err := h.ReadPage(h.context(), 0, pageAfter(stream, old[2]))
	isError(h, "page after a position that is too old", err, backlog.ErrTrimmed)
	h.hooks.Sweep(h.T, h.Store)
	equal(h, "floor after the sweep", h.state(stream).Floor, 4)
	equalAll(h, "frames after the sweep", framePositions(h.load(everything(stream)).Frames), fresh)
}

// notBefore returns the frames that were not created before a time.
func notBefore(frames []backlog.Frame, t time.Time) []backlog.Frame {
	return slices.DeleteFunc(slices.Clone(frames), func(f backlog.Frame) bool { return f.Created.Before(t) })
}

func testTrim(h *harness) {
	stream := name("trim")
	h.setBounds(backlog.Bounds{Backlog: 10})
	p := h.publishMany(stream, 200)
	epoch := h.state(stream).OwnEpoch
	equalAll(h, "frames within the grace", framePositions(h.page(running(pageAfter(stream, p[0]), epoch)).Frames), p[1:])
	h.hooks.Sweep(h.T, h.Store)
	l := h.load(backlog.LoadRequest{Stream: stream, MaxFrames: 1000, MaxBytes: 1 << 20, Verify: []uint64{100, 189, 190, 191, 200, 201}})
	equal(h, "floor", l.State.Floor, 190)
	equal(h, "base", l.State.Base, p[189])
	equal(h, "before", l.Before, p[189])
	equalAll(h, "frames", framePositions(l.Frames), p[190:])
	equalAll(h, "verified", l.Verified, []backlog.Position{{Sequence: 100}, {Sequence: 189}, p[189], p[190], p[199], {Sequence: 201}})
	for _, run := range []bool{false, true} {
		request := pageAfter(stream, p[188])
		request.Running = run
		_, err := h.ReadPage(h.context(), 0, request)
		isError(h, "page below the floor", err, backlog.ErrTrimmed)
		request = pageAfter(stream, p[189])
		request.Running = run
		equal(h, "page from the floor", len(h.page(request).Frames), 10)
	}
}

// testTrimWhilePaging: a reader that pages while rows are deleted gets
// contiguous frames or is told, never a hole.
func testTrimWhilePaging(h *harness) {
	stream := name("paging")
	h.setBounds(backlog.Bounds{Backlog: 20})
	h.publishMany(stream, 100)
	ctx, stop := context.WithCancel(h.context())
	var publisher sync.WaitGroup
	publisher.Go(func() {
		for n := 101; n <= 1500 && ctx.Err() == nil; n++ {
			if _, err := backlog.Publish(ctx, h.Store, text(stream, fmt.Sprint(n))); err != nil && ctx.Err() == nil {
				h.Errorf("publish: %v", err)
				return
			}
		}
	})
	defer publisher.Wait()
	defer stop()
	after := h.state(stream).Base
	for round := range 40 {
		if round%4 == 0 {
			h.hooks.Sweep(h.T, h.Store)
		}
		page, err := h.ReadPage(ctx, 0, backlog.PageRequest{Stream: stream, After: after, Running: true, MaxFrames: 7, MaxBytes: 1 << 20})
		if err != nil {
			isError(h, "page", err, backlog.ErrTrimmed)
			state := h.state(stream)
			if state.Floor <= after.Sequence {
				h.Fatalf("frames after %s are said to be gone, and the floor is %d", after, state.Floor)
			}
			after = state.Base
			continue
		}
		contiguous(h, page.Frames, after.Sequence+1)
		for _, f := range page.Frames {
			if string(f.Payload) != fmt.Sprint(f.Position.Sequence) {
				h.Fatalf("frame %s holds %q", f.Position, f.Payload)
			}
			after = f.Position
		}
	}
}
