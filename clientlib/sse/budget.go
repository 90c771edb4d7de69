package sse

import (
	"context"
	"sync"
	"time"
)

// stuckTime is after how long a write of a page may be broken, if others need the memory.
// Who takes anything at all with a working network is faster.
const stuckTime = time.Second

// endedTime is how long a connection that was broken may need to give back what it holds,
// before another is broken, too: it may not be the only one that held it.
const endedTime = 50 * time.Millisecond

// replayBudget counts what is held of pages.
type replayBudget struct {
	limit int

	mu    sync.Mutex // guards what follows
	bytes int64
	// freed is closed when less is held, while somebody waits for that.
	freed chan struct{}
}

func (b *replayBudget) add(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += int64(bytes)
	if bytes < 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

func (b *replayBudget) held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// full returns nil if there is room, or what is closed when there may be.
func (b *replayBudget) full() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes < int64(b.limit) {
		return nil
	}
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	return b.freed
}

// awaitReplayRoom waits until little enough is held of pages. Those that are stuck with
// theirs do not hold up the others: each that waits ends one.
func (h *Handler) awaitReplayRoom(ctx context.Context) error {
	for {
		freed := h.replayed.full()
		if freed == nil {
			return nil
		}
		again := time.NewTimer(h.endStuck(time.Now()))
		select {
		case <-freed:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// endStuck breaks the write of a page that has lasted longest, if it is stuck, and returns
// when another may be.
func (h *Handler) endStuck(now time.Time) (again time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var longest *conn
	var since int64
	for c := range h.conns {
		if s := c.stuckSince.Load(); s != 0 && (longest == nil || s < since) {
			longest, since = c, s
		}
	}
	if longest == nil {
		return stuckTime
	}
	if left := stuckTime - now.Sub(time.Unix(0, since)); left > 0 {
		return left
	}
	if longest.stuckSince.CompareAndSwap(since, 0) {
		_ = longest.control.SetWriteDeadline(now) // its handler has not returned, so the writer is its own
	}
	return endedTime
}
