package sse

// Stats is what a [Handler] does, for operators. What is not said to be a number of now
// counts since the handler was made.
type Stats struct {
	// Connections is how many requests are served now, Streams how many streams are
	// subscribed to.
	Connections, Streams int
	// RelayBytes is what is kept of the newest events now.
	RelayBytes int64
	// ReplayBytes is what is held now of pages that were read for browsers that are behind,
	// and of events above 16 KiB that are being written.
	ReplayBytes int64
	// Replays is how many pages are being read now for browsers that are behind, and
	// ReplaysWaiting how many wait for their turn.
	Replays, ReplaysWaiting int
	// Requests is how many event streams were asked for.
	Requests uint64
	// Refused is how many requests were answered with an error, and Postponed how many of
	// those for event streams were told to come back.
	Refused, Postponed uint64
	// Frames is how many frames were written, counted for each connection, and
	// Bytes how many bytes of event streams were.
	Frames, Bytes uint64
	// Pages is how many pages were read for browsers that were behind.
	Pages uint64
	// Overtaken is how often a browser fell behind what is kept.
	Overtaken uint64
	// Gaps is how many gaps browsers were told.
	Gaps uint64
	// Slow is how many connections were broken because too little was taken of them: for
	// the write timeout, or while what they held was needed for others
	// ([Config.MaxReplayBytes]).
	Slow uint64
}

// Stats returns what the handler does. It is cheap, but its figures are of slightly
// different moments.
func (h *Handler) Stats() Stats {
	h.mu.Lock()
	connections, streams := len(h.conns), len(h.relays)
	h.mu.Unlock()
	return Stats{
		Connections: connections, Streams: streams,
		RelayBytes: h.relayBytes.Load(), ReplayBytes: h.holding.held(),
		Replays: len(h.turns), ReplaysWaiting: int(h.replaysWaiting.Load()),
		Requests: h.requests.Load(), Refused: h.refused.Load(), Postponed: h.postponed.Load(),
		Frames: h.frames.Load(), Bytes: h.bytes.Load(),
		Pages: h.pages.Load(), Overtaken: h.overtaken.Load(), Gaps: h.gaps.Load(), Slow: h.slow.Load(),
	}
}
