package service_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S129, symptom: a heartbeat in the middle of a frame broke the call.
// Cause: two goroutines wrote to one stream. Frames of all sizes with heartbeats
// in every pause, and a close at the end: each call is whole, each Progress says
// where the reader is.
func TestHeartbeatsDoNotMixWithFrames(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Service.Heartbeat = time.Millisecond })
		const streams, frames = 10, 150
		var g errgroup.Group
		for i := range streams {
			s := stream("beats", fmt.Sprint(i))
			publish(t, w.a, newFrame(s, "first"))
			r := subscribe(t, w.b, fromOldest(s))
			g.Go(func() error { return readBeats(r, frames+1) })
			g.Go(func() error {
				for range frames {
					f := newFrame(s, strings.Repeat("x", 1000+rand.IntN(19_000)))
					if _, err := w.a.Client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: f}); err != nil {
						return err
					}
					<-time.After(rand.N(4 * time.Millisecond)) // room for heartbeats
				}
				_, err := w.a.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// readBeats reads a subscription to its end.
func readBeats(r *reader, frames uint64) error {
	var last uint64
	beats := 0
	for {
		response, err := r.stream.Recv()
		if err != nil {
			return fmt.Errorf("after %d frames: %w", last, err)
		}
		for _, f := range response.GetFrames() {
			if f.GetPosition().GetSequence() != last+1 {
				return fmt.Errorf("%d follows %d", f.GetPosition().GetSequence(), last)
			}
			last++
		}
		if p := response.GetProgress(); p != nil {
			beats++
			if p.GetPosition().GetSequence() != last {
				return fmt.Errorf("progress says %v after %d", p.GetPosition(), last)
			}
		}
		if response.GetClosed() != nil {
			break
		}
	}
	if code := r.end(); code != codes.OK || last != frames || beats == 0 {
		return fmt.Errorf("it ended %s after %d of %d frames and %d heartbeats", code, last, frames, beats)
	}
	return nil
}
