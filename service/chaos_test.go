package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

const (
	chaosStreams    = 20
	chaosFollowers  = 200
	chaosPublishers = 8
	killInterval    = 200 * time.Millisecond
	// chaosMemory is the default bound of a hub's tails and pages.
	chaosMemory = 256<<20 + 64<<20
)

// chaosSize is how many frames are published and how long that may take.
func chaosSize() (frames int, limit time.Duration) {
	if inLongForm() {
		return 100_000, 30 * time.Minute
	}
	return 4000, 10 * time.Minute
}

// Eight publishers and 200 subscribers that resume, while the store
// is attacked. On PostgreSQL half of the publishers use SQL in their own
// transactions, and the listeners' backends of two replicas are terminated five
// times a second and the server is restarted twice; on SQLite the replica is
// stopped and replaced ten times. Some subscribers are slow, and some stall for
// seconds.
func TestChaos(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		frames, limit := chaosSize()
		c := newChaos(newWorld(t, db.OnOwnServer(t)), frames)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()

		followCtx, stopFollowing := context.WithCancel(ctx)
		defer stopFollowing()
		var following, faults, publishers errgroup.Group
		followers := c.followers()
		for _, f := range followers {
			following.Go(func() error { return f.Run(followCtx) })
		}
		c.attack(ctx, &faults)
		faults.Go(func() error { c.stallFollowers(ctx, followers); return nil })
		faults.Go(func() error { c.sampleMemory(ctx); return nil })
		for i := range chaosPublishers {
			publishers.Go(func() error { return c.publisher(ctx, i) })
		}
		if err := publishers.Wait(); err != nil {
			t.Error(err)
		}
		if err := faults.Wait(); err != nil {
			t.Error(err)
		}
		c.finish(ctx, followers)
		stopFollowing()
		if err := following.Wait(); err != nil {
			t.Error(err)
		}
		servicetest.Check(t, c.recorder.Run(), servicetest.Unbroken)
		c.checkAttack()
	})
}

// chaos is one run.
type chaos struct {
	*world
	recorder *servicetest.Recorder
	frames   int
	// current are the replicas that serve now, and sessions clients of these with one
	// session for all their subscriptions.
	current  [2]atomic.Pointer[servicetest.Replica]
	sessions [2]atomic.Pointer[servicetest.Sessions]

	sent, killed, restarts, stalls, done atomic.Int64
}

func newChaos(w *world, frames int) *chaos {
	c := &chaos{world: w, recorder: servicetest.NewRecorder(), frames: frames}
	c.serving()
	return c
}

// serving makes the world's replicas the current ones.
func (c *chaos) serving() {
	for i, r := range []*servicetest.Replica{c.a, c.b} {
		c.current[i].Store(r)
		c.sessions[i].Store(servicetest.NewSessions(r.Client))
	}
}

// client is that of a current replica; they take turns by i.
func (c *chaos) client(i int) fanfarev1.FanfareServiceClient { return c.current[i%2].Load().Client }

// attack starts the faults in g; they end when all has been published.
func (c *chaos) attack(ctx context.Context, g *errgroup.Group) {
	if !c.db.Has(servicetest.Outages) {
		g.Go(func() error { c.atEach(ctx, 10, func(int) { c.restart(); c.serving() }); return nil })
		return
	}
	g.Go(func() error { c.killListenersUntil(ctx); return nil })
	// In an orderly way, and by a crash.
	modes := []string{"fast", "immediate"}
	g.Go(func() error {
		c.atEach(ctx, len(modes), func(i int) { c.db.Server.Restart(modes[i]) })
		return nil
	})
}

// atEach has n restarts at moments spread over the frames.
func (c *chaos) atEach(ctx context.Context, n int, restart func(i int)) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for i := range n {
		for c.sent.Load() < int64(c.frames*(i+1)/(n+1)) {
			if ctx.Err() != nil || c.done.Load() == chaosPublishers {
				return
			}
			<-look.C
		}
		restart(i)
		c.restarts.Add(1)
	}
}

// checkAttack checks that there was one.
func (c *chaos) checkAttack() {
	c.t.Logf("%d frames sent, %d listeners killed, %d restarts, %d stalls", c.sent.Load(), c.killed.Load(), c.restarts.Load(), c.stalls.Load())
	kills, restarts := int64(0), int64(10)
	if c.db.Has(servicetest.Outages) {
		kills, restarts = 10, 2
	}
	if c.killed.Load() < kills || c.restarts.Load() != restarts || c.stalls.Load() == 0 {
		c.t.Errorf("only %d listeners were killed, there were %d restarts, and %d stalls", c.killed.Load(), c.restarts.Load(), c.stalls.Load())
	}
}

