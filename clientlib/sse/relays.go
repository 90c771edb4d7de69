package sse

import (
	"slices"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

// acquire returns the relay of a stream, until release. The error is errHandlerClosed or
// errTooManyRelays.
func (h *Handler) acquire(s clientlib.Stream) (*relay, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.relays[s]; r != nil {
		r.users++
		r.stopLinger()
		return r, nil
	}
	if len(h.relays) >= h.config.MaxRelays && !h.makeRoomLocked() {
		return nil, errTooManyRelays
	}
	r := &relay{handler: h, stream: s, users: 1}
	var ok bool
	if r.cancel, ok = h.runLocked(r.run); !ok {
		return nil, errHandlerClosed
	}
	h.relays[s] = r
	return r, nil
}

// makeRoomLocked ends a relay that nobody uses, if there is one.
func (h *Handler) makeRoomLocked() bool {
	for r := range h.lingering {
		h.expireLocked(r)
		return true
	}
	return false
}

// stopLinger is called under the handler's mutex.
func (r *relay) stopLinger() {
	delete(r.handler.lingering, r)
	if r.linger != nil {
		r.linger.Stop()
		r.linger = nil
	}
}

// release gives a relay back. It lingers, because a page that is reloaded comes back.
func (h *Handler) release(r *relay) {
	h.mu.Lock()
	r.users--
	unused, ended := r.users == 0, h.relays[r.stream] != r
	if unused {
		delete(h.forgotten, r)
	}
	if unused && !ended {
		h.lingering[r] = struct{}{}
		r.linger = time.AfterFunc(h.config.Linger, func() { h.expire(r) })
	}
	h.mu.Unlock()
	if unused && ended {
		r.empty()
	}
}

// expire ends a relay that nobody has come back to.
func (h *Handler) expire(r *relay) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.users == 0 && h.relays[r.stream] == r {
		h.expireLocked(r)
	}
}

func (h *Handler) expireLocked(r *relay) {
	delete(h.relays, r.stream)
	r.stopLinger()
	r.cancel()
}

// forget has the next request for the stream begin a new relay, and reports whether
// nobody uses this one.
func (h *Handler) forget(r *relay) (unused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.relays[r.stream] == r {
		delete(h.relays, r.stream)
	}
	r.stopLinger()
	if r.users > 0 {
		h.forgotten[r] = struct{}{}
	}
	return r.users == 0
}

// boundRelays empties the rings to which nothing has come for longest, if all together
// keep too much. It empties some more, so as not to be called for each event.
func (h *Handler) boundRelays() {
	limit := int64(h.config.MaxRelayBytes)
	if h.relayBytes.Load() <= limit || !h.shrinking.TryLock() {
		return
	}
	defer h.shrinking.Unlock()
	for _, r := range h.coldest() {
		if h.relayBytes.Load() <= limit/8*7 {
			return
		}
		r.empty()
	}
}

func (h *Handler) coldest() []*relay {
	type touched struct {
		*relay
		at time.Time
	}
	var all []touched
	h.mu.Lock()
	for _, r := range h.relays {
		all = append(all, touched{relay: r})
	}
	for r := range h.forgotten {
		all = append(all, touched{relay: r})
	}
	h.mu.Unlock()
	for i, r := range all {
		r.mu.RLock()
		all[i].at = r.touched
		r.mu.RUnlock()
	}
	slices.SortFunc(all, func(a, b touched) int { return a.at.Compare(b.at) })
	relays := make([]*relay, len(all))
	for i, r := range all {
		relays[i] = r.relay
	}
	return relays
}
