package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// Scenario S85, symptom: each acknowledgement took as long as a timeout of the
// listener. Cause: a connection that waits for notifications takes no LISTEN.
// Subscriptions of new channels on an idle service are acknowledged at once, one
// after the other and many together, and no ephemeral frame of another channel is
// lost or late meanwhile.
func TestAcknowledgementsOnAnIdleService(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		busy := stream("busy", "")
		follower, err := openTally(ctx, w.b.Conn, live(busy))
		if err != nil {
			t.Fatal(err)
		}
		var one []uint32
		for i := range 50 {
			took, err := acknowledgement(ctx, w.b.Conn, fmt.Sprint("idle ", i))
			if err != nil {
				t.Fatal(err)
			}
			one = append(one, uint32(took.Microseconds()))
		}

		var background, together errgroup.Group
		publishing, stop := context.WithCancel(ctx)
		defer stop()
		var sent int64
		background.Go(func() (err error) {
			sent, err = steadily(publishing, w.a.Client, busy, true, 500, 100)
			return err
		})
		for i := range 50 {
			took, err := acknowledgement(ctx, w.b.Conn, fmt.Sprint("amid ", i))
			if err != nil {
				t.Fatal(err)
			}
			one = append(one, uint32(took.Microseconds()))
		}
		began := time.Now()
		for i := range 200 {
			together.Go(func() error {
				_, err := acknowledgement(ctx, w.b.Conn, fmt.Sprint("together ", i))
				return err
			})
		}
		if err := together.Wait(); err != nil {
			t.Fatal(err)
		}
		all := time.Since(began)
		stop()
		if err := background.Wait(); err != nil {
			t.Fatal(err)
		}
		if err := follower.readTo(sent); err != nil {
			t.Fatalf("of %d ephemeral frames: %v", sent, err)
		}
		_, alone, _ := quantiles(one)
		_, late, _ := quantiles(follower.takeLatencies())
		t.Logf("acknowledged within %s one by one, 200 at once within %s; 99%% of %d ephemeral frames within %s", alone, all, sent, late)
		if limit := form(10*time.Second, 300*time.Millisecond); alone > limit {
			t.Errorf("an acknowledgement took %s", alone)
		}
		if limit := form(30*time.Second, 3*time.Second); all > limit {
			t.Errorf("200 acknowledgements took %s", all)
		}
		if limit := form(30*time.Second, 200*time.Millisecond); late > limit {
			t.Errorf("the 99th percentile of ephemeral frames was %s", late)
		}
	})
}

// acknowledgement subscribes to a channel, and says how long it took.
func acknowledgement(ctx context.Context, conn grpc.ClientConnInterface, channel string) (time.Duration, error) {
	began := time.Now()
	sub, err := openTally(ctx, conn, live(stream(channel, "")))
	if err != nil {
		return 0, err
	}
	defer sub.cancel()
	return time.Since(began), nil
}

// Scenario S87, symptom: when what it followed had been deleted, a subscription
// stayed open and silent for ever. Cause: a close reached the replica that executed
// it, or those who were live, only. A stream is closed through one replica: on
// both, whoever is live, still reading the backlog, or stalled gets what is left,
// Closed, and a definite end.
func TestCloseReachesEverybody(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Hub.TailFrames = 50 })
		s := stream("closed", "")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		const frames = 600
		last := publishMany(t, w.a, s, frames, func(int) string { return string(stamped(0, 1000)) })[frames-1]
		var idle, replaying, stalled []*tally
		for _, r := range []*servicetest.Replica{w.a, w.b} {
			conn := dial(t, r.Addr, narrow)
			for _, kind := range []struct {
				to      *[]*tally
				request *fanfarev1.SubscribeRequest
			}{{&idle, live(s)}, {&replaying, fromOldest(s)}, {&stalled, fromOldest(s)}} {
				sub, err := openTally(ctx, conn, kind.request)
				if err != nil {
					t.Fatal(err)
				}
				*kind.to = append(*kind.to, sub)
			}
		}
		// They are in the midst of it.
		for _, sub := range replaying {
			if err := sub.readTo(frames / 10); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if _, err := w.a.Client.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: s.Channel, Scope: s.Scope}); err != nil {
			t.Fatal(err)
		}
		// Who stalls comes last: he reads when the others have ended.
		for i, sub := range slices.Concat(idle, replaying, stalled) {
			if err := sub.isClosed(); err != nil {
				t.Errorf("subscriber %d: %v", i, err)
			}
			if n := sub.count.Load(); i >= len(idle) && n != frames {
				t.Errorf("subscriber %d got %d of %d frames", i, n, frames)
			}
			if got := sub.notice.GetClosed().GetLast(); position(got) != position(last) {
				t.Errorf("subscriber %d was told that the last frame is %v, it is %v", i, got, last)
			}
		}
		took := time.Since(began)
		t.Logf("all have ended within %s", took)
		if limit := form(20*time.Second, time.Second); took > limit {
			t.Errorf("it took %s until all had ended", took)
		}
	})
}

// Scenario S84, symptom: frames came late, in bunches. Cause: compression held them
// back until its window was full. To clients that compress what they send, where a
// compressor is registered in the process as it is here, each frame comes when it
// is published.
func TestFramesAreNotHeldBackByCompression(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("compressed", "")
		conn := dial(t, w.b.Addr, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)))
		client := fanfarev1.NewFanfareServiceClient(conn)
		r := subscribeWith(t, client, live(s))
		payload := strings.Repeat("x", 1000) // what compresses well
		for i := range 20 {
			// The next is not published before this one has come.
			f := newFrame(s, fmt.Sprint(i, payload))
			f.Ephemeral = i%2 == 1
			if _, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: f}); err != nil {
				t.Fatal(err)
			}
			if got := r.payloads(1)[0]; got != fmt.Sprint(i, payload) {
				t.Fatalf("frame %d is %q", i, shorten(got))
			}
		}
	})
}
