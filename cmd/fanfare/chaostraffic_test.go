package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// The streams of a campaign, by channel: chat carries durable frames, and where the
// number is even ephemeral ones, too; presence only ephemeral ones; closing is
// closed and opened again; shrinking has its backlog bounded now and then; bulk has
// frames so large that a tail does not hold many, and the rest is read in pages;
// held is published to by nobody who has anything else to do, so that whoever holds
// it concerns nobody else.
const (
	chaosChat     = 4
	chaosPresence = 2
	chaosClosing  = 2
	chaosShrink   = 2
	chaosHeld     = 2
	chaosBulk     = 1
)

func chaosStream(channel string, i int) backlog.StreamName {
	return backlog.StreamName{Channel: channel, Scope: fmt.Sprint(i)}
}

func chaosStreams() (streams []backlog.StreamName) {
	add := func(channel string, n int) {
		for i := range n {
			streams = append(streams, chaosStream(channel, i))
		}
	}
	add("chat", chaosChat)
	add("presence", chaosPresence)
	add("closing", chaosClosing)
	add("shrinking", chaosShrink)
	add("held", chaosHeld)
	add("bulk", chaosBulk)
	return streams
}

// mayHaveGaps names the streams where gaps between durable frames are due.
func mayHaveGaps(s backlog.StreamName) bool {
	return s.Channel == "closing" || s.Channel == "shrinking"
}

// chaosMarked begins the payloads of the frames whose answers are lost.
const chaosMarked = "call "

// chaosFollower is a follower; stays is true if it takes what comes as it comes.
type chaosFollower struct {
	*servicetest.Follower
	kind  string
	stays bool
}

// startTraffic starts subscribers and publishers of all kinds.
func (c *chaosRun) startTraffic() {
	for i, s := range chaosStreams() {
		c.follow("steady", s, servicetest.FollowerConfig{})
		c.follow("restless", s, servicetest.FollowerConfig{ReconnectEvery: 700 * time.Millisecond})
		switch {
		case s.Channel == "chat" && i%2 == 0:
			c.follow("live", s, servicetest.FollowerConfig{Start: &fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Live{Live: true}}})
		case s.Channel == "chat":
			c.follow("slow", s, servicetest.FollowerConfig{Rest: 50 * time.Millisecond})
		case s.Channel == "presence":
			c.follow("last", s, servicetest.FollowerConfig{Start: &fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Last{Last: 3}}})
		case s.Channel == "shrinking":
			c.follow("away", s, servicetest.FollowerConfig{ReconnectEvery: time.Second, Away: time.Second})
		}
	}
	for i := range 2 {
		c.publish("call", i, (*chaosPublisher).byCall)
		c.publish("careful", i, (*chaosPublisher).carefully)
		c.publish("application", i, (*chaosPublisher).bySQL)
		c.publish("hold", i, (*chaosPublisher).toHeld)
	}
	c.publish("burst", 0, (*chaosPublisher).byBurst)
	c.publish("batch", 0, (*chaosPublisher).byBatch)
	c.publish("newcomer", 0, (*chaosPublisher).toNew)
	c.publish("bulk", 0, (*chaosPublisher).toBulk)
	c.publish("reader", 0, (*chaosPublisher).readBulk)
}

func (c *chaosRun) follow(name string, s backlog.StreamName, cfg servicetest.FollowerConfig) *chaosFollower {
	group := len(c.followers) % chaosClientGroups
	cfg.Pick = func() fanfarev1.FanfareServiceClient { return c.replicas[rand.N(2)].dialled[group] }
	if s.Channel == "closing" {
		cfg.Returns = 200 * time.Millisecond
	}
	f := &chaosFollower{
		Follower: c.recorder.Follower(fmt.Sprint(name, " ", len(c.followers)), s, cfg),
		kind:     name,
		stays:    name == "steady" || name == "live",
	}
	c.followers = append(c.followers, f)
	c.following.Go(func() error { return f.Run(c.followCtx) })
	return f
}

// stalled is the subscriber that a fault stalls: one that stays.
func (c *chaosRun) stalled(f chaosFault) *chaosFollower {
	var staying []*chaosFollower
	for _, f := range c.followers {
		if f.stays {
			staying = append(staying, f)
		}
	}
	return staying[f.pick%uint64(len(staying))]
}

