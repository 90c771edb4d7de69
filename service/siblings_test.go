package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// siblingWindows are flow-control windows of a client's connection, beside those
// of its calls: what it has by default, and the least, which one call fills.
var siblingWindows = map[string][]grpc.DialOption{
	"default": nil,
	"least":   {narrow, grpc.WithStaticConnWindowSize(64 << 10)},
}

// One call that its client does not read stops none of the client's other calls
// on the same connection, also when what it has not read is as much as the
// connection's window.
func TestSiblingsOfAStalledCall(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, unhurried)
		for name, options := range siblingWindows {
			t.Run(name, func(t *testing.T) {
				s := stream("siblings", name)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				conn := dial(t, w.b.Addr, options...)
				all, err := openTallies(ctx, []*grpc.ClientConn{conn}, 21, func(int) *fanfarev1.SubscribeRequest { return fromOldest(s) })
				if err != nil {
					t.Fatal(err)
				}
				stalled, siblings := all[0], all[1:]
				const frames, rounds = 100, 3 // of 4 kB: one round is beyond the windows
				for round := 1; round <= rounds; round++ {
					publishMany(t, w.a, s, frames, func(i int) string { return string(stamped(0, 4000)) })
					if err := allReadTo(siblings, int64(round*frames)); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
				}
				if got := stalled.count.Load(); got != 0 {
					t.Fatalf("the stalled call has taken %d frames: nothing was tested", got)
				}
				if err := stalled.readTo(rounds * frames); err != nil {
					t.Errorf("the stalled call: %v", err)
				}
			})
		}
	})
}

// The same with ephemeral frames, which nobody can read later: the siblings get
// every one, also when and after the stalled call has been ended because it lost
// some.
func TestSiblingsOfACallStalledOnEphemeralFrames(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) {
			c.Hub.TailFrames = 100
			c.Service.WriteTimeout = 3 * time.Second
		})
		s := stream("siblings", "")
		at := publish(t, w.a, newFrame(s, string(stamped(0, stampBytes))))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn := dial(t, w.b.Addr, siblingWindows["least"]...)
		all, err := openTallies(ctx, []*grpc.ClientConn{conn}, 11, func(int) *fanfarev1.SubscribeRequest { return live(s) })
		if err != nil {
			t.Fatal(err)
		}
		stalled, siblings := all[0], all[1:]
		number := 0
		const frames = 25 // of 8 kB: beyond every window in the first round
		// It ends with ctx, unless the stalled call is ended and some rounds follow.
		for round, after := 0, 0; after < 5; round++ {
			batch := &fanfarev1.PublishBatchRequest{}
			for range frames {
				number++
				batch.Frames = append(batch.Frames, ephemeral(s, string(stamped(uint64(number), 8000))))
			}
			if _, err := w.a.Client.PublishBatch(ctx, batch); err != nil {
				t.Fatal(err)
			}
			if err := allReadTo(siblings, int64(number)); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if w.b.Hub.Subscribers(s) == len(siblings) {
				after++
			}
		}
		isSlow(t, stalled.readToEnd(), position(at))
		// What it got before, it got without a hole.
		if got := stalled.count.Load(); got == 0 || got != int64(stalled.number) {
			t.Errorf("the stalled call got %d frames, the last of them is number %d", got, stalled.number)
		}
	})
}

// allReadTo has subscriptions read, at the same time, until each has count frames.
func allReadTo(subscriptions []*tally, count int64) error {
	var g errgroup.Group
	for i, s := range subscriptions {
		g.Go(func() error {
			if err := s.readTo(count); err != nil {
				return fmt.Errorf("sibling %d: %w", i, err)
			}
			return nil
		})
	}
	return g.Wait()
}
