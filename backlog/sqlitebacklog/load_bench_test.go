package sqlitebacklog

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// BenchmarkLoad reads the states and the newest frames of many streams, which hold
// 100 frames of 100 bytes each.
func BenchmarkLoad(b *testing.B) {
	s := startStore(b, Config{Path: filepath.Join(b.TempDir(), "fanfare.db")})
	requests := make([]backlog.LoadRequest, backlog.MaxLoadRequests)
	for i := range requests {
		stream := backlog.StreamName{Channel: "bench", Scope: fmt.Sprint(i)}
		requests[i] = backlog.LoadRequest{Stream: stream, MaxBytes: 1 << 20, Verify: []uint64{50}}
		batch := make([]backlog.Publication, 100)
		for j := range batch {
			batch[j] = backlog.Publication{Stream: stream, Payload: make([]byte, 100)}
		}
		if _, err := s.PublishBatch(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	for _, tt := range []struct{ streams, frames, bytes int }{
		{1, 0, 1 << 20}, {1, 100, 1 << 20}, {1, 100, 5000}, {1000, 0, 1 << 20}, {1000, 10, 1 << 20}, {1000, 100, 5000},
	} {
		for i := range requests {
			requests[i].MaxFrames, requests[i].MaxBytes = tt.frames, tt.bytes
		}
		b.Run(fmt.Sprintf("streams=%d/frames=%d/bytes=%d", tt.streams, tt.frames, tt.bytes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Load(b.Context(), 0, requests[:tt.streams]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
