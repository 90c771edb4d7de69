package hub

import (
	"sync/atomic"

	"github.com/fanfare-io/fanfare/backlog"
)

// counts are what the hub has counted since it was made.
type counts struct {
	loads, refreshes, checks, pages, appended, read, ephemeral, missed, dropped, hints, shrunk, slow atomic.Uint64
}

// Stats tells what the hub holds and has done.
type Stats struct {
	// Streams is how many are resident, lingering ones too; Subscribers how many
	// subscriptions there are.
	Streams, Subscribers int
	// TailBytes and PageBytes are what all tails and all pages in use hold.
	TailBytes, PageBytes int64
	// Loads counts loads of many streams; Refreshes are those of them that were
	// not for subscriptions. Checks counts questions whether streams are as they are
	// known, of up to a thousand each. Pages counts pages read.
	Loads, Refreshes, Checks, Pages uint64
	// Appended counts frames that went from an announcement into a tail; Read those that
	// followed in one and were read.
	Appended, Read uint64
	// Ephemeral counts ephemeral frames that went into a tail; Slow subscriptions
	// that were ended because they had not taken one that was dropped.
	Ephemeral, Slow uint64
	// Missed counts ephemeral frames that came before their stream had been read and
	// were given up for want of room, which subscriptions were told.
	Missed uint64
	// Dropped counts announced frames that were not in the store.
	Dropped uint64
	// Hints counts hints; Shrunk counts tails emptied for want of room.
	Hints, Shrunk uint64
}

// Stats returns the current numbers, each correct by itself.
func (h *Hub) Stats() Stats {
	h.mu.RLock()
	streams, subscribers := len(h.streams), h.subscribers
	h.mu.RUnlock()
	return Stats{
		Streams:     streams,
		Subscribers: subscribers,
		TailBytes:   h.tailBytes.Load(),
		PageBytes:   int64(h.pages.total()),
		Loads:       h.counts.loads.Load(),
		Refreshes:   h.counts.refreshes.Load(),
		Checks:      h.counts.checks.Load(),
		Pages:       h.counts.pages.Load(),
		Appended:    h.counts.appended.Load(),
		Read:        h.counts.read.Load(),
		Ephemeral:   h.counts.ephemeral.Load(),
		Slow:        h.counts.slow.Load(),
		Missed:      h.counts.missed.Load(),
		Dropped:     h.counts.dropped.Load(),
		Hints:       h.counts.hints.Load(),
		Shrunk:      h.counts.shrunk.Load(),
	}
}

// Subscribers returns how many subscriptions a stream has in this hub.
func (h *Hub) Subscribers(name backlog.StreamName) int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if s := h.streams[name]; s != nil {
		return s.references
	}
	return 0
}
