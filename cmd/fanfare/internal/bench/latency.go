package bench

import (
	"context"
	"strconv"
)

func latencyScenario() Scenario {
	return Scenario{
		Name:  "latency",
		Short: "the time from the call of a publish to the frame's arrival",
		Cases: []Case{{
			Name: "one-subscriber", Short: "50 frames a second, one subscriber",
			Sizes: Sizes{Subscribers: 1, Connections: 1, Bytes: 200, Rate: 50},
			Run:   latency,
		}},
	}
}

// listenLoop is what latency is compared with.
const listenLoop = "pgx commit and a bare LISTEN"

// latency measures on an idle server, with a connection that publishes and another
// one that is subscribed.
func latency(ctx context.Context, r *Run) error {
	server, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	channel, err := server.NewChannel(ctx, r, defaultBacklog)
	if err != nil {
		return err
	}
	own, err := stageOptions{
		seating: seating{channel: channel, connections: r.Sizes.Connections, seats: r.Sizes.Subscribers, streams: 1},
		batch:   1, ahead: maxPacedAhead, rate: r.Sizes.Rate,
	}.open(ctx, r, server, server)
	if err != nil {
		return err
	}
	sides := []Side[published]{{Fanfare, func(ctx context.Context) (published, error) {
		m, err := own.measure(ctx)
		return published{P50: m.p50 * 1000, P99: m.p99 * 1000}, err
	}}}
	if r.Config.Reference != "" && r.Database != "" {
		sides = append(sides, Side[published]{listenLoop, func(ctx context.Context) (published, error) {
			var p published
			err := r.AskReference(ctx, &p, "latency", "--database", r.Database, "--bytes", strconv.Itoa(r.Sizes.Bytes),
				"--rate", strconv.Itoa(r.Sizes.Rate), "--time", r.Time.String())
			return p, err
		}})
	}
	m, err := Rounds(ctx, r, sides...)
	if err != nil {
		return err
	}
	p50 := func(p published) float64 { return p.P50 }
	p99 := func(p published) float64 { return p.P99 }
	for _, figure := range []Figure{
		{What: "publish to receive, p50", Values: m.Of(Fanfare, p50), References: m.Of(listenLoop, p50), Target: AtMost(1.3)},
		{What: "publish to receive, p99", Values: m.Of(Fanfare, p99), References: m.Of(listenLoop, p99), Target: AtMost(2)},
	} {
		figure.Unit, figure.ComparedWith = "µs", listenLoop
		if err := r.ReportFigure(figure); err != nil {
			return err
		}
	}
	return nil
}