// followerOf returns the one of a kind that follows a stream.
func (c *chaosRun) followerOf(s backlog.StreamName, kind string) *chaosFollower {
	i := slices.IndexFunc(c.followers, func(f *chaosFollower) bool { return f.Stream() == s && f.kind == kind })
	return c.followers[i]
}

// chaosPublisher is one publisher.
type chaosPublisher struct {
	servicetest.Publisher
	run  *chaosRun
	rng  *rand.Rand
	sent int
	conn *pgx.Conn
}

func (c *chaosRun) publisher(name string, i int) *chaosPublisher {
	return &chaosPublisher{
		run: c,
		rng: rand.New(rand.NewPCG(c.seed, rand.Uint64())),
		Publisher: servicetest.Publisher{
			Name: fmt.Sprint(name, " ", i), Recorder: c.recorder, Timeout: 20 * time.Second,
			Client: func() fanfarev1.FanfareServiceClient { return c.replicas[rand.N(2)].dialled[i%chaosClientGroups] },
		},
	}
}

// publish has a publisher do something again and again while there is traffic.
func (c *chaosRun) publish(name string, i int, once func(p *chaosPublisher, ctx context.Context) error) {
	p := c.publisher(name, i)
	c.traffic.Go(func() error {
		defer p.disconnect()
		for c.publishing.Err() == nil {
			if err := once(p, c.publishing); err != nil && c.publishing.Err() == nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			pauseFor(c.publishing, p.pause(50*time.Millisecond))
		}
		return nil
	})
}

func (p *chaosPublisher) pause(most time.Duration) time.Duration {
	return time.Duration(p.rng.Int64N(int64(most)))
}

// frame makes the next frame of a stream: mostly small, some too large to be
// announced whole.
func (p *chaosPublisher) frame(s backlog.StreamName, ephemeral bool) *fanfarev1.NewFrame {
	p.sent++
	pad := p.rng.IntN(300)
	if p.rng.IntN(20) == 0 {
		pad = p.rng.IntN(20_000)
	}
	return &fanfarev1.NewFrame{
		Channel: s.Channel, Scope: s.Scope, Ephemeral: ephemeral,
		Payload: fmt.Appendf(nil, "%s/%d %s", p.Name, p.sent, strings.Repeat("x", pad)),
	}
}

// next makes a frame of any stream but those that are held.
func (p *chaosPublisher) next() *fanfarev1.NewFrame {
	switch n := p.rng.IntN(10); {
	case n < 6:
		i := p.rng.IntN(chaosChat)
		return p.frame(chaosStream("chat", i), i%2 == 0 && p.rng.IntN(3) == 0)
	case n == 6:
		return p.frame(chaosStream("presence", p.rng.IntN(chaosPresence)), true)
	case n == 7:
		return p.frame(chaosStream("closing", p.rng.IntN(chaosClosing)), p.rng.IntN(4) == 0)
	default:
		return p.frame(chaosStream("shrinking", p.rng.IntN(chaosShrink)), false)
	}
}

func (p *chaosPublisher) several(most int) []*fanfarev1.NewFrame {
	frames := make([]*fanfarev1.NewFrame, 1+p.rng.IntN(most))
	for i := range frames {
		frames[i] = p.next()
	}
	return frames
}

// passing keeps the errors that no fault explains, and rests after the others.
func (p *chaosPublisher) passing(ctx context.Context, err error) error {
	if !servicetest.Passes(err) {
		return err
	}
	if err != nil {
		pauseFor(ctx, p.pause(200*time.Millisecond))
	}
	return nil
}

func (p *chaosPublisher) byCall(ctx context.Context) error {
	_, err := p.Publish(ctx, p.next())
	return p.passing(ctx, err)
}

func (p *chaosPublisher) carefully(ctx context.Context) error {
	f := p.next()
	if !f.Ephemeral {
		f.IdempotencyKey = fmt.Sprint(p.Name, "/", p.sent)
		_, err := p.PublishUntilAnswered(ctx, f)
		return err
	}
	_, err := p.Publish(ctx, f)
	return p.passing(ctx, err)
}

func (p *chaosPublisher) byBurst(ctx context.Context) error {
	return p.passing(ctx, p.PublishBurst(ctx, p.several(16)))
}

func (p *chaosPublisher) byBatch(ctx context.Context) error {
	return p.passing(ctx, p.PublishBatch(ctx, p.several(6)))
}

