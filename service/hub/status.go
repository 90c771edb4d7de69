package hub

import "slices"

// Status says that the replica's listening has ended, or that there is one again.
// While there is none, durable frames wait and ephemeral ones may be missed. Of
// several changes before a subscription was read only the last is told. It comes
// only with [Config.StatusNotices].
type Status struct {
	Listening bool
}

func (Status) notice() {}

// changeStatus counts a change of the status: an odd count is that of an outage.
// It is called by the bus's goroutine.
func (h *Hub) changeStatus(listening bool) {
	if n := h.statuses.Load(); h.cfg.StatusNotices && (n%2 == 0) != listening {
		h.statuses.Store(n + 1)
		signal(h.statusChanged)
	}
}

// statusAtPlacement is the status that a new subscription takes for granted: its
// load was begun under a listening, which may have ended since.
func (h *Hub) statusAtPlacement() uint32 { return h.statuses.Load() &^ 1 }

// wakeAll wakes every subscription that waits, to be told the status.
func (h *Hub) wakeAll() {
	var hooks hooks
	for _, s := range h.residents() {
		s.wakeAll(&hooks)
		hooks.call()
	}
}

func (s *stream) wakeAll(hooks *hooks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range append(slices.Clone(s.former), s.current) {
		if t == nil {
			continue
		}
		t.parked.wake(hooks)
		t.wakeRestingLocked(hooks)
		for _, p := range t.pages {
			p.waiters.wake(hooks)
		}
	}
	for _, p := range s.pending {
		p.wakeRunning(hooks)
	}
	for _, p := range s.placements {
		p.wakeRunning(hooks)
	}
}

// wakeRunning wakes a subscription that is placed anew.
func (p *pending) wakeRunning(hooks *hooks) {
	if !p.first {
		hooks.add(p.sub)
	}
}

// statusLocked hands over the status.
func (s *Subscription) statusLocked() Delivery {
	s.status = s.hub.statuses.Load()
	return Delivery{Last: s.cursor, Notice: Status{Listening: s.status%2 == 0}}
}
