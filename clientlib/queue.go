package clientlib

import (
	"context"
	"sync"
)

// queue is what waits for Next. One goroutine puts; any may take, and end it.
type queue struct {
	mu    sync.Mutex // guards what follows
	items []item
	// bytes is the size of the frames in items.
	bytes int
	// taken is the size of frames taken and not credited to the server yet.
	taken int
	// position is after the last event taken.
	position Position
	// end is what take returns after the items; nil while more may come.
	end error

	limit int
	// more and room have a token when there is something to take, or to put again.
	more, room chan struct{}
}

func newQueue(limit int, position Position) queue {
	return queue{limit: limit, position: position, more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put appends items, or drops them if the queue has ended.
func (q *queue) put(items ...item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end != nil {
		return
	}
	for _, i := range items {
		if i.event == nil {
			q.taken += i.size
			continue
		}
		if _, ok := i.event.(*Interrupted); ok {
			q.foldLocked()
		}
		q.items = append(q.items, i)
		q.bytes += i.size
	}
	signal(q.more)
}

// foldLocked takes off the end an interruption that the subscription got over without
// bringing anything, so that interruptions do not pile up while nobody takes them. The
// next one stands for it.
func (q *queue) foldLocked() {
	for n := len(q.items) - 1; n >= 0; n-- {
		switch e := q.items[n].event.(type) {
		case *Subscribed, *CaughtUp, *Status:
		case *Gap:
			if e.Reason != EphemeralMaybeMissed {
				return
			}
		case *Interrupted:
			clear(q.items[n:])
			q.items = q.items[:n]
			return
		default:
			return
		}
	}
}

// finish ends the queue after what is in it. The first end counts.
func (q *queue) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil {
		q.end = err
	}
	signal(q.more)
}

// drop ends the queue at once, unless everything of an ended one was taken.
func (q *queue) drop(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil || len(q.items) > 0 {
		q.end = err
	}
	q.items, q.bytes = nil, 0
	signal(q.more)
	signal(q.room)
}

// take returns the next event, waiting for it. What ctx ends is not taken.
func (q *queue) take(ctx context.Context) (Event, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if e, err := q.tryTake(); e != nil || err != nil {
			return e, err
		}
		select {
		case <-q.more:
		case <-ctx.Done():
		}
	}
}

func (q *queue) tryTake() (Event, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) > 1 || q.end != nil {
		signal(q.more) // another goroutine may wait, too
	}
	if len(q.items) == 0 {
		return nil, q.end
	}
	i := q.items[0]
	q.items[0] = item{}
	if q.items = q.items[1:]; len(q.items) == 0 {
		q.items = nil
	}
	q.bytes -= i.size
	q.taken += i.size
	q.position = i.position
	signal(q.room)
	return i.event, nil
}

// waitForRoom waits until less than the limit is in the queue, or ctx ends.
func (q *queue) waitForRoom(ctx context.Context) {
	for q.full() {
		select {
		case <-q.room:
		case <-ctx.Done():
			return
		}
	}
}

func (q *queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes >= q.limit
}

// creditDue reports whether enough was taken for the server to be told.
func (q *queue) creditDue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.taken*creditShare >= q.limit
}

// takenBytes returns the size of what was taken since the last call; 0 if that is less
// than what was taken on credit.
func (q *queue) takenBytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken <= 0 {
		return 0
	}
	bytes := q.taken
	q.taken = 0
	return bytes
}

// restart returns the credit that a new call begins with: what there is room for. What
// is there beyond the limit is taken before any more is credited.
func (q *queue) restart() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	room := q.limit - q.bytes
	q.taken = min(room, 0)
	return max(room, 0)
}

// at returns the position after what was taken.
func (q *queue) at() Position {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.position
}
