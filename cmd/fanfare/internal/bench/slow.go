package bench

import (
	"context"
	"math"
)

func slowScenario() Scenario {
	return Scenario{
		Name:  "slow",
		Short: "what subscribers that take nothing cost the others",
		Cases: []Case{{
			Name: "tenth-stalled", Short: "1,000 subscribers on 10 connections, 100 frames a second, a tenth stalled",
			Sizes: Sizes{Subscribers: 1000, Connections: 10, Bytes: 200, Rate: 100},
			Run:   slow,
		}},
	}
}

// nobodyStalled is what is compared with: as many subscribers, all of which read.
const nobodyStalled = "nobody stalled"

// slow measures deliveries to nine tenths of the subscribers while the others, on the
// same connections, take nothing. Each round has new ones, which stall while it is
// measured: a server ends those that go on.
func slow(ctx context.Context, r *Run) error {
	server, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	side := func(held int) func(context.Context) (fanned, error) {
		return func(ctx context.Context) (fanned, error) { return slowOnce(ctx, r, server, held) }
	}
	m, err := Rounds(ctx, r, Side[fanned]{Fanfare, side(r.Sizes.Subscribers / 10)}, Side[fanned]{nobodyStalled, side(0)})
	if err != nil {
		return err
	}
	for _, figure := range []struct {
		what, unit string
		of         func(fanned) float64
	}{
		{"publish to receive with a tenth stalled, p50", "ms", func(f fanned) float64 { return f.p50 }},
		{"publish to receive with a tenth stalled, p99", "ms", func(f fanned) float64 { return f.p99 }},
		{"server CPU for a million deliveries with a tenth stalled", "s", fanned.perMillion},
	} {
		values := m.Of(Fanfare, figure.of)
		if math.IsNaN(values[0]) {
			continue
		}
		err := r.ReportFigure(Figure{
			What: figure.what, Unit: figure.unit, Values: values,
			ComparedWith: nobodyStalled, References: m.Of(nobodyStalled, figure.of),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// slowOnce measures a new audience, so many of which are held.
func slowOnce(ctx context.Context, r *Run, server *Server, held int) (fanned, error) {
	channel, err := server.NewChannel(ctx, r, defaultBacklog)
	if err != nil {
		return fanned{}, err
	}
	stage, err := stageOptions{
		seating: seating{channel: channel, connections: r.Sizes.Connections, seats: r.Sizes.Subscribers - held, held: held, streams: 1},
		batch:   1, ahead: maxPacedAhead, rate: r.Sizes.Rate,
	}.open(ctx, r, server, server)
	if err != nil {
		return fanned{}, err
	}
	result, err := stage.measure(ctx)
	if err != nil {
		return fanned{}, err
	}
	return result, firstOf(stage.audience.stalled(), stage.audience.close())
}
