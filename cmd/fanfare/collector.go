package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// allocatedBetween is how much a server allocates from one collection to the
	// next, at least.
	allocatedBetween = 64 << 20
	// defaultGCPercent is what Go takes if GOGC is not set: the heap doubles.
	defaultGCPercent = 100
	// maxGCPercent bounds what a heap that leaps may come to before the next value is
	// set, which is moments after a collection. A smaller heap than an eighth of
	// allocatedBetween is collected earlier for it; that makes little difference.
	maxGCPercent = 800
)

// collectLess has the garbage collector wait until allocatedBetween has been
// allocated since it ran last. Go waits for the heap to double, and that of a server
// that is published to is a few MiB: a quarter of its processor time would be
// collections, dozens a second. Heaps above allocatedBetween are collected as ever. A
// GOGC in the environment is obeyed instead, and GOMEMLIMIT is in any case.
//
// What is set is the process's. The function that collectLess returns sets it back.
func (p *program) collectLess() (end func()) {
	if p.env["GOGC"] != "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer debug.SetGCPercent(defaultGCPercent)
		for awaitCollection(ctx) {
			debug.SetGCPercent(gcPercent(collectedBytes()))
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// sentinel is what a collection finds to be garbage. It has a pointer, since
// objects without may share their memory with others that live on.
type sentinel struct{ _ *sentinel }

// awaitCollection waits until the collector has run; false: ctx has ended.
func awaitCollection(ctx context.Context) bool {
	collected := make(chan struct{})
	runtime.AddCleanup(new(sentinel), func(collected chan struct{}) { close(collected) }, collected)
	select {
	case <-collected:
		return true
	case <-ctx.Done():
		return false
	}
}

// collectedBytes is what the last collection found: what lives on the heap, and
// the stacks and globals that refer to it. By how many percent of that the heap may
// grow is what GOGC says (go.dev/doc/gc-guide).
func collectedBytes() uint64 {
	found := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(found)
	var bytes uint64
	for _, part := range found {
		bytes += part.Value.Uint64()
	}
	return bytes
}

// gcPercent is how many percent of bytes must be allocated before a collection.
func gcPercent(bytes uint64) int {
	percent := 100 * allocatedBetween / max(bytes, 1)
	return int(min(max(percent, defaultGCPercent), maxGCPercent))
}
