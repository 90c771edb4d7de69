package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func publishScenario() Scenario {
	return Scenario{
		Name:  "publish",
		Short: "durable publishes: how many a second, how long one takes",
		Cases: []Case{
			{
				Name: "64-callers", Short: "64 callers, 1,000 streams",
				Sizes: Sizes{Callers: 64, Streams: 1000, Connections: 8, Bytes: 200},
				Run:   publishRate(AtLeast(12), Target{}),
			},
			{
				Name: "512-callers", Short: "512 callers, 1,000 streams",
				Sizes: Sizes{Callers: 512, Streams: 1000, Connections: 8, Bytes: 200},
				Run:   publishRate(AtLeast(30), AtLeast(0.5)),
			},
			{
				Name: "one-stream", Short: "512 callers, all on one stream",
				Sizes: Sizes{Callers: 512, Streams: 1, Connections: 8, Bytes: 200},
				Run:   publishRate(AtLeast(25), Target{}),
			},
			{
				Name: "new-streams", Short: "512 callers, each frame to a stream of its own",
				Sizes: Sizes{Callers: 512, Connections: 8, Bytes: 200},
				Run:   publishRate(AtLeast(10), Target{}),
			},
			{
				Name: "one-caller", Short: "one caller, 1,000 streams",
				Sizes: Sizes{Callers: 1, Streams: 1000, Connections: 1, Bytes: 200},
				Run:   publishLatency,
			},
		},
	}
}

// What publishes are compared with.
const (
	rowNotify = "row and NOTIFY in a transaction each (a)"
	rows      = "the same rows in large transactions (b)"
)

// published is what one round of publishing gives.
type published struct {
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	// cpu is the server's time for one publish in µs; NaN if it is not known.
	cpu float64
}

func publishRate(notified, plain Target) func(context.Context, *Run) error {
	return func(ctx context.Context, r *Run) error {
		m, err := publishRounds(ctx, r, plain.set)
		if err != nil {
			return err
		}
		perSecond := func(p published) float64 { return p.PerSecond }
		figures := []Figure{{What: "durable publishes", Unit: "/s", ComparedWith: rowNotify, References: m.Of(rowNotify, perSecond), Target: notified}}
		if plain.set {
			figures = append(figures, Figure{What: "durable publishes", Unit: "/s", ComparedWith: rows, References: m.Of(rows, perSecond), Target: plain})
			if m.Of(rows, perSecond) == nil {
				figures = figures[:1] // it would be the same line again
			}
		}
		for _, f := range figures {
			f.Values = m.Of(Fanfare, perSecond)
			if err := r.ReportFigure(f); err != nil {
				return err
			}
		}
		return reportPublishCPU(r, m)
	}
}

func publishLatency(ctx context.Context, r *Run) error {
	m, err := publishRounds(ctx, r, false)
	if err != nil {
		return err
	}
	p50 := func(p published) float64 { return p.P50 }
	p99 := func(p published) float64 { return p.P99 }
	for _, f := range []Figure{
		{What: "a publish takes, p50", Values: m.Of(Fanfare, p50), References: m.Of(rowNotify, p50), Target: AtMost(1.15)},
		{What: "a publish takes, p99", Values: m.Of(Fanfare, p99), References: m.Of(rowNotify, p99)},
	} {
		f.Unit, f.ComparedWith = "µs", rowNotify
		if err := r.ReportFigure(f); err != nil {
			return err
		}
	}
	return reportPublishCPU(r, m)
}

func reportPublishCPU(r *Run, m *Measured[published]) error {
	cpu := m.Of(Fanfare, func(p published) float64 { return p.cpu })
	if math.IsNaN(cpu[0]) {
		return nil // nobody knows the process
	}
	return r.ReportFigure(Figure{What: "server CPU for a publish", Unit: "µs", Values: cpu})
}

// publishRounds measures the server and what it is compared with.
func publishRounds(ctx context.Context, r *Run, withRows bool) (*Measured[published], error) {
	server, err := r.Fanfare(ctx)
	if err != nil {
		return nil, err
	}
	p, err := newPublishers(ctx, r, server)
	if err != nil {
		return nil, err
	}
	defer p.hangUp()
	// The first publishes connect, plan statements and create streams.
	if _, err := p.run(ctx, r.Time/4); err != nil {
		return nil, err
	}
	sides := []Side[published]{{Name: Fanfare, Measure: func(ctx context.Context) (published, error) { return p.run(ctx, r.Time) }}}
	if r.comparesStore() {
		sides = append(sides, r.rowsSide(rowNotify, "row-notify"))
		if withRows {
			sides = append(sides, r.rowsSide(rows, "rows"))
		}
	}
	return Rounds(ctx, r, sides...)
}

// rowsSide is a reference that inserts rows by itself.
func (r *Run) rowsSide(name, mode string) Side[published] {
	args := []string{
		"publish", "--mode", mode, "--database", r.Database, "--callers", strconv.Itoa(r.Sizes.Callers),
		"--bytes", strconv.Itoa(r.Sizes.Bytes), "--time", r.Time.String(),
	}
	if r.Sizes.Streams == 0 {
		args = append(args, "--new-streams")
	} else {
		args = append(args, "--streams", strconv.Itoa(r.Sizes.Streams))
	}
	return Side[published]{name, func(ctx context.Context) (published, error) {
		var p published
		err := r.AskReference(ctx, &p, args...)
		return p, err
	}}
}

