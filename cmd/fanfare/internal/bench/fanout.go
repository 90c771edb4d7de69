package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
)

func fanoutScenario() Scenario {
	return Scenario{
		Name:  "fanout",
		Short: "deliveries to many subscribers of a stream: what one costs the server, how long it takes",
		Cases: []Case{
			{
				Name: "1000-subscribers", Short: "1,000 subscribers on 10 connections, as fast as they take it",
				Sizes: Sizes{Subscribers: 1000, Connections: 10, Bytes: 200},
				Run:   fanout{bare: AtMost(0.9), naive: AtMost(0.45)}.run,
			},
			{
				Name: "10000-subscribers", Short: "10,000 subscribers on 100 connections, as fast as they take it",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Bytes: 200},
				Run:   fanout{naive: AtMost(0.4)}.run,
			},
			{
				Name: "1000-paced", Short: "1,000 subscribers on 10 connections, 100 frames a second",
				Sizes: Sizes{Subscribers: 1000, Connections: 10, Bytes: 200, Rate: 100},
				Run:   fanout{bare: AtMost(0.9), naive: AtMost(0.45)}.run,
			},
			{
				Name: "10000-paced", Short: "10,000 subscribers on 100 connections, 10 frames a second",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Bytes: 200, Rate: 10},
				Run:   fanout{naive: AtMost(0.4)}.run,
			},
			{
				Name: "behind", Short: "1,000 subscribers that are up to 512 frames behind, so that frames share messages",
				Sizes: Sizes{Subscribers: 1000, Connections: 10, Bytes: 200},
				Run:   fanout{naive: AtMost(0.15), batch: 64, ahead: 512}.run,
			},
			{
				Name: "growth", Short: "100 to 10,000 subscribers, 100 to a connection, one frame at a time",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Bytes: 200}, Meters: true,
				Run: fanoutGrowth,
			},
			{
				Name: "resident-streams", Short: "100 to 100,000 streams with a subscriber each, published to in turn",
				Sizes: Sizes{Streams: 100_000, Connections: 100, Bytes: 200}, Meters: true,
				Run: residentStreams,
			},
			{
				Name: "unheard", Short: "frames of streams that nobody subscribed to on this replica (PostgreSQL)",
				Sizes: Sizes{Streams: 1000, Callers: 64, Connections: 8, Bytes: 200}, Meters: true,
				Run: unheard,
			},
			{
				Name: "unheard-busy", Short: "the same, announced by full transactions, so that reading is shared",
				Sizes: Sizes{Streams: 1000, Callers: 512, Connections: 8, Bytes: 200}, Meters: true,
				Run: unheard,
			},
		},
	}
}

// naive encodes each frame for each subscriber.
const naive = "grpc-go, encoding for each subscriber (d)"

const (
	// defaultAhead is how many frames a publisher is ahead of the slowest subscriber.
	defaultAhead = 64
	// maxPacedAhead is the same of one that keeps to a rate: it should never wait.
	maxPacedAhead = 1000
)

// fanout is one case of one stream.
type fanout struct {
	// bare and naive are the targets of processor time against these.
	bare, naive Target
	// batch is how many frames a call publishes, and ahead how many the publisher is
	// ahead. 0: one, and defaultAhead.
	batch, ahead int
}

// fanned is what one round gives. What is not known is NaN.
type fanned struct {
	// deliveries, frames and messages are counts.
	deliveries, frames, messages float64
	seconds                      float64
	// server and client are processor seconds.
	server, client float64
	// idle is processor seconds of the server in a second without frames, where that
	// was measured.
	idle float64
	// p50 and p99 are milliseconds from the call of a publish to the arrival.
	p50, p99 float64
}

// net is server without what it uses when nothing is published, but never less than a
// hundredth of it: the two are measured one after the other, and in a short round the
// second may come out larger.
func (f fanned) net() float64 { return withoutUpkeep(f.server, f.idle*f.seconds) }

func withoutUpkeep(server, upkeep float64) float64 { return max(server/100, server-upkeep) }

func (f fanned) perMillion() float64       { return f.server / f.deliveries * 1e6 }
func (f fanned) perMessage() float64       { return f.deliveries / f.messages }
func (f fanned) clientPerMillion() float64 { return f.client / f.deliveries * 1e6 }
func (f fanned) perSecond() float64        { return f.deliveries / f.seconds }

func (f fanout) run(ctx context.Context, r *Run) error {
	server, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	channel, err := server.NewChannel(ctx, r, defaultBacklog)
	if err != nil {
		return err
	}
	own, err := f.stage(ctx, r, server, channel)
	if err != nil {
		return err
	}
	sides := []Side[fanned]{{Fanfare, own.measure}}
	if r.Config.Reference != "" {
		for _, mode := range []struct{ name, mode string }{{bare, "bare"}, {naive, "naive"}} {
			reference, err := r.ReferenceServer(ctx, "--mode", mode.mode, "--buffer", strconv.Itoa(f.aheadAt(r.Sizes.Rate)))
			if err != nil {
				return err
			}
			stage, err := f.stage(ctx, r, reference, r.Channel())
			if err != nil {
				return err
			}
			sides = append(sides, Side[fanned]{mode.name, stage.measure})
		}
	}
	m, err := Rounds(ctx, r, sides...)
	if err != nil {
		return err
	}
	return f.report(r, m)
}

// defaultBacklog is more than publishers are ahead: nothing is to be trimmed under a
// subscriber.
const defaultBacklog = 1000

