package sse

import (
	"context"
	"sync"
	"time"
)

// stuckTime is after how long a write may be broken, if others need the memory that it
// holds. Who takes anything at all with a working network is faster.
const stuckTime = time.Second

// endedTime is how long a connection that was broken may need to give back what it holds,
// before another is broken, too: it may not be the only one that held it.
const endedTime = 50 * time.Millisecond

// budget counts what connections hold that a ring may not, or not any more: pages, and
// large entries of rings while they are written.
type budget struct {
	limit int

	mu    sync.Mutex // guards what follows
	bytes int64
	// freed is closed when less is held, while somebody waits for that.
	freed chan struct{}
}

func (b *budget) add(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(bytes)
}

func (b *budget) addLocked(bytes int) {
	b.bytes += int64(bytes)
	if bytes < 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// lend has one connection more hold an entry of a ring, if there is room for it, or it is
// held already.
func (b *budget) lend(e *entry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.holders == 0 && b.bytes >= int64(b.limit) {
		return false
	}
	e.holders++
	b.addLocked(e.size - e.lent) // which grows when another form is added
	e.lent = e.size
	return true
}

// takeBack is called once for each time that an entry was lent.
func (b *budget) takeBack(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.holders--; e.holders == 0 {
		b.addLocked(-e.lent)
		e.lent = 0
	}
}

func (b *budget) held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// full returns nil if there is room, or what is closed when there may be.
func (b *budget) full() <-chan struct{} {
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

// awaitRoom waits until little enough is held. Those that are stuck with theirs do not hold
// up the others: each that waits ends one.
func (h *Handler) awaitRoom(ctx context.Context) error {
	for {
		freed := h.holding.full()
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

// endStuck breaks the write that has lasted longest of those that hold something, if it is
// stuck, and returns when another may be.
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

// crowd are the relays that have a large entry for which there was no room.
type crowd struct {
	mu sync.Mutex // guards what follows, and the relays' waits
	// relays are in the order in which they came.
	relays []*relay
	// woken is true while there is a task that wakes them.
	woken bool
}

// wakeWhenRoom has those who watch a relay woken when there may be room for its entry.
func (h *Handler) wakeWhenRoom(r *relay) {
	c := &h.crowd
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.waits {
		r.waits = true
		c.relays = append(c.relays, r)
	}
	if !c.woken {
		_, c.woken = h.run(h.wakeCrowd)
	}
}

// wakeCrowd wakes one relay after the other, each when there is room.
func (h *Handler) wakeCrowd(ctx context.Context) {
	for h.awaitRoom(ctx) == nil {
		r := h.crowd.next()
		if r == nil {
			return
		}
		r.wake()
	}
}

// next returns the next relay; nil ends the task.
func (c *crowd) next() *relay {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.relays) == 0 {
		c.relays, c.woken = nil, false
		return nil
	}
	r := c.relays[0]
	c.relays[0], c.relays = nil, c.relays[1:]
	r.waits = false
	return r
}
