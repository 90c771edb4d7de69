package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// mostUnheard is what a frame may cost a replica that has no subscriber for it, in µs.
const mostUnheard = 3

// decoding is what frames without subscribers are compared with.
const decoding = "reading the announcements alone"

// unheardCost is what one round gives, in µs of processor time for a frame; net is
// server without what it uses when nothing is published, and shared how many frames a
// notification carried.
type unheardCost struct{ server, net, decoding, shared float64 }

// unheard measures what frames cost a replica that has no subscriber for them. They
// are published through another one; a third process reads the same announcements at
// the same time.
func unheard(ctx context.Context, r *Run) error {
	if r.Database == "" {
		r.Notef("%s %s: this takes two replicas, which need PostgreSQL: name a database with --database", r.Scenario, r.Case)
		return nil
	}
	server, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	through, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	p, err := newPublishers(ctx, r, through)
	if err != nil {
		return err
	}
	defer p.hangUp()
	// The frame of another stream that is published last, and arrives, shows that the
	// replica has heard all before it.
	last, err := stageOptions{
		seating: seating{channel: r.Channel(), connections: 1, seats: 1, streams: 1}, batch: 1, ahead: 1, rate: 1,
	}.open(ctx, r, server, through)
	if err != nil {
		return err
	}
	if _, err := p.run(ctx, r.Time/4); err != nil {
		return err
	}
	m, err := Rounds(ctx, r, Side[unheardCost]{Fanfare, func(ctx context.Context) (unheardCost, error) {
		return unheardOnce(ctx, r, p, last)
	}})
	if err != nil {
		return err
	}
	costs := m.Of(Fanfare, func(c unheardCost) float64 { return c.server })
	net := m.Of(Fanfare, func(c unheardCost) float64 { return c.net })
	figures := []Figure{
		{What: "server CPU for a frame that nobody there subscribes to", Unit: "µs", Values: costs, Target: AtMost(mostUnheard)},
		{What: "the same, without the CPU used when nothing is published", Unit: "µs", Values: net},
	}
	if r.Config.Reference != "" {
		figures = append(figures, Figure{
			What: "the same", Unit: "µs", Values: costs,
			ComparedWith: decoding, References: m.Of(Fanfare, func(c unheardCost) float64 { return c.decoding }),
		}, Figure{
			What: "frames in a notification", Values: m.Of(Fanfare, func(c unheardCost) float64 { return c.shared }),
		})
	}
	for _, figure := range figures {
		if err := r.ReportFigure(figure); err != nil {
			return err
		}
	}
	return nil
}

// unheardOnce publishes for a while, with the server of last as the one that hears.
func unheardOnce(ctx context.Context, r *Run, p *publishers, last *stage) (unheardCost, error) {
	var cost unheardCost
	idle, err := last.idle(ctx)
	if err != nil {
		return cost, err
	}
	began := time.Now()
	before, err := last.server.Usage()
	if err != nil {
		return cost, err
	}
	frames := p.count()
	var both errgroup.Group
	if r.Config.Reference != "" {
		both.Go(func() error {
			var answer struct {
				CPU           float64 `json:"cpu_us_each"`
				Frames        float64 `json:"frames"`
				Notifications float64 `json:"notifications"`
			}
			err := r.AskReference(ctx, &answer, "decode", "--database", r.Database, "--notify-channel", "fanfare_"+Schema, "--time", r.Time.String())
			cost.decoding, cost.shared = answer.CPU, answer.Frames/answer.Notifications
			return err
		})
	}
	_, err = p.run(ctx, r.Time)
	if err == nil {
		_, err = last.publisher.run(ctx, 0)
	}
	if err := firstOf(err, both.Wait()); err != nil {
		return cost, err
	}
	after, err := last.server.Usage()
	published := float64(p.count() - frames)
	cost.server = micros(after.CPU-before.CPU) / published
	cost.net = withoutUpkeep(cost.server, idle*1e6*time.Since(began).Seconds()/published)
	return cost, err
}

// count is how many publishes have been answered.
func (p *publishers) count() (n uint64) {
	for i := range p.streams {
		stream := &p.streams[i]
		stream.mu.Lock()
		n += stream.count
		stream.mu.Unlock()
	}
	return n
}
