package bench

import (
	"context"
	"strconv"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func idleScenario() Scenario {
	return Scenario{
		Name:  "idle",
		Short: "memory of subscriptions to which nothing is published",
		Cases: []Case{
			{
				Name: "shared-connections", Short: "10,000 subscriptions of one stream on 100 connections",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Streams: 1},
				Run:   idle("memory of an idle subscription", AtMost(0.9)), Restarts: true, Meters: true,
			},
			{
				Name: "many-streams", Short: "10,000 subscriptions of as many streams on 100 connections",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Streams: 10_000},
				Run:   idle("memory of an idle subscription and its stream", Target{}), Restarts: true, Meters: true,
			},
			{
				Name: "own-connections", Short: "10,000 connections with one subscription each",
				Sizes: Sizes{Subscribers: 10_000, Connections: 10_000, Streams: 1},
				Run:   idle("memory of a connection with an idle subscription", AtMost(1.2)), Restarts: true, Meters: true,
			},
		},
	}
}

// bare is what streams and their deliveries are compared with.
const bare = "bare grpc-go (c)"

func idle(what string, target Target) func(context.Context, *Run) error {
	return func(ctx context.Context, r *Run) error {
		perStream := func(start func(context.Context) (*Server, error)) func(context.Context) (float64, error) {
			return func(ctx context.Context) (float64, error) {
				server, err := start(ctx)
				if err != nil {
					return 0, err
				}
				bytes, err := idleBytes(ctx, r, server)
				return bytes / 1024, firstOf(err, server.Stop())
			}
		}
		// A process that has served subscriptions keeps their memory, so every round
		// has a new one.
		sides := []Side[float64]{{Fanfare, perStream(func(ctx context.Context) (*Server, error) { return r.Fanfare(ctx) })}}
		if r.Config.Reference != "" {
			sides = append(sides, Side[float64]{bare, perStream(func(ctx context.Context) (*Server, error) {
				return r.ReferenceServer(ctx, "--mode", "bare")
			})})
		}
		m, err := Rounds(ctx, r, sides...)
		if err != nil {
			return err
		}
		figure := func(kilobytes float64) float64 { return kilobytes }
		return r.ReportFigure(Figure{What: what, Unit: "KiB", Values: m.Of(Fanfare, figure), ComparedWith: bare, References: m.Of(bare, figure), Target: target})
	}
}

// idleBytes returns by how much a server's memory grew for one subscription.
func idleBytes(ctx context.Context, r *Run, server *Server) (float64, error) {
	// The first call of a process sets up what all others share.
	first, err := gather(ctx, server, 1, 1, 0, liveRequests(r.Channel(), 1))
	if err := firstOf(err, first.close()); err != nil {
		return 0, err
	}
	before, err := settledMemory(ctx, server)
	if err != nil {
		return 0, err
	}
	crowd, err := gather(ctx, server, r.Sizes.Connections, r.Sizes.Subscribers, 0, liveRequests(r.Channel(), r.Sizes.Streams))
	if err != nil {
		return 0, firstOf(err, crowd.close())
	}
	after, err := settledMemory(ctx, server)
	return float64(after-before) / float64(r.Sizes.Subscribers), firstOf(err, crowd.close())
}

// liveRequests returns what subscribes to some streams of a channel in turn,
// from now on.
func liveRequests(channel string, streams int) func(int) *fanfarev1.SubscribeRequest {
	return func(i int) *fanfarev1.SubscribeRequest {
		return &fanfarev1.SubscribeRequest{Channel: channel, Scope: strconv.Itoa(i % streams), Start: &fanfarev1.SubscribeRequest_Live{Live: true}}
	}
}

const (
	// settleStep is the time between two looks at a process's memory, and
	// settleTimeout bounds how long it may go on changing.
	settleStep    = 250 * time.Millisecond
	settleTimeout = 5 * time.Second
	// settledShare is the change between two looks below which it counts as none.
	settledShare = 0.002
)

// settledMemory returns how much memory the server has once that does not change
// any more, or at the end of a timeout.
func settledMemory(ctx context.Context, server *Server) (int64, error) {
	looks := time.NewTicker(settleStep)
	defer looks.Stop()
	deadline := time.Now().Add(settleTimeout)
	var last int64
	for {
		usage, err := server.Usage()
		if err != nil {
			return 0, err
		}
		change := usage.Resident - last
		if max(change, -change) <= int64(settledShare*float64(last)) || time.Now().After(deadline) {
			return usage.Resident, nil
		}
		last = usage.Resident
		select {
		case <-looks.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