func chaosStream(i int) backlog.StreamName { return stream("chaos", fmt.Sprint(i)) }

// followers makes subscribers of all kinds: of each replica, with a call each and
// sharing sessions, from the oldest and live, staying and coming back.
func (c *chaos) followers() []*servicetest.Follower {
	followers := make([]*servicetest.Follower, chaosFollowers)
	for i := range followers {
		s := chaosStream(i % chaosStreams)
		cfg := servicetest.FollowerConfig{Pick: func() fanfarev1.FanfareServiceClient {
			return c.client(rand.N(2))
		}}
		if i/10%2 == 1 { // of each kind
			cfg.Pick = func() fanfarev1.FanfareServiceClient { return c.sessions[rand.N(2)].Load() }
		}
		if i%3 == 1 {
			cfg.ReconnectEvery = time.Second
		}
		switch i % 10 {
		case 4, 9:
			cfg.Start = live(s)
		case 5:
			cfg.Start = &fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Last{Last: 10}}
		case 6:
			cfg.Rest = 20 * time.Millisecond
		}
		followers[i] = c.recorder.Follower(fmt.Sprint("follower ", i), s, cfg)
	}
	return followers
}

// killListenersUntil terminates the listeners' backends again and again, and
// samples how many there are. It stops when all has been published.
func (c *chaos) killListenersUntil(ctx context.Context) {
	tick := time.NewTicker(killInterval)
	defer tick.Stop()
	for c.done.Load() < chaosPublishers {
		select {
		case <-tick.C:
			// While the server restarts there is nothing to kill.
			_ = c.killOnce(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (c *chaos) killOnce(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.db.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a connection for one statement
	rows, err := conn.Query(ctx, `select application_name, count(pg_terminate_backend(pid)) from pg_stat_activity
		where application_name like 'fanfare-listen/%' group by 1`)
	if err != nil {
		return err
	}
	var replica string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&replica, &n}, func() error {
		c.recorder.Sample(replica, n)
		c.killed.Add(int64(n))
		return nil
	})
	return err
}

// publisher sends its share of the frames.
func (c *chaos) publisher(ctx context.Context, i int) error {
	defer c.done.Add(1)
	p := c.newPublisher(fmt.Sprint("publisher ", i), uint64(i), func() fanfarev1.FanfareServiceClient { return c.client(i) })
	p.left = c.frames / chaosPublishers
	switch {
	case i >= 4 && c.db.Has(servicetest.SQL):
		return p.bySQL(ctx)
	case i%4 == 3:
		return p.byStream(ctx)
	default:
		return p.byCall(ctx, i%4 < 2)
	}
}

func (c *chaos) newPublisher(name string, seed uint64, client func() fanfarev1.FanfareServiceClient) *chaosPublisher {
	return &chaosPublisher{
		chaos:     c,
		rng:       rand.New(rand.NewPCG(1, seed)),
		Publisher: servicetest.Publisher{Name: name, Recorder: c.recorder, Client: client, Timeout: 20 * time.Second},
	}
}

// stallFollowers has a few subscribers, one after the other, take nothing for a
// while.
func (c *chaos) stallFollowers(ctx context.Context, followers []*servicetest.Follower) {
	for i := 0; c.done.Load() < chaosPublishers && ctx.Err() == nil; i += 7 {
		goOn := followers[i%len(followers)].Stall()
		pauseFor(ctx, 2*time.Second)
		goOn()
		c.stalls.Add(1)
	}
}

// sampleMemory records what the hubs hold, until all has been published.
func (c *chaos) sampleMemory(ctx context.Context) {
	for c.done.Load() < chaosPublishers && ctx.Err() == nil {
		for i := range c.current {
			r := c.current[i].Load()
			stats := r.Hub.Stats()
			c.recorder.SampleMemory(r.Instance, stats.TailBytes+stats.PageBytes, chaosMemory)
		}
		pauseFor(ctx, 100*time.Millisecond)
	}
}

// finish publishes the last frame of every stream and waits until every follower
// has it.
func (c *chaos) finish(ctx context.Context, followers []*servicetest.Follower) {
	last := map[int]backlog.Position{}
	for i := range chaosStreams {
		p := c.newPublisher("finish", 0, func() fanfarev1.FanfareServiceClient { return c.client(0) })
		f := newFrame(chaosStream(i), fmt.Sprint("last of ", i))
		f.IdempotencyKey = "last"
		answer, err := p.PublishUntilAnswered(ctx, f)
		if err != nil {
			c.t.Fatal(err)
		}
		last[i] = position(answer.GetPosition())
	}
	for i, f := range followers {
		if err := f.AwaitLast(ctx, last[i%chaosStreams]); err != nil {
			c.t.Error(err)
		}
	}
}
