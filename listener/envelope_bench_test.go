package listener

import (
	"fmt"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// BenchmarkOpen measures what the announcement of a frame costs a replica: judging and
// reading the envelope, which carries as many frames of 200 bytes as fit, with and
// without anybody who hears their streams.
func BenchmarkOpen(b *testing.B) {
	key := Key{ID: 1, Secret: make([]byte, 32)}
	e := Envelope{Origin: 1 << 60, PID: 4711, Transaction: 1 << 20}
	for i := range 200 {
		f := backlog.Frame{Created: time.Now(), Payload: make([]byte, 200)}
		f.Position = backlog.Position{Epoch: 1<<62 ^ e.Origin, Sequence: uint64(i + 1)}
		e.Announcements = append(e.Announcements, backlog.Announcement{
			Kind: backlog.AnnounceFrame, Stream: backlog.StreamName{Channel: "bench", Scope: fmt.Sprint("scope-", i)},
			OwnEpoch: 1 << 62, Origin: e.Origin, Frame: f,
		})
	}
	payload := EncodeTransaction(key, e)[0]
	a := NewAuthenticator()
	a.SetKeys([]Key{key})
	for name, heard := range map[string]bool{"heard": true, "unheard": false} {
		b.Run(name, func(b *testing.B) {
			frames := 0
			b.ReportAllocs()
			for b.Loop() {
				clear(a.marks)
				opened, err := a.open(Notification{PID: e.PID, Payload: payload}, func(backlog.StreamName) bool { return heard })
				if err != nil {
					b.Fatal(err)
				}
				frames += len(opened.Announcements) + opened.Unheard
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(frames), "µs/frame")
			b.ReportMetric(float64(frames)/float64(b.N), "frames/op")
		})
	}
}
