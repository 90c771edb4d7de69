package backlogtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var deadlineTests = []test{
	{"AlreadyCancelled", testCancelled},
	{"AlreadyPast", testPast},
	{"NeighboursOfTheCancelled", testCancelledNeighbours},
	{"WithdrawnFromTheEnd", testWithdrawnFromTheEnd},
}

func testCancelled(h *harness) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.allFail(ctx, context.Canceled)
}

func testPast(h *harness) {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	h.allFail(ctx, context.DeadlineExceeded)
}

// allFail calls every method with a context that has ended.
func (h *harness) allFail(ctx context.Context, want error) {
	h.Helper()
	stream := name("cancelled")
	_, err := backlog.Publish(ctx, h.Store, text(stream, "x"))
	isError(h, "publish", err, want)
	_, err = h.PublishBatch(ctx, []backlog.Publication{text(stream, "x")})
	isError(h, "batch", err, want)
	_, err = h.CloseStream(ctx, stream, nil)
	isError(h, "close", err, want)
	_, err = h.Load(ctx, 0, []backlog.LoadRequest{everything(stream)})
	isError(h, "load", err, want)
	_, err = h.ReadPage(ctx, 0, pageAfter(stream, backlog.Position{}))
	isError(h, "page", err, want)
	_, err = h.ListStreams(ctx, "", backlog.StreamName{}, 1)
	isError(h, "list", err, want)
	isError(h, "ping", h.Ping(ctx), want)
	isError(h, "set a policy", h.SetPolicy(ctx, backlogPolicy("cancelled", false, 1)), want)
	_, err = h.Policies(ctx)
	isError(h, "policies", err, want)
	equal(h, "policies", len(h.policies()), 0)
	equal(h, "exists", h.state(stream).Exists, false)
}

// testCancelledNeighbours: callers that leave change nothing for those that
// share a transaction with them, and what they published is stored once or not
// at all.
func testCancelledNeighbours(h *harness) {
	stream := name("neighbours")
	errs := concurrently(h, 200, func(ctx context.Context, i int) error {
		if i%2 == 0 {
			_, err := backlog.Publish(ctx, h.Store, text(stream, "stays"))
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(i)*20*time.Microsecond)
		defer cancel()
		_, err := backlog.Publish(ctx, h.Store, text(stream, "leaves"))
		return err
	})
	stored, unknown := uint64(0), uint64(0)
	for i, err := range errs {
		switch {
		case err == nil:
			stored++
		case i%2 == 0:
			h.Errorf("a caller that stayed got %v", err)
		case errors.Is(err, backlog.ErrOutcomeUnknown):
			unknown++
		default: // withdrawn before it was sent
			isError(h, "a caller that left", err, context.DeadlineExceeded)
		}
	}
	l := h.load(everything(stream))
	contiguous(h, l.Frames, 1)
	if head := l.State.Head.Sequence; head < stored || head > stored+unknown {
		h.Errorf("%d frames are stored, %d were acknowledged and %d are unknown", head, stored, unknown)
	}
}

// testWithdrawnFromTheEnd: a caller that submits one frame after another and then
// leaves has the first of them stored, never one without those before it. Each was
// withdrawn by a goroutine of its own, and a transaction that began meanwhile took
// what they had not come to yet.
func testWithdrawnFromTheEnd(h *harness) {
	const rounds, frames = 40, 100
	for round := range rounds {
		stream := name(fmt.Sprintf("left %d", round))
		ctx, leave := context.WithCancel(context.Background())
		var answered sync.WaitGroup
		for i := range frames {
			answered.Add(1)
			h.Submit(ctx, text(stream, strconv.Itoa(i)), func(backlog.Outcome, error) { answered.Done() })
			if i == frames*round/rounds {
				go leave()
			}
		}
		answered.Wait()
		for i, payload := range payloads(h.load(everything(stream)).Frames) {
			if payload != strconv.Itoa(i) {
				h.Fatalf("frame %s is stored as number %d: what came before it is not", payload, i+1)
			}
		}
		leave()
	}
}