func (p *chaosPublisher) toHeld(ctx context.Context) error {
	_, err := p.Publish(ctx, p.frame(chaosStream("held", p.rng.IntN(chaosHeld)), false))
	return p.passing(ctx, err)
}

// bySQL is an application's transaction. It goes through the streams in one order,
// as applications should, and rolls back a fifth of the times.
func (p *chaosPublisher) bySQL(ctx context.Context) error {
	if p.conn == nil || p.conn.IsClosed() {
		var err error
		if p.conn, err = pgx.Connect(ctx, p.run.db.URL); err != nil {
			return nil // the server is away
		}
	}
	frames := p.several(4)
	slices.SortStableFunc(frames, func(a, b *fanfarev1.NewFrame) int {
		return strings.Compare(a.GetChannel()+a.GetScope(), b.GetChannel()+b.GetScope())
	})
	// A connection that broke is replaced; a deadlock with a batch is retried.
	_ = p.PublishInTransaction(ctx, p.conn, frames, p.pause(20*time.Millisecond), p.rng.IntN(5) > 0)
	return nil
}

func (p *chaosPublisher) disconnect() {
	if p.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.conn.Close(ctx)
	}
}

func (p *chaosPublisher) toBulk(ctx context.Context) error {
	f := p.frame(chaosStream("bulk", 0), p.rng.IntN(4) == 0)
	if f.Ephemeral {
		_, err := p.Publish(ctx, f)
		return p.passing(ctx, err)
	}
	f.Payload = append(f.Payload, make([]byte, 40_000+p.rng.IntN(160_000))...)
	f.IdempotencyKey = fmt.Sprint(p.sent)
	_, err := p.PublishUntilAnswered(ctx, f)
	pauseFor(ctx, p.pause(300*time.Millisecond))
	return err
}

// readBulk subscribes from further back than a tail reaches, until it is live.
func (p *chaosPublisher) readBulk(ctx context.Context) error {
	p.sent++
	start := &fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Last{Last: 50 + p.rng.Uint64N(50)}}
	err := p.following(ctx, chaosStream("bulk", 0), start, func(f *servicetest.Follower) error {
		return f.Await(ctx, "the end of the replay", func(e servicetest.Event) bool { return e.Kind == servicetest.SawCaughtUp })
	})
	pauseFor(ctx, 2*time.Second+p.pause(2*time.Second))
	return err
}

// following has a subscriber of its own while it does something.
func (p *chaosPublisher) following(ctx context.Context, s backlog.StreamName, start *fanfarev1.SubscribeRequest, do func(f *servicetest.Follower) error) error {
	f := p.Recorder.Follower(fmt.Sprint("one of ", p.Name, ", ", p.sent), s, servicetest.FollowerConfig{Pick: p.Client, Start: start})
	following, leave := context.WithCancel(ctx)
	left := make(chan error, 1)
	go func() { left <- f.Run(following) }()
	err := do(f)
	leave()
	return errors.Join(err, <-left)
}

// toNew publishes the first frames of a stream, and one who was there before gets
// them.
func (p *chaosPublisher) toNew(ctx context.Context) error {
	s := chaosStream("new", p.sent)
	err := p.following(ctx, s, nil, func(f *servicetest.Follower) error {
		err := f.AwaitSubscribed(ctx)
		for range 3 {
			if err != nil {
				break
			}
			frame := p.frame(s, false)
			frame.IdempotencyKey = fmt.Sprint(p.sent)
			if _, err = p.PublishUntilAnswered(ctx, frame); err == nil {
				err = f.AwaitLastFrame(ctx, servicetest.ContentOf(frame))
			}
		}
		return err
	})
	pauseFor(ctx, p.pause(time.Second))
	return err
}

// publishInto publishes one frame to a stream, with a key until it is confirmed.
func (c *chaosRun) publishInto(s backlog.StreamName) error {
	_, err := c.publishMarker(c.ctx, s, "first")
	return err
}

// publishMarker publishes a frame with a payload of its own.
func (c *chaosRun) publishMarker(ctx context.Context, s backlog.StreamName, marker string) (servicetest.Content, error) {
	f := &fanfarev1.NewFrame{Channel: s.Channel, Scope: s.Scope, Payload: fmt.Appendf(nil, "%s of %s", marker, s), IdempotencyKey: marker}
	_, err := c.publisher("marker", 0).PublishUntilAnswered(ctx, f)
	return servicetest.ContentOf(f), err
}