// aheadAt is how many frames the publisher may be ahead at a rate.
func (f fanout) aheadAt(rate int) int {
	if rate > 0 {
		return maxPacedAhead
	}
	return max(f.ahead, defaultAhead)
}

// stage opens the case's subscriptions on a server.
func (f fanout) stage(ctx context.Context, r *Run, server *Server, channel string) (*stage, error) {
	return stageOptions{
		seating: seating{channel: channel, connections: r.Sizes.Connections, seats: r.Sizes.Subscribers, streams: 1},
		batch:   max(f.batch, 1), ahead: f.aheadAt(r.Sizes.Rate), rate: r.Sizes.Rate,
	}.open(ctx, r, server, server)
}

func (f fanout) report(r *Run, m *Measured[fanned]) error {
	references := []struct {
		name   string
		target Target
	}{{naive, f.naive}, {bare, f.bare}}
	var figures []Figure
	add := func(what, unit string, of func(fanned) float64, targeted bool) {
		values := m.Of(Fanfare, of)
		if math.IsNaN(values[0]) {
			return
		}
		for i, reference := range references {
			if r.Config.Reference == "" && i > 0 {
				return // it would be the same line again
			}
			figure := Figure{What: what, Unit: unit, Values: values, ComparedWith: reference.name, References: m.Of(reference.name, of)}
			if targeted {
				figure.Target = reference.target
			}
			figures = append(figures, figure)
		}
	}
	add("server CPU for a million deliveries", "s", fanned.perMillion, true)
	if r.Sizes.Rate == 0 {
		add("deliveries", "/s", fanned.perSecond, false)
		add("frames in a message", "", fanned.perMessage, false)
	}
	add("publish to receive, p50", "ms", func(f fanned) float64 { return f.p50 }, false)
	add("publish to receive, p99", "ms", func(f fanned) float64 { return f.p99 }, false)
	if client := m.Of(Fanfare, fanned.clientPerMillion); !math.IsNaN(client[0]) {
		figures = append(figures, Figure{What: "CPU of the load generator for a million deliveries", Unit: "s", Values: client})
	}
	for _, figure := range figures {
		if err := r.ReportFigure(figure); err != nil {
			return err
		}
	}
	return nil
}

// stage is a server, an audience of its and a publisher.
type stage struct {
	length    time.Duration
	server    *Server
	audience  *audience
	publisher *publisher
}

type stageOptions struct {
	seating
	batch, ahead, rate int
}

// open has the audience subscribe to server and frames published through another
// one, which may be the same. It is ended at the case's end.
func (o stageOptions) open(ctx context.Context, r *Run, server, through *Server) (*stage, error) {
	r.Progressf("opening %d subscriptions", o.seats+o.held)
	audience, err := o.seating.open(ctx, server, newGate(o.ahead, o.batch))
	r.AtEnd(func(context.Context) error { return audience.close() })
	if err != nil {
		return nil, err
	}
	conn, err := through.dial(ctx, load.Options{})
	if err != nil {
		return nil, err
	}
	r.AtEnd(func(context.Context) error { return conn.Close() })
	return &stage{
		length: r.Time, server: server, audience: audience,
		publisher: &publisher{
			conn: conn, audience: audience, channel: o.channel, payload: make([]byte, r.Sizes.Bytes),
			streams: o.streams, rate: o.rate,
		},
	}, nil
}

// measure publishes for a while, and a moment before, so that nothing is cold.
func (s *stage) measure(ctx context.Context) (fanned, error) {
	if _, err := s.publisher.run(ctx, s.length/4); err != nil {
		return fanned{}, err
	}
	s.publisher.forget()
	result := fanned{p50: math.NaN(), p99: math.NaN()}
	began := time.Now()
	var recorded []*arrivals
	if s.publisher.rate > 0 {
		frames := int(s.length.Seconds()*float64(s.publisher.rate)) + 1
		recorded = s.audience.record(began, frames*s.audience.size()*5/4)
	}
	before, err := readMeters(s.server)
	if err != nil {
		return result, err
	}
	messages := s.audience.messages()
	frames, err := s.publisher.run(ctx, s.length)
	if err != nil {
		return result, err
	}
	after, err := readMeters(s.server)
	if err != nil {
		return result, err
	}
	s.audience.stopRecording()
	result.seconds = time.Since(began).Seconds()
	result.server, result.client = after.server-before.server, after.client-before.client
	result.frames, result.deliveries = float64(frames), float64(frames)
	result.messages = float64(s.audience.messages() - messages)
	if s.audience.shared {
		result.deliveries *= float64(s.audience.size())
	}
	if recorded != nil {
		took, err := s.publisher.latencies(began, recorded)
		if err != nil {
			return result, err
		}
		if len(took) != int(result.deliveries) {
			return result, fmt.Errorf("%d deliveries were recorded of %.0f", len(took), result.deliveries)
		}
		result.p50, result.p99 = micros(Quantile(took, 0.5))/1000, micros(Quantile(took, 0.99))/1000
	}
	return result, nil
}

// meters are processor seconds of the server and of this process; NaN where they are
// not known.
type meters struct{ server, client float64 }

func readMeters(server *Server) (meters, error) {
	m := meters{math.NaN(), math.NaN()}
	if own, err := ReadUsage(os.Getpid()); err == nil {
		m.client = own.CPU.Seconds()
	}
	if server.PID == 0 {
		return m, nil
	}
	usage, err := server.Usage()
	m.server = usage.CPU.Seconds()
	return m, err
}
