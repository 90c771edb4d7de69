package bench

import (
	"context"
	"fmt"
	"strconv"

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

// replayTries is how often each side reads in a round; the best counts: a replay
// is so short that it meets a busy moment as a whole.
const replayTries = 3

func replay(ctx context.Context, r *Run) error {
	// Every replay is of a stream that nobody has subscribed to: the server has
	// nothing of it in memory. The one before the first round counts for nothing,
	// since a process's first replay connects to the store.
	scopes := r.Rounds*replayTries + 1
	server, channel, err := r.filled(ctx, scopes)
	if err != nil {
		return err
	}
	if err := server.readAll(ctx, channel, scopes); err != nil {
		return err
	}
	if _, err := replayOnce(ctx, r, server, channel, scopes-1); err != nil {
		return err
	}
	next, reference := 0, 0
	sides := []Side[replayed]{{Fanfare, func(ctx context.Context) (best replayed, err error) {
		for try := range replayTries {
			once, err := replayOnce(ctx, r, server, channel, next)
			if err != nil {
				return best, err
			}
			if next++; try == 0 || once.Seconds < best.Seconds {
				best = once
			}
		}
		return best, nil
	}}}
	if r.comparesStore() {
		sides = append(sides, Side[replayed]{bareSelect, func(ctx context.Context) (best replayed, err error) {
			scope := strconv.Itoa(reference * replayTries)
			reference++
			err = r.AskReference(ctx, &best, "replay", "--database", r.Database, "--schema", Schema, "--channel", channel,
				"--scope", scope, "--frames", strconv.Itoa(r.Sizes.Frames), "--repeat", strconv.Itoa(replayTries))
			return best, err
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
// from the first request until the last one had everything.
func replayOnce(ctx context.Context, r *Run, server *Server, channel string, scope int) (replayed, error) {
	crowd, err := gather(ctx, server, r.Sizes.Connections, r.Sizes.Subscribers, uint64(r.Sizes.Frames), oldestRequests(channel, strconv.Itoa(scope)))
	if err := firstOf(err, crowd.close()); err != nil {
		return replayed{}, err
	}
	return replayed{crowd.last.Sub(crowd.began).Seconds()}, nil
}

// readAll reads every stream once without a subscription. The first to read new
// rows of PostgreSQL notes on them that they are committed, which is no part of
// what is measured.
func (s *Server) readAll(ctx context.Context, channel string, scopes int) error {
	client, hangUp, err := s.client()
	if err != nil {
		return err
	}
	defer hangUp()
	for i := range scopes {
		request := &fanfarev1.ReadFramesRequest{Channel: channel, Scope: strconv.Itoa(i)}
		for {
			page, err := client.ReadFrames(ctx, request)
			if err != nil {
				return fmt.Errorf("read what is to be replayed: %w", err)
			}
			if len(page.GetFrames()) == 0 {
				break
			}
			request.After = page.GetNext()
		}
	}
	return nil
}

// oldestRequests returns what subscribes to some streams of a channel in turn,
// each with its backlog.
func oldestRequests(channel string, scopes ...string) func(int) *fanfarev1.SubscribeRequest {
	return func(i int) *fanfarev1.SubscribeRequest {
		return &fanfarev1.SubscribeRequest{Channel: channel, Scope: scopes[i%len(scopes)], Start: &fanfarev1.SubscribeRequest_Oldest{Oldest: true}}
	}
}
