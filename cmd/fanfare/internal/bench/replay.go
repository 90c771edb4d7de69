package bench

import (
	"context"
	"strconv"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func replayScenario() Scenario {
	return Scenario{
		Name:  "replay",
		Short: "a stream's backlog, read by one subscriber",
		Cases: []Case{{
			Name: "10000-frames", Short: "10,000 frames to one subscriber",
			Sizes: Sizes{Frames: 10_000, Bytes: 200, Subscribers: 1, Connections: 1},
			Run:   replay,
		}},
	}
}

// bareSelect is what a replay is compared with.
const bareSelect = "the bare SELECT through pgx"

// replayed is what one replay gives.
type replayed struct {
	Seconds float64 `json:"seconds"`
}

func replay(ctx context.Context, r *Run) error {
	server, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	channel, err := server.NewChannel(ctx, r, r.Sizes.Frames)
	if err != nil {
		return err
	}
	// Each round reads a stream that nobody has read: the server has nothing of it
	// in memory. The one before the first is read by nobody who measures, since the
	// first replay of a process connects to the store.
	r.Progressf("publishing what is to be replayed")
	if err := server.Fill(ctx, channel, r.Rounds+1, strconv.Itoa, r.Sizes.Frames, r.Sizes.Bytes); err != nil {
		return err
	}
	if _, err := replayOnce(ctx, r, server, channel, r.Rounds); err != nil {
		return err
	}
	round, reference := 0, 0
	sides := []Side[replayed]{{Fanfare, func(ctx context.Context) (replayed, error) {
		round++
		return replayOnce(ctx, r, server, channel, round-1)
	}}}
	if r.Config.Reference != "" && r.Database != "" {
		sides = append(sides, Side[replayed]{bareSelect, func(ctx context.Context) (replayed, error) {
			reference++
			var answer replayed
			err := r.AskReference(ctx, &answer, "replay", "--database", r.Database, "--schema", Schema,
				"--channel", channel, "--scope", strconv.Itoa(reference-1), "--frames", strconv.Itoa(r.Sizes.Frames))
			return answer, err
		}})
	}
	m, err := Rounds(ctx, r, sides...)
	if err != nil {
		return err
	}
	milliseconds := func(a replayed) float64 { return a.Seconds * 1000 }
	return r.ReportFigure(Figure{
		What: "replay of " + strconv.Itoa(r.Sizes.Frames) + " frames", Unit: "ms", Values: m.Of(Fanfare, milliseconds),
		ComparedWith: bareSelect, References: m.Of(bareSelect, milliseconds), Target: AtMost(2),
	})
}

// replayOnce has all subscribers replay one stream and returns how long it took
// until the last one had everything.
func replayOnce(ctx context.Context, r *Run, server *Server, channel string, scope int) (replayed, error) {
	began := time.Now()
	crowd, err := gather(ctx, server.Address, r.Sizes.Connections, r.Sizes.Subscribers, uint64(r.Sizes.Frames), oldestRequests(channel, strconv.Itoa(scope)))
	if err := firstOf(err, crowd.close()); err != nil {
		return replayed{}, err
	}
	return replayed{crowd.last.Sub(began).Seconds()}, nil
}

// oldestRequests returns what subscribes to some streams of a channel in turn,
// each with its backlog.
func oldestRequests(channel string, scopes ...string) func(int) *fanfarev1.SubscribeRequest {
	return func(i int) *fanfarev1.SubscribeRequest {
		return &fanfarev1.SubscribeRequest{Channel: channel, Scope: scopes[i%len(scopes)], Start: &fanfarev1.SubscribeRequest_Oldest{Oldest: true}}
	}
}
