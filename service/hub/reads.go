package hub

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// loadSlack is how many frames more than wanted a load asks for, so that the
// next who resume a little further back find them in the tail.
const loadSlack = 64

// part is one stream's share in a round of loads.
type part struct {
	stream  *stream
	known   known
	request backlog.LoadRequest
	// batch are the subscriptions that the load is for.
	batch []*pending
}

// runLoader loads streams for subscriptions, one round at a time: what arrives
// during a round is combined into the next.
func (h *Hub) runLoader(ctx context.Context) error {
	retry, size := newRetry(), h.newRoundSize()
	for {
		streams := h.loads.take(ctx, size.streams)
		if len(streams) == 0 {
			return nil
		}
		if !h.loadRound(ctx, streams, size) {
			retry.Reset()
			continue
		}
		if !pause(ctx, retry.NextBackOff()) {
			return nil
		}
	}
}

// loadRound loads streams. It returns true if the round failed and somebody
// still waits.
func (h *Hub) loadRound(ctx context.Context, streams []*stream, size *roundSize) (failed bool) {
	l, err := h.ensure(ctx)
	var parts []part
	for _, s := range streams {
		if p, ok := s.beginLoad(l, size.bytesFor(len(streams))); ok {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return false
	}
	if err == nil {
		err = h.read(ctx, l, parts, size)
	}
	if err == nil {
		return false
	}
	if ctx.Err() != nil {
		err = ErrStopped
	} else {
		h.loadFailed.warn(slog.Int("streams", len(parts)), slog.Any("error", err))
	}
	var hooks hooks
	defer hooks.call()
	for _, p := range parts {
		p.stream.mu.Lock()
		failed = p.stream.failLocked(p.batch, err, &hooks) || failed
		p.stream.mu.Unlock()
	}
	return failed
}

// runRefresher reads resident streams whose tail may be behind or wrong, one
// round at a time. It waits while nothing is listened to: the new listening
// makes everything be read anyway.
func (h *Hub) runRefresher(ctx context.Context) error {
	retry, size := newRetry(), h.newRoundSize()
	for {
		streams := h.refreshes.take(ctx, size.streams)
		if len(streams) == 0 {
			return nil
		}
		err := h.refreshRound(ctx, streams, size)
		if err == nil {
			retry.Reset()
			continue
		}
		if ctx.Err() == nil {
			h.refreshFailed.warn(slog.Int("streams", len(streams)), slog.Any("error", err))
		}
		if !pause(ctx, retry.NextBackOff()) {
			return nil
		}
	}
}

func (h *Hub) refreshRound(ctx context.Context, streams []*stream, size *roundSize) error {
	l, err := h.bus.Ensure(ctx)
	var parts []part
	for _, s := range streams {
		if p, ok := s.beginRefresh(l, size.bytesFor(len(streams))); ok {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	if err == nil {
		h.counts.refreshes.Add(1)
		err = h.read(ctx, l, parts, size)
	}
	if err != nil {
		failed := make([]*stream, len(parts))
		for i := range parts {
			failed[i] = parts[i].stream
		}
		h.queueRefreshes(failed)
	}
	return err
}

// read executes the load of a round and hands every stream its part.
func (h *Hub) read(ctx context.Context, l backlog.Listening, parts []part, size *roundSize) error {
	bounded, cancel := context.WithTimeout(ctx, h.cfg.ReadTimeout)
	defer cancel()
	requests := make([]backlog.LoadRequest, len(parts))
	for i := range parts {
		requests[i] = parts[i].request
	}
	h.counts.loads.Add(1)
	got, err := h.reader.Load(bounded, l.Origin, requests)
	switch {
	case err != nil && ctx.Err() != nil:
		return ErrStopped
	case err != nil && bounded.Err() != nil:
		// The subscribers' own deadlines are something else.
		return fmt.Errorf("%w: load of %d streams took longer than %s", backlog.ErrUnavailable, len(parts), h.cfg.ReadTimeout)
	case err != nil:
		return fmt.Errorf("load of %d streams: %w", len(parts), err)
	}
	if len(got.Streams) != len(parts) {
		return fmt.Errorf("load of %d streams returned %d", len(parts), len(got.Streams))
	}
	size.adapt(got.Streams)
	if h.bus.Current().Number != l.Number {
		// Not listening any more: a commit after this load may not be announced.
		l = backlog.Listening{}
	}
	var hooks hooks
	for i := range parts {
		parts[i].stream.finish(&parts[i], l, got.Streams[i], &hooks)
	}
	hooks.call()
	return nil
}

// beginLoad makes the stream's part in a round for those who wait, unless all
// can be answered from the tail by now.
func (s *stream) beginLoad(l backlog.Listening, maxBytes int) (part, bool) {
	var hooks hooks
	defer hooks.call()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loadQueued = true // so that answerPendingLocked does not queue it
	s.answerPendingLocked(l.Number, &hooks)
	s.loadQueued = false
	if len(s.pending) == 0 {
		return part{}, false
	}
	if s.current == nil {
		s.refreshWanted = false // what was wanted before is read now
	}
	p := part{stream: s, known: s.knownLocked(), batch: s.pending}
	s.pending = nil
	p.request = s.requestLocked(p.batch, maxBytes)
	return p, true
}

// beginRefresh makes the stream's part in a refresh, unless none is needed any more.
func (s *stream) beginRefresh(l backlog.Listening, maxBytes int) (part, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshQueued = false
	if s.removed || s.current == nil || !s.refreshDueLocked() {
		return part{}, false
	}
	s.refreshWanted = false
	return part{stream: s, known: s.knownLocked(), request: s.requestLocked(nil, maxBytes)}, true
}

// requestLocked asks for what follows the tail, for as much before it as those
// who wait want and the bounds allow, and for the positions to be judged.
func (s *stream) requestLocked(batch []*pending, maxBytes int) backlog.LoadRequest {
	r := backlog.LoadRequest{Stream: s.name, MaxBytes: min(maxBytes, s.hub.cfg.TailBytes)}
	if t := s.current; t == nil {
		r.After, r.MaxFrames = firstWant(batch, s.hub.cfg.TailFrames)
	} else {
		r.After, r.MaxFrames = s.extensionLocked(batch), s.hub.cfg.TailFrames
		r.Verify = append(r.Verify, t.head.Sequence)
		if announced := t.announcedTo(); s.marked && announced > t.head.Sequence {
			r.Verify = append(r.Verify, announced)
		}
	}
	for _, p := range batch {
		if sequence, ok := p.start.verify(); ok {
			r.Verify = append(r.Verify, sequence)
		}
	}
	slices.Sort(r.Verify)
	r.Verify = slices.Compact(r.Verify)
	return r
}

// firstWant returns what a first load asks for: frames after a sequence, and
// how many of the newest of them.
func firstWant(batch []*pending, tailFrames int) (after uint64, frames int) {
	after = backlog.MaxPositionValue
	for _, p := range batch {
		n, from := tailFrames, uint64(0)
		switch p.start.kind {
		case startLive:
			n = loadSlack
		case startLast:
			n = int(min(p.start.number+loadSlack, uint64(tailFrames)))
		case startAfter, startBehind:
			sequence, _ := p.start.verify()
			from = minus(sequence, loadSlack)
		}
		after, frames = min(after, from), max(frames, min(n, tailFrames))
	}
	return after, frames
}

// extensionLocked returns the sequence after which frames are asked for when
// there is a tail: its head, or less if who waits wants more and that fits the
// tail's bounds. What does not fit is read in pages.
func (s *stream) extensionLocked(batch []*pending) uint64 {
	t := s.current
	after := t.head.Sequence
	room := uint64(max(0, s.hub.cfg.TailFrames-len(t.entries)))
	lower := t.lower(s.state.Backlog, time.Time{})
	for _, p := range batch {
		want := lower
		switch p.start.kind {
		case startLive:
			continue
		case startAfter, startBehind:
			sequence, _ := p.start.verify()
			want = minus(sequence, loadSlack)
		case startLast:
			want = max(lower, minus(t.head.Sequence, p.start.number+loadSlack))
		}
		if want < t.base.Sequence && t.base.Sequence-want <= room {
			after = min(after, want)
		}
	}
	return after
}

// finish takes in a stream's part of a load and answers who waits, or has it
// repeated if the load does not count: the listening l under which it was begun
// has ended, or the numbering is no longer current.
func (s *stream) finish(p *part, l backlog.Listening, loaded backlog.Loaded, hooks *hooks) {
	fresh := s.hub.entriesOf(p.known.unknown(loaded))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return
	}
	if l.Number == 0 || s.hub.listened.Load() > l.Number || !s.integrateLocked(p.known, loaded, fresh, l.Number, hooks) {
		s.repeatLocked(p)
		return
	}
	if t := s.current; s.confirmed != 0 && s.confirmed != l.Number {
		// What the last listening announced may have been lost by its server.
		t.announced, t.heard = t.head.Sequence, 0
	}
	s.confirmed, s.origin = l.Number, l.Origin
	s.used = time.Now()
	s.judgeLocked(p.batch, loaded, l.Number, hooks)
	s.endOverdueLocked(l.Number, hooks)
	s.explainHeldLocked(p.known, loaded, s.hub.origin.Load(), hooks)
	s.placeReachedLocked(hooks)
	s.answerPendingLocked(l.Number, hooks)
	s.readAgainLocked(p.known.read)
}

// readAgainLocked has the stream refreshed if the read that was just taken in is
// not the newest: its bounds may be older than those that are known. And if a
// refresh was wanted while the first load was on its way.
func (s *stream) readAgainLocked(read uint64) {
	if read < s.newest {
		s.refreshWanted = true
	}
	s.newest = max(s.newest, read)
	if s.refreshWanted {
		s.queueRefreshLocked()
	}
}

// repeatLocked has a load repeated.
func (s *stream) repeatLocked(p *part) {
	if len(p.batch) == 0 {
		s.refreshWanted = true
		s.queueRefreshLocked()
		return
	}
	s.pending = append(p.batch, s.pending...)
	s.queueLoadLocked()
}

// unknown returns the loaded frames that are not in the window, so that no
// frame is encoded twice. They are contiguous but for the window between them.
func (k known) unknown(l backlog.Loaded) []backlog.Frame {
	if k.tail == nil || k.base.Sequence == k.head.Sequence {
		return l.Frames
	}
	var frames []backlog.Frame
	for _, f := range l.Frames {
		if f.Position.Sequence <= k.base.Sequence || f.Position.Sequence > k.head.Sequence {
			frames = append(frames, f)
		}
	}
	return frames
}

// roundSize bounds a round of loads: in streams, and in bytes. A store returns
// at least one frame of each stream whatever its size, so where frames are
// large fewer streams share a round.
type roundSize struct {
	streams              int
	maxStreams, maxBytes int
}

const minRoundStreams = 16

func (h *Hub) newRoundSize() *roundSize {
	return &roundSize{streams: h.cfg.RoundStreams, maxStreams: h.cfg.RoundStreams, maxBytes: h.cfg.RoundBytes}
}

func (r *roundSize) bytesFor(streams int) int { return max(1, r.maxBytes/max(1, streams)) }

// adapt halves the number of streams after a round that brought more than it
// should have, and doubles it after a small one.
func (r *roundSize) adapt(loaded []backlog.Loaded) {
	bytes := 0
	for i := range loaded {
		for j := range loaded[i].Frames {
			bytes += len(loaded[i].Frames[j].Payload)
		}
	}
	switch {
	case bytes > r.maxBytes:
		r.streams = max(r.streams/2, min(minRoundStreams, r.maxStreams))
	case bytes < r.maxBytes/4:
		r.streams = min(r.streams*2, r.maxStreams)
	}
}
