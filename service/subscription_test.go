package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func TestIdleSubscriptionsGetProgress(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Service.Heartbeat = 50 * time.Millisecond })
		s := stream("idle", "")
		publish(t, w.a, newFrame(s, "x"))
		r := subscribe(t, w.b, fromOldest(s))
		r.take(1)
		for range 3 {
			response, err := r.stream.Recv()
			for err == nil && response.GetCaughtUp() != nil {
				response, err = r.stream.Recv()
			}
			if err != nil || response.GetProgress().GetPosition().GetSequence() != 1 {
				t.Fatalf("got %v, %v", response, err)
			}
		}
	})
}

// Readers that are behind get several frames to a message, at most 64 KiB of
// them; a larger frame travels alone.
func TestMessageSizes(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s := stream("sizes", "")
		const n = 300
		publishMany(t, w.a, s, n, func(i int) string {
			if i%50 == 7 {
				return strings.Repeat("L", 100_000)
			}
			return strings.Repeat("x", 1000)
		})
		r := subscribe(t, w.b, fromOldest(s))
		messages := 0
		for frames := 0; frames < n; messages++ {
			response, err := r.stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			frames += len(response.GetFrames())
			if size := proto.Size(response); size > 64<<10 && len(response.GetFrames()) > 1 {
				t.Errorf("a message of %d bytes with %d frames", size, len(response.GetFrames()))
			}
			if response.GetNotice() != nil && len(response.GetFrames()) > 0 {
				t.Errorf("a message with frames and a notice: %v", response.GetNotice())
			}
		}
		if messages > n/5 {
			t.Errorf("%d frames came in %d messages", n, messages)
		}
	})
}

// A subscriber that reads nothing while frames wait is ended with its position,
// and resuming there gives the rest.
func TestSlowSubscriberIsEnded(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Service.WriteTimeout = 1500 * time.Millisecond })
		s := stream("slow", "")
		const n = 4000
		publishMany(t, w.a, s, n, func(int) string { return strings.Repeat("x", 2000) })
		r := subscribe(t, w.b, fromOldest(s))
		eventually(t, "the subscription is ended", func() bool { return w.b.Hub.Subscribers(s) == 0 })
		var err error
		for err == nil {
			err = r.recv()
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("it ended with %v", err)
		}
		last := r.frames[len(r.frames)-1].GetPosition()
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok && (info.GetReason() != "SLOW_SUBSCRIBER" || info.GetMetadata()["position"] != position(last).String()) {
				t.Errorf("%v, the last frame was %v", info, last)
			}
		}
		contiguous(t, r.frames, 1)
		rest := subscribe(t, w.a, after(s, last))
		contiguous(t, rest.take(n-len(r.frames)), last.GetSequence()+1)
	})
}

// While the store is away every call says so, in time, and nothing of what the
// driver said.
func TestCallsWhileTheStoreIsAway(t *testing.T) {
	servicetest.OnEachStore(t, servicetest.Needs{servicetest.Outages}, func(t *testing.T, db servicetest.Database) {
		proxy := pgtest.Proxy(t, db.URL)
		r := servicetest.Start(t, proxy.URL(db.URL), wholeBacklog, func(c *servicetest.Config) { c.ListenURL, c.MigrateURL = db.URL, db.URL })
		s := stream("away", "")
		publish(t, r, newFrame(s, "before"))
		proxy.Refuse()
		proxy.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		// The first may find the connection cut under it, and then it cannot know.
		_, _ = r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(stream("other", ""), "x")})
		for name, call := range map[string]func() error{
			"Publish": func() error {
				_, err := r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, "x")})
				return err
			},
			"PublishBatch": func() error {
				_, err := r.Client.PublishBatch(ctx, &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{newFrame(s, "x")}})
				return err
			},
			"CloseStream": func() error {
				_, err := r.Client.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: "c"})
				return err
			},
			"ReadFrames": func() error {
				_, err := r.Client.ReadFrames(ctx, &fanfarev1.ReadFramesRequest{Channel: "c"})
				return err
			},
			"ListStreams": func() error { _, err := r.Client.ListStreams(ctx, &fanfarev1.ListStreamsRequest{}); return err },
		} {
			err := call()
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%s: %v", name, err)
			}
			var reason string
			retry := false
			for _, d := range status.Convert(err).Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					reason = d.GetReason()
				case *errdetails.RetryInfo:
					retry = true
				}
			}
			if reason != "STORE_UNAVAILABLE" || !retry || strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "postgres") {
				t.Errorf("%s: reason %q, retry %t: %v", name, reason, retry, err)
			}
		}
		proxy.Restore()
		eventually(t, "publishing works again", func() bool {
			_, err := r.Client.Publish(ctx, &fanfarev1.PublishRequest{Frame: newFrame(s, "after")})
			return err == nil
		})
		contiguous(t, subscribe(t, r, fromOldest(s)).take(2), 1)
	})
}