// publishers are callers that publish one frame after the other.
type publishers struct {
	server  *Server
	conns   []*load.Conn
	callers int
	channel string
	payload []byte
	// streams check the answers; none if each frame has a stream of its own.
	streams []numbering
	// next numbers the streams of frames that have their own.
	next atomic.Int64
}

func newPublishers(ctx context.Context, r *Run, server *Server) (*publishers, error) {
	p := &publishers{server: server, callers: r.Sizes.Callers, payload: make([]byte, r.Sizes.Bytes), streams: make([]numbering, r.Sizes.Streams)}
	var err error
	if p.channel, err = server.NewChannel(ctx, r, 0); err != nil {
		return nil, err
	}
	for range r.Sizes.Connections {
		conn, err := server.dial(ctx, load.Options{})
		if err != nil {
			p.hangUp()
			return nil, err
		}
		p.conns = append(p.conns, conn)
	}
	return p, nil
}

func (p *publishers) hangUp() {
	for _, conn := range p.conns {
		conn.Close()
	}
}

// request encodes a publish to the i-th stream.
func (p *publishers) request(i int) ([]byte, error) {
	return proto.Marshal(&fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: p.channel, Scope: strconv.Itoa(i), Payload: p.payload}})
}

// run publishes for some time. Every caller's last answer is awaited, also after
// an interruption: a publish that commits after the streams were closed would open
// one again.
func (p *publishers) run(ctx context.Context, length time.Duration) (published, error) {
	before, err := p.usage()
	if err != nil {
		return published{}, err
	}
	began := time.Now()
	took := make([][]time.Duration, p.callers)
	calling, callCtx := errgroup.WithContext(ctx)
	for caller := range p.callers {
		calling.Go(func() (err error) {
			took[caller], err = p.call(callCtx, caller, began.Add(length))
			return err
		})
	}
	if err := calling.Wait(); err != nil {
		return published{}, fmt.Errorf("publish: %w", err)
	}
	elapsed := time.Since(began)
	after, err := p.usage()
	if err != nil {
		return published{}, err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	result := published{
		PerSecond: float64(len(all)) / elapsed.Seconds(),
		P50:       micros(Quantile(all, 0.5)), P99: micros(Quantile(all, 0.99)),
		cpu: math.NaN(),
	}
	if p.server.PID != 0 {
		result.cpu = micros(after.CPU-before.CPU) / float64(len(all))
	}
	return result, p.check()
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// usage is what the server uses; nothing if its process is not known.
func (p *publishers) usage() (Usage, error) {
	if p.server.PID == 0 {
		return Usage{}, nil
	}
	return p.server.Usage()
}

// answerPatience bounds how long an answer is awaited after an interruption.
const answerPatience = 5 * time.Second

// call is one caller: it publishes to each stream in turn until the end, and at
// least once.
func (p *publishers) call(ctx context.Context, caller int, end time.Time) (took []time.Duration, err error) {
	conn := p.conns[caller%len(p.conns)]
	answering, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(answerPatience, cancel) })()
	for i := caller; ; i += p.callers {
		var stream int
		if len(p.streams) > 0 {
			stream = i % len(p.streams)
		} else {
			stream = int(p.next.Add(1))
		}
		request, err := p.request(stream)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		response, err := conn.Call(answering, fanfarev1.FanfareService_Publish_FullMethodName, request)
		answered := time.Now()
		if err != nil {
			return nil, err
		}
		took = append(took, answered.Sub(began))
		if err := p.take(stream, response); err != nil {
			return nil, err
		}
		if answered.After(end) || ctx.Err() != nil {
			return took, nil
		}
	}
}

// take notes an answer.
func (p *publishers) take(stream int, response []byte) error {
	var answer fanfarev1.PublishResponse
	if err := proto.Unmarshal(response, &answer); err != nil {
		return err
	}
	sequence := answer.GetPosition().GetSequence()
	if len(p.streams) == 0 {
		if sequence != 1 {
			return fmt.Errorf("the first frame of a stream was given number %d", sequence)
		}
		return nil
	}
	p.streams[stream].add(sequence)
	return nil
}

// check says whether the streams' frames were numbered from 1 without holes. All
// publishes must have been answered.
func (p *publishers) check() error {
	for i := range p.streams {
		if err := p.streams[i].check(); err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
	}
	return nil
}

// numbering checks the sequences that the answers of one stream gave, in any
// order. Its methods may be called by several goroutines.
type numbering struct {
	mu                  sync.Mutex // guards what follows
	count, highest, sum uint64
}

func (n *numbering) add(sequence uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	n.sum += sequence
	n.highest = max(n.highest, sequence)
}

// check tells whether all sequences from 1 to the highest were given, each once.
func (n *numbering) check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.highest != n.count || n.sum != n.count*(n.count+1)/2 {
		return fmt.Errorf("%d publishes were answered with numbers up to %d, not with each once", n.count, n.highest)
	}
	return nil
}
