package sqlitebacklog

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// TestFlood: thousands who page, all the time, keep nobody else waiting. When all
// reads, and in memory all writes, waited for the same connections, a ping came
// after the thousands, and a replica that was busy counted as not ready.
func TestFlood(t *testing.T) {
	for what, cfg := range map[string]Config{"file": newFile(t), "memory": {Path: MemoryPath}} {
		t.Run(what, func(t *testing.T) {
			s := openRunning(t, cfg)
			for range 50 {
				s.publishPayloads(t, strings.Repeat("x", 20_000)) // a page of 1 MB takes its time
			}
			flood(t, s, 2000)
			for range 5 {
				soon(t, "ping", 3*time.Second, s.Ping) // after thousands it would come later by far
				soon(t, "load", 20*time.Second, func(ctx context.Context) error {
					_, err := s.Load(ctx, 0, []backlog.LoadRequest{{Stream: testStream, MaxFrames: 10, MaxBytes: 1 << 20}})
					return err
				})
				soon(t, "list", 20*time.Second, func(ctx context.Context) error {
					_, err := s.ListStreams(ctx, "", backlog.StreamName{}, 10)
					return err
				})
				soon(t, "publish", 20*time.Second, func(ctx context.Context) error {
					_, err := backlog.Publish(ctx, s, frame("other", "x"))
					return err
				})
				soon(t, "set a policy", 20*time.Second, func(ctx context.Context) error {
					return s.SetPolicy(ctx, backlog.Policy{Channel: "other", Backlog: pointerTo(uint64(9))})
				})
			}
		})
	}
}

// flood has readers page without a rest until the test ends. It returns when each
// has begun.
func flood(t *testing.T, s *runningStore, readers int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var begun, ended sync.WaitGroup
	t.Cleanup(ended.Wait)
	t.Cleanup(cancel)
	begun.Add(readers)
	for range readers {
		ended.Go(func() {
			begun.Done()
			for ctx.Err() == nil {
				_, err := s.ReadPage(ctx, 0, backlog.PageRequest{Stream: testStream, MaxFrames: 100, MaxBytes: 1 << 20})
				if err != nil && ctx.Err() == nil {
					t.Errorf("page: %v", err)
					return
				}
			}
		})
	}
	begun.Wait()
	eventually(t, "readers wait for each other", func() bool { return len(s.reading.lanes.pages) == cap(s.reading.lanes.pages) })
}

// soon does something that must succeed in time.
func soon(t *testing.T, what string, limit time.Duration, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := do(ctx); err != nil {
		t.Errorf("%s among thousands who page: %v", what, err)
	}
}
