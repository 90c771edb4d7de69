package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// mostGrowth is how much more a unit of work may cost at the largest size than at
// the smallest.
const mostGrowth = 1.3

// growth compares servers of different sizes, the largest first. Each has nothing but
// its own subscribers. On PostgreSQL frames are published through a further replica,
// so that what publishing costs is not measured with what delivering costs.
type growth struct {
	run *Run
	// through is the further replica; nil on the embedded store.
	through *Server
	sides   []Side[fanned]
}

func newGrowth(ctx context.Context, r *Run) (*growth, error) {
	switch {
	case r.Database != "":
		through, err := r.Fanfare(ctx)
		return &growth{run: r, through: through}, err
	case r.Running():
		return nil, errors.New("this takes a server for each size: have them started with --self")
	}
	r.Notef("%s %s: the measured server also publishes, which is part of the figures, so they have no target; with --database another replica does", r.Scenario, r.Case)
	return &growth{run: r}, nil
}

// add starts a server and opens its subscriptions.
func (g *growth) add(ctx context.Context, name string, o stageOptions) error {
	server, err := g.run.Fanfare(ctx, "--max-subscriptions", strconv.Itoa(2*o.seats))
	if err != nil {
		return err
	}
	through := g.through
	if through == nil {
		through = server
	}
	if o.channel, err = through.NewChannel(ctx, g.run, defaultBacklog); err != nil {
		return err
	}
	// A batch creates streams faster than single calls do.
	g.run.Progressf("creating %d streams", o.streams)
	if err := through.Fill(ctx, o.channel, o.streams, strconv.Itoa, 1, g.run.Sizes.Bytes); err != nil {
		return err
	}
	stage, err := o.open(ctx, g.run, server, through)
	if err != nil {
		return err
	}
	// The first frame of a stream costs more than the others, and where streams are
	// many, few get a second one while it is measured.
	g.run.Progressf("publishing to each of %d streams", o.streams)
	if err := stage.publisher.touch(ctx); err != nil {
		return err
	}
	g.sides = append(g.sides, Side[fanned]{name, func(ctx context.Context) (fanned, error) {
		idle, err := stage.idle(ctx)
		if err != nil {
			return fanned{}, err
		}
		result, err := stage.measure(ctx)
		result.idle = idle
		return result, err
	}})
	return nil
}

// idle returns the processor seconds of a second in which nothing is published.
func (s *stage) idle(ctx context.Context) (float64, error) {
	before, err := readMeters(s.server)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	select {
	case <-time.After(s.length):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	after, err := readMeters(s.server)
	return (after.server - before.server) / time.Since(began).Seconds(), err
}

// grown is a figure that may grow with the size, or may not, if it has the target.
type grown struct {
	what, unit string
	of         func(fanned) float64
	targeted   bool
}

// report measures, and compares the first side with all others. The last one has the
// target, if delivering is measured by itself. What a server does without frames, its
// upkeep, is told beside: heartbeats and re-reads, where subscribers are many. It is
// measured right before the frames, for as long.
func (g *growth) report(ctx context.Context, what ...grown) error {
	m, err := Rounds(ctx, g.run, g.sides...)
	if err != nil {
		return err
	}
	largest := g.sides[0].Name
	var figures []Figure
	for _, w := range what {
		for i, side := range g.sides[1:] {
			figure := Figure{
				What: w.what + ": " + largest, Unit: w.unit, Values: m.Of(largest, w.of),
				ComparedWith: side.Name, References: m.Of(side.Name, w.of),
			}
			if w.targeted && g.through != nil && i == len(g.sides)-2 {
				figure.Target = AtMost(mostGrowth)
			}
			figures = append(figures, figure)
		}
	}
	for _, side := range g.sides {
		share := func(f fanned) float64 { return 100 * f.idle * f.seconds / f.server }
		figures = append(figures,
			Figure{What: "server CPU in a second without frames, the upkeep: " + side.Name, Unit: "ms", Values: m.Of(side.Name, func(f fanned) float64 { return f.idle * 1000 })},
			Figure{What: "its share of the CPU with frames: " + side.Name, Unit: "%", Values: m.Of(side.Name, share)},
		)
	}
	for _, figure := range figures {
		if slices.Max(figure.Values) == 0 {
			continue // less than the system measures
		}
		if err := g.run.ReportFigure(figure); err != nil {
			return err
		}
	}
	return nil
}

// fanoutGrowth compares deliveries to many subscribers with those to few, on as many
// connections for each. A frame is published when everybody has the one before:
// otherwise more frames would share messages where there are fewer subscribers.
func fanoutGrowth(ctx context.Context, r *Run) error {
	g, err := newGrowth(ctx, r)
	if err != nil {
		return err
	}
	for _, part := range []int{1, 10, 100} {
		subscribers := max(1, r.Sizes.Subscribers/part)
		err := g.add(ctx, fmt.Sprintf("%d subscribers", subscribers), stageOptions{
			seating: seating{connections: max(1, r.Sizes.Connections/part), seats: subscribers, streams: 1},
			batch:   1, ahead: 1,
		})
		if err != nil {
			return err
		}
	}
	return g.report(ctx, grown{"server CPU for a million deliveries", "s", fanned.perMillion, true})
}

// residentStreams compares frames for streams with a subscriber each, where there are
// many streams and where there are few.
func residentStreams(ctx context.Context, r *Run) error {
	g, err := newGrowth(ctx, r)
	if err != nil {
		return err
	}
	for _, part := range []int{1, 10, 100, 1000} {
		streams := max(1, r.Sizes.Streams/part)
		err := g.add(ctx, fmt.Sprintf("%d streams", streams), stageOptions{
			seating: seating{connections: r.Sizes.Connections, seats: streams, streams: streams},
			batch:   1, ahead: defaultAhead,
		})
		if err != nil {
			return err
		}
	}
	return g.report(ctx,
		grown{"server CPU for a frame with one subscriber, upkeep included", "µs", func(f fanned) float64 { return f.server / f.frames * 1e6 }, false},
		grown{"server CPU for a frame with one subscriber, upkeep left out", "µs", func(f fanned) float64 { return f.net() / f.frames * 1e6 }, true},
	)
}
