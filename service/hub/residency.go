package hub

import (
	"context"
	"sort"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// acquire returns the stream of a name, in the map, with one more reference.
func (h *Hub) acquire(name backlog.StreamName) *stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streams[name]
	if s == nil {
		s = &stream{hub: h, name: name, used: time.Now()}
		h.streams[name] = s
	}
	s.references++
	h.subscribers++
	return s
}

// release takes n references back. A stream without references stays for the
// linger.
func (h *Hub) release(s *stream, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.references -= n
	h.subscribers -= n
	if s.references == 0 {
		s.idleSince = time.Now()
		h.idle = append(h.idle, idleStream{s, s.idleSince})
		signal(h.sweep)
	}
}

// idleStream is a stream that had no reference since a time. It is out of date
// if the stream was used in between.
type idleStream struct {
	stream *stream
	since  time.Time
}

// resident returns the stream of a name if it is in the map.
func (h *Hub) resident(name backlog.StreamName) *stream {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.streams[name]
}

// residents returns all streams of the map.
func (h *Hub) residents() []*stream {
	h.mu.RLock()
	defer h.mu.RUnlock()
	streams := make([]*stream, 0, len(h.streams))
	for _, s := range h.streams {
		streams = append(streams, s)
	}
	return streams
}

// runSweeper removes streams whose linger is over, and empties the coldest
// tails when all together are too large.
func (h *Hub) runSweeper(ctx context.Context) error {
	timer := time.NewTimer(h.cfg.Linger)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.crowded:
			h.shrinkColdest()
			continue
		case <-h.sweep:
		case <-timer.C:
		}
		expired, next := h.expire(time.Now())
		for _, s := range expired {
			s.remove()
		}
		timer.Reset(next)
	}
}

// expire takes streams whose linger is over out of the map, and says when the
// next one's will be.
func (h *Hub) expire(now time.Time) (expired []*stream, next time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// The list is in the order of time, since the linger is the same for all.
	for len(h.idle) > 0 {
		first := h.idle[0]
		if left := first.since.Add(h.cfg.Linger).Sub(now); left > 0 {
			return expired, left
		}
		h.idle = h.idle[1:]
		s := first.stream
		if s.references == 0 && s.idleSince.Equal(first.since) && h.streams[s.name] == s {
			delete(h.streams, s.name)
			expired = append(expired, s)
		}
	}
	h.idle = nil
	// Until a release signals.
	return expired, time.Hour
}

// addTailBytes counts what tails cost, and has the coldest emptied when all
// together are beyond the bound.
func (h *Hub) addTailBytes(delta int) {
	if h.tailBytes.Add(int64(delta)) > h.cfg.MaxTailBytes {
		signal(h.crowded)
	}
}

// shrinkColdest empties tails, the longest unused first, until an eighth of the
// bound is free, so that it is not called for every frame.
func (h *Hub) shrinkColdest() {
	goal := h.cfg.MaxTailBytes - h.cfg.MaxTailBytes/8
	streams := h.residents()
	used := make(map[*stream]time.Time, len(streams))
	for _, s := range streams {
		s.mu.Lock()
		used[s] = s.used
		s.mu.Unlock()
	}
	sort.Slice(streams, func(i, j int) bool { return used[streams[i]].Before(used[streams[j]]) })
	for _, s := range streams {
		if h.tailBytes.Load() <= goal {
			return
		}
		if s.shrink() > 0 {
			h.counts.shrunk.Add(1)
		}
	}
}
