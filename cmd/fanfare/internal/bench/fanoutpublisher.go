package bench

import (
	"context"
	"fmt"
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

// gate bounds how far a publisher is ahead of the slowest subscriber: a call takes a
// token, which comes back when everybody has its frames.
type gate struct {
	tokens chan struct{}
	// frames is how many belong to one token.
	frames uint64
	// delivered counts the frames that everybody has.
	delivered atomic.Uint64
}

// newGate lets a publisher be so many frames ahead, with so many to a call.
func newGate(ahead, frames int) *gate {
	g := &gate{tokens: make(chan struct{}, max(1, ahead/frames)), frames: uint64(frames)}
	for range cap(g.tokens) {
		g.tokens <- struct{}{}
	}
	return g
}

// advance takes note that everybody has n more frames. Nobody waits here: there is
// room for every token that was taken.
func (g *gate) advance(n uint64) {
	after := g.delivered.Add(n)
	for due := after/g.frames - (after-n)/g.frames; due > 0; due-- {
		g.tokens <- struct{}{}
	}
}

func (g *gate) take(ctx context.Context) error {
	select {
	case <-g.tokens:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// deliveryPatience bounds how long a frame may take to everybody.
const deliveryPatience = 30 * time.Second

// settle waits until everybody has everything. No call may be under way.
func (g *gate) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, deliveryPatience,
		fmt.Errorf("%d frames have reached all subscribers, and the others have not after %s", g.delivered.Load(), deliveryPatience))
	defer cancel()
	for range cap(g.tokens) {
		if err := g.take(ctx); err != nil {
			return err
		}
	}
	for range cap(g.tokens) {
		g.tokens <- struct{}{}
	}
	return nil
}

// publisher publishes to an audience.
type publisher struct {
	conn     *load.Conn
	audience *audience
	channel  string
	payload  []byte
	// streams are published to in turn.
	streams int
	// rate is in calls a second; 0: as many as the gate admits.
	rate int

	next atomic.Int64

	mu     sync.Mutex // guards called
	called []calledAt
}

// calledAt is when the publish was called that was answered with a sequence.
type calledAt struct {
	sequence uint64
	at       time.Time
}

// run publishes for some time, at least once, and returns when everybody has
// everything; and how many frames those were.
func (p *publisher) run(ctx context.Context, length time.Duration) (int, error) {
	before := p.audience.gate.delivered.Load()
	publish := p.flood
	if p.rate > 0 {
		publish = p.pace
	}
	err := p.watched(ctx, func(ctx context.Context) error { return publish(ctx, length) })
	return int(p.audience.gate.delivered.Load() - before), err
}

// touch publishes a frame to every stream that has none of this publisher, and returns
// when everybody has everything.
func (p *publisher) touch(ctx context.Context) error {
	return p.watched(ctx, func(ctx context.Context) error {
		return p.callers(ctx, func() bool { return p.next.Load() >= int64(p.streams) })
	})
}

// watched publishes until everybody has everything, or the audience fails.
func (p *publisher) watched(ctx context.Context, publish func(context.Context) error) error {
	calling, ctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	calling.Go(func() error {
		select {
		case err := <-p.audience.failed:
			return err
		case <-done:
			return nil
		}
	})
	calling.Go(func() error {
		defer close(done)
		if err := publish(ctx); err != nil {
			return err
		}
		return p.audience.gate.settle(ctx)
	})
	if err := calling.Wait(); err != nil {
		return fmt.Errorf("publish to %d subscriptions: %w", p.audience.size(), err)
	}
	return nil
}

func (a *audience) size() (n int) {
	for _, w := range a.rows {
		if w != nil {
			n += len(w.seats)
		}
	}
	return n
}

// flood publishes as fast as the gate admits, at least once.
func (p *publisher) flood(ctx context.Context, length time.Duration) error {
	end := time.Now().Add(length)
	if err := p.publish(ctx, time.Time{}); err != nil {
		return err
	}
	return p.callers(ctx, func() bool { return time.Now().After(end) })
}

// callers make as many calls at a time as the gate admits, until it is enough.
func (p *publisher) callers(ctx context.Context, enough func() bool) error {
	calling, ctx := errgroup.WithContext(ctx)
	for range cap(p.audience.gate.tokens) {
		calling.Go(func() error {
			for !enough() {
				if err := p.publish(ctx, time.Time{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return calling.Wait()
}

// pace publishes at the rate, whether or not the calls before have been answered.
func (p *publisher) pace(ctx context.Context, length time.Duration) error {
	interval := time.Second / time.Duration(p.rate)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	calling, ctx := errgroup.WithContext(ctx)
	for range max(1, int(length/interval)) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return calling.Wait()
		}
		called := time.Now()
		calling.Go(func() error { return p.publish(ctx, called) })
	}
	return calling.Wait()
}

// publish makes one call. It began at the given time, which a wait at the gate is
// part of.
func (p *publisher) publish(ctx context.Context, called time.Time) error {
	if err := p.audience.gate.take(ctx); err != nil {
		return err
	}
	// What has been called is awaited, also after an interruption: a publish that
	// commits after the streams were closed would open one again.
	ctx, stop := outlasting(ctx, answerPatience)
	defer stop()
	if p.audience.gate.frames > 1 {
		return p.publishBatch(ctx)
	}
	request, err := proto.Marshal(&fanfarev1.PublishRequest{Frame: p.frame()})
	if err != nil {
		return err
	}
	response, err := p.conn.Call(ctx, fanfarev1.FanfareService_Publish_FullMethodName, request)
	if err != nil {
		return err
	}
	var answer fanfarev1.PublishResponse
	if err := proto.Unmarshal(response, &answer); err != nil {
		return err
	}
	if !called.IsZero() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.called = append(p.called, calledAt{answer.GetPosition().GetSequence(), called})
	}
	return nil
}

// outlasting returns a context that ends so much later than ctx.
func outlasting(ctx context.Context, by time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(by, func() { cancel(context.Cause(ctx)) }) })
	return longer, func() { stop(); cancel(nil) }
}

func (p *publisher) publishBatch(ctx context.Context) error {
	batch := &fanfarev1.PublishBatchRequest{Frames: make([]*fanfarev1.NewFrame, p.audience.gate.frames)}
	for i := range batch.Frames {
		batch.Frames[i] = p.frame()
	}
	request, err := proto.Marshal(batch)
	if err != nil {
		return err
	}
	_, err = p.conn.Call(ctx, fanfarev1.FanfareService_PublishBatch_FullMethodName, request)
	return err
}

// frame is the next frame, for the next stream.
func (p *publisher) frame() *fanfarev1.NewFrame {
	scope := (p.next.Add(1) - 1) % int64(p.streams)
	return &fanfarev1.NewFrame{Channel: p.channel, Scope: strconv.FormatInt(scope, 10), Payload: p.payload}
}

// forget forgets the calls so far.
func (p *publisher) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.called = nil
}

// latencies are the times from the calls to the arrivals, sorted.
func (p *publisher) latencies(began time.Time, recorded []*arrivals) ([]time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	called := make(map[uint64]time.Duration, len(p.called))
	for _, c := range p.called {
		called[c.sequence] = c.at.Sub(began)
	}
	p.called = nil
	var took []time.Duration
	for _, r := range recorded {
		for _, a := range r.all {
			at, ok := called[a.sequence]
			if !ok {
				return nil, fmt.Errorf("frame %d came, and no publish was answered with it", a.sequence)
			}
			took = append(took, a.after-at)
		}
	}
	slices.Sort(took)
	return took, nil
}
