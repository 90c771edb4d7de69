package sqlitebacklog

import (
	"context"
	"testing"
)

// startStore opens a store and runs it until the test ends.
func startStore(tb testing.TB, cfg Config) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	runStore(tb, s)
	return s
}

// runStore runs a store until the test ends, or until stop, and closes it.
func runStore(tb testing.TB, s *Store) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("Run: %v", err)
		}
		s.Close()
	}
	tb.Cleanup(stop)
	return stop
}
