package sqlitebacklog

import (
	"context"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
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

// put publishes to the stream of a channel that has an empty scope.
func put(tb testing.TB, s backlog.Store, channel, payload string) backlog.Position {
	tb.Helper()
	o, err := backlog.Publish(tb.Context(), s, frame(channel, payload))
	if err != nil {
		tb.Fatalf("publish to %q: %v", channel, err)
	}
	return o.Position
}

func frame(channel, payload string) backlog.Publication {
	return backlog.Publication{Stream: backlog.StreamName{Channel: channel}, Payload: []byte(payload)}
}

// payloads are those of a stream's frames, oldest first.
func payloads(tb testing.TB, s backlog.Store, channel string) []string {
	tb.Helper()
	result, err := s.Load(tb.Context(), 0, []backlog.LoadRequest{{
		Stream: backlog.StreamName{Channel: channel}, MaxFrames: 1 << 20, MaxBytes: 1 << 30,
	}})
	if err != nil {
		tb.Fatalf("load %q: %v", channel, err)
	}
	var list []string
	for _, f := range result.Streams[0].Frames {
		list = append(list, string(f.Payload))
	}
	return list
}
