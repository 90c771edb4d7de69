package backlogtest

import (
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// testEphemeralUse, symptom: subscribers of a stream that carried nothing but
// ephemeral frames were told of a gap once in each stream retention, although
// nothing was lost. Cause: those frames changed nothing that is stored, so the
// janitor took the stream for idle and removed it, and the next frame began
// another numbering.
func testEphemeralUse(h *harness) {
	const retention = time.Hour
	h.setBounds(backlog.Bounds{StreamRetention: retention}) // no backlog: durable frames are gone after the grace
	alone, batch, mixed, empty, closed := name("use", "alone"), name("use", "batch"), name("use", "mixed"), name("use", "empty"), name("use", "closed")
	streams := []backlog.StreamName{alone, batch, mixed, empty}
	use := func() {
		h.Helper()
		h.pass(passing(alone, "x"))
		h.pass(passing(empty, "x"))
		h.publishBatch([]backlog.Publication{passing(batch, "x"), passing(batch, "y"), text(mixed, "1"), passing(mixed, "x"), keyed(mixed, "key", "1")})
	}
	age := func(d time.Duration) {
		h.Helper()
		for _, s := range append(streams, closed) {
			h.hooks.Age(h.T, h.Store, s, d)
		}
		h.hooks.Sweep(h.T, h.Store)
	}
	h.publishMany(empty, 3)
	h.pass(passing(closed, "x"))
	use()
	h.close(closed)
	h.hooks.Sweep(h.T, h.Store)
	before := h.states(streams...)
	for range 3 {
		age(50 * time.Minute)
		h.pass(passing(alone, "x"))
		h.pass(passing(empty, "x"))
		h.publishBatch([]backlog.Publication{passing(batch, "x"), passing(mixed, "x")})
		h.publishBatch([]backlog.Publication{passing(batch, "x")})
	}
	after := h.states(streams...)
	for i, s := range after {
		equal(h, "own epoch of "+streams[i].Scope, s.OwnEpoch, before[i].OwnEpoch)
		equal(h, "head of "+streams[i].Scope, s.Head, before[i].Head)
	}
	equal(h, "closed stream exists", h.state(closed).Exists, false)

	// Used too soon after that to be noted, and yet not idle for the retention.
	age(40 * time.Second)
	noted := h.states(streams...)
	h.pass(passing(alone, "x"))
	h.pass(passing(empty, "x"))
	h.publishBatch([]backlog.Publication{passing(batch, "x"), passing(mixed, "x")})
	equalAll(h, "states within the interval", h.states(streams...), noted)
	age(retention - 20*time.Second)
	for i, s := range h.states(streams...) {
		equal(h, streams[i].Scope+" exists", s.Exists, true)
	}
	age(backlog.UseInterval)
	for i, s := range h.states(streams...) {
		equal(h, streams[i].Scope+" exists after the retention", s.Exists, false)
	}
}
