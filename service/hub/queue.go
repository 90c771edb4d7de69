package hub

import (
	"context"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// queue is a FIFO of streams that one goroutine works on. Whoever pushes makes
// sure, with a flag of the stream, that a stream is in it once.
type queue struct {
	mu      sync.Mutex
	streams []*stream
	// filled has room for one, so that a push never blocks.
	filled chan struct{}
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1)} }

func (q *queue) push(streams ...*stream) {
	q.mu.Lock()
	q.streams = append(q.streams, streams...)
	q.mu.Unlock()
	signal(q.filled)
}

// take waits until there is a stream or ctx ends, and returns up to n of them,
// none if ctx has ended.
func (q *queue) take(ctx context.Context, n int) []*stream {
	for {
		if ctx.Err() != nil {
			return nil
		}
		if taken := q.poll(n); len(taken) > 0 {
			return taken
		}
		select {
		case <-ctx.Done():
			return nil
		case <-q.filled:
		}
	}
}

func (q *queue) poll(n int) []*stream {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.streams))
	taken := q.streams[:n:n]
	q.streams = q.streams[n:]
	if len(q.streams) == 0 {
		q.streams = nil
	}
	return taken
}

// signal fills a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// pause waits for d and returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// newRetry paces attempts at a store that fails: from 50 ms to 5 s, jittered.
func newRetry() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 50 * time.Millisecond
	b.MaxInterval = 5 * time.Second
	return b
}
