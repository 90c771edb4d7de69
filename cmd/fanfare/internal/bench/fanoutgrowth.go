package bench

import (
	"context"
	"fmt"
	"strconv"
)

// mostGrowth is how much more a unit of work may cost at the largest size than at
// the smallest.
const mostGrowth = 1.3

// publishedElsewhere returns the server through which frames are published to the
// subscribers of another one, and whether that is a replica of its own, so that what
// publishing costs is not measured with what delivering costs. This takes
// PostgreSQL.
func (r *Run) publishedElsewhere(ctx context.Context, subscribed *Server) (*Server, bool, error) {
	if r.Database == "" {
		r.Notef("%s %s: the server also publishes here, which is part of the figures, and there is no target; with --database another replica does", r.Scenario, r.Case)
		return subscribed, false, nil
	}
	through, err := r.Fanfare(ctx)
	return through, true, err
}

// fanoutGrowth compares deliveries to many subscribers with those to few, on as many
// connections for each. A frame is published when everybody has the one before:
// otherwise more frames would share messages where there are fewer subscribers.
func fanoutGrowth(ctx context.Context, r *Run) error {
	server, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	through, apart, err := r.publishedElsewhere(ctx, server)
	if err != nil {
		return err
	}
	var sides []Side[fanned]
	for _, part := range []int{1, 10, 100} {
		channel, err := server.NewChannel(ctx, r, defaultBacklog)
		if err != nil {
			return err
		}
		subscribers := max(1, r.Sizes.Subscribers/part)
		stage, err := stageOptions{
			seating: seating{channel: channel, connections: max(1, r.Sizes.Connections/part), seats: subscribers, streams: 1},
			batch:   1, ahead: 1,
		}.open(ctx, r, server, through)
		if err != nil {
			return err
		}
		sides = append(sides, Side[fanned]{fmt.Sprintf("%d subscribers", subscribers), stage.measure})
	}
	return reportGrowth(ctx, r, apart, sides, "server CPU for a million deliveries", "s", fanned.perMillion)
}

// residentStreams compares frames for streams with a subscriber each, where there are
// many streams and where there are few.
func residentStreams(ctx context.Context, r *Run) error {
	server, err := r.Fanfare(ctx, "--max-subscriptions", strconv.Itoa(2*r.Sizes.Streams))
	if err != nil {
		return err
	}
	through, apart, err := r.publishedElsewhere(ctx, server)
	if err != nil {
		return err
	}
	var sides []Side[fanned]
	for _, part := range []int{1, 10, 100, 1000} {
		channel, err := server.NewChannel(ctx, r, defaultBacklog)
		if err != nil {
			return err
		}
		streams := max(1, r.Sizes.Streams/part)
		r.Progressf("creating %d streams", streams)
		if err := through.Fill(ctx, channel, streams, strconv.Itoa, 1, r.Sizes.Bytes); err != nil {
			return err
		}
		stage, err := stageOptions{
			seating: seating{channel: channel, connections: r.Sizes.Connections, seats: streams, streams: streams},
			batch:   1, ahead: defaultAhead,
		}.open(ctx, r, server, through)
		if err != nil {
			return err
		}
		sides = append(sides, Side[fanned]{fmt.Sprintf("%d streams", streams), stage.measure})
	}
	return reportGrowth(ctx, r, apart, sides, "server CPU for a frame with one subscriber", "µs",
		func(f fanned) float64 { return f.server / f.frames * 1e6 })
}

// reportGrowth compares the first side, the largest, with all others. The last one,
// the smallest, has the target, if delivering was measured apart.
func reportGrowth(ctx context.Context, r *Run, apart bool, sides []Side[fanned], what, unit string, of func(fanned) float64) error {
	m, err := Rounds(ctx, r, sides...)
	if err != nil {
		return err
	}
	for i, side := range sides[1:] {
		figure := Figure{
			What: what + ": " + sides[0].Name, Unit: unit, Values: m.Of(sides[0].Name, of),
			ComparedWith: side.Name, References: m.Of(side.Name, of),
		}
		if apart && i == len(sides)-2 {
			figure.Target = AtMost(mostGrowth)
		}
		if err := r.ReportFigure(figure); err != nil {
			return err
		}
	}
	return nil
}
