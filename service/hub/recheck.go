package hub

import (
	"context"
	"log/slog"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// clockTrust is for how long the time that passes here tells what passes by the
// store's clock, of which the bounds of age are.
const clockTrust = 10 * time.Minute

// reread spreads the re-reading of all streams over an interval, a chunk at a
// time.
type reread struct {
	interval time.Duration
	chunk    int
	rest     []*stream
	pause    time.Duration
}

// next returns the streams that are due, and when to call it again.
func (r *reread) next(residents func() []*stream) ([]*stream, time.Duration) {
	if len(r.rest) == 0 {
		r.rest = residents()
		chunks := max(1, (len(r.rest)+r.chunk-1)/r.chunk)
		r.pause = r.interval / time.Duration(chunks)
	}
	n := min(r.chunk, len(r.rest))
	due := r.rest[:n]
	r.rest = r.rest[n:]
	if len(r.rest) == 0 {
		r.rest = nil
	}
	return due, r.pause
}

// check has the store asked whether streams are as they are known here. If the
// answer to that about others is still awaited, they are refreshed instead.
func (h *Hub) check(streams []*stream) {
	select {
	case h.checks <- streams:
	default:
		h.queueRefreshes(streams)
	}
}

// runChecker asks the store for streams whose state is not the one that is known
// here, and has these refreshed. Most are as they were, and then a check costs a
// fraction of a refresh.
func (h *Hub) runChecker(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case streams := <-h.checks:
			if changed := h.changedOf(ctx, streams); len(changed) > 0 {
				h.queueRefreshes(changed)
			}
		}
	}
}

// changedOf returns the streams that are to be refreshed: those of which the store
// says something else than is known here, or of which that cannot be told by a
// check, and all of them if it does not answer.
func (h *Hub) changedOf(ctx context.Context, streams []*stream) []*stream {
	l := h.bus.Current()
	if l.Number == 0 {
		return streams // read when there is a listening
	}
	refresh := make([]*stream, 0, 16)
	checked, known := make([]*stream, 0, len(streams)), make([]backlog.StreamState, 0, len(streams))
	for _, s := range streams {
		if state, ok := s.knownState(l.Number); ok {
			checked, known = append(checked, s), append(known, state)
		} else {
			refresh = append(refresh, s)
		}
	}
	if len(known) == 0 {
		return refresh
	}
	bounded, cancel := context.WithTimeout(ctx, h.cfg.ReadTimeout)
	defer cancel()
	h.counts.checks.Add(1)
	changed, err := h.reader.Changed(bounded, l.Origin, known)
	if err != nil {
		if ctx.Err() == nil {
			h.refreshFailed.warn(slog.Int("streams", len(known)), slog.Any("error", err))
		}
		return streams
	}
	for _, i := range changed {
		refresh = append(refresh, checked[i])
	}
	return refresh
}

// knownState returns what is taken for the stream's state under a listening. ok is
// false if only a read can tell whether it is right: something is to be explained or
// awaited, or the last read is of another listening, or long ago by a clock that ages
// are told by.
func (s *stream) knownState(listening uint64) (known backlog.StreamState, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.current
	if s.removed || t == nil || s.confirmed != listening || s.refreshQueued || s.refreshDueLocked() ||
		s.state.RetentionAge > 0 && time.Since(s.stateRead) > clockTrust {
		return known, false
	}
	for _, f := range s.former {
		if f.unended() {
			return known, false
		}
	}
	known = s.state
	known.Stream, known.Ephemeral = s.name, s.marked
	if t.own != 0 {
		known.OwnEpoch, known.Head, known.Base.Sequence = t.own, t.head, t.replayable
	}
	return known, true
}
