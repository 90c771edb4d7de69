package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

const (
	chaosStreams    = 20
	chaosFollowers  = 200
	chaosPublishers = 8
	killInterval    = 200 * time.Millisecond
)

// chaosSize is how many frames are published and how long that may take:
// FANFARE_LONG=1 is the long form.
func chaosSize() (frames int, limit time.Duration) {
	if os.Getenv("FANFARE_LONG") == "1" {
		return 100_000, 30 * time.Minute
	}
	return 4000, 4 * time.Minute
}

// Acceptance 3: two replicas, eight publishers, half of them by SQL in their own
// transactions, and 200 subscribers that resume, while the listeners' backends
// are terminated five times a second and PostgreSQL is restarted twice.
func TestChaos(t *testing.T) {
	frames, limit := chaosSize()
	server := pgtest.Start(t)
	c := &chaos{
		world:    worldOn(t, server.NewDatabase(t)),
		server:   server,
		recorder: servicetest.NewRecorder(),
		frames:   frames,
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()

	followCtx, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	var following errgroup.Group
	followers := c.followers()
	for _, f := range followers {
		following.Go(func() error { return f.Run(followCtx) })
	}
	faultCtx, stopFaults := context.WithCancel(ctx)
	defer stopFaults()
	var faults, publishers errgroup.Group
	faults.Go(func() error { c.killListenersUntil(faultCtx); return nil })
	faults.Go(func() error { c.restartTwice(faultCtx); return nil })
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
	t.Logf("%d frames sent, %d listeners killed", c.sent.Load(), c.killed.Load())
	if c.killed.Load() < 10 || c.restarts.Load() != 2 {
		t.Errorf("only %d listeners were killed and the server was restarted %d times", c.killed.Load(), c.restarts.Load())
	}
}

// chaos is one run.
type chaos struct {
	*world
	server   *pgtest.Server
	recorder *servicetest.Recorder
	frames   int

	sent, killed, restarts, done atomic.Int64
}

func chaosStream(i int) backlog.StreamName { return stream("chaos", fmt.Sprint(i)) }

// followers makes subscribers of all kinds: of both replicas, from the oldest
// and live, staying and coming back.
func (c *chaos) followers() []*servicetest.Follower {
	replicas := []*servicetest.Replica{c.a, c.b}
	followers := make([]*servicetest.Follower, chaosFollowers)
	for i := range followers {
		s := chaosStream(i % chaosStreams)
		cfg := servicetest.FollowerConfig{Pick: func() fanfarev1.FanfareServiceClient {
			return replicas[rand.N(len(replicas))].Client
		}}
		if i%3 == 1 {
			cfg.ReconnectEvery = time.Second
		}
		if i%5 == 4 {
			cfg.Start = live(s)
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
	conn, err := pgx.Connect(ctx, c.url)
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

// restartTwice restarts the server after a third and two thirds of the frames,
// in an orderly way and by a crash.
func (c *chaos) restartTwice(ctx context.Context) {
	for i, mode := range []string{"fast", "immediate"} {
		for c.sent.Load() < int64(c.frames*(i+1)/3) {
			if ctx.Err() != nil || c.done.Load() == chaosPublishers {
				return
			}
			time.Sleep(5 * time.Millisecond) // looks again
		}
		c.server.Restart(mode)
		c.restarts.Add(1)
	}
}

// publisher sends its share of the frames.
func (c *chaos) publisher(ctx context.Context, i int) error {
	defer c.done.Add(1)
	p := &chaosPublisher{
		chaos: c,
		name:  fmt.Sprint("publisher ", i),
		rng:   rand.New(rand.NewPCG(1, uint64(i))),
		left:  c.frames / chaosPublishers,
		// Replicas take turns.
		client: []*servicetest.Replica{c.a, c.b}[i%2].Client,
	}
	switch {
	case i >= 4:
		return p.bySQL(ctx)
	case i == 3:
		return p.byStream(ctx)
	default:
		return p.byCall(ctx, i < 2)
	}
}

// finish publishes the last frame of every stream and waits until every follower
// has it.
func (c *chaos) finish(ctx context.Context, followers []*servicetest.Follower) {
	last := map[int]backlog.Position{}
	for i := range chaosStreams {
		p := &chaosPublisher{chaos: c, name: "finish", client: c.a.Client, rng: rand.New(rand.NewPCG(2, 2))}
		f := newFrame(chaosStream(i), fmt.Sprint("last of ", i))
		f.IdempotencyKey = "last"
		answer, err := p.untilAnswered(ctx, f)
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

// chaosPublisher is one publisher.
type chaosPublisher struct {
	*chaos
	name   string
	client fanfarev1.FanfareServiceClient
	rng    *rand.Rand
	left   int
	number int
}

// next makes the next frame: of a random stream and size, mostly inline, some
// announced by pointers.
func (p *chaosPublisher) next() *fanfarev1.NewFrame {
	p.number++
	p.left--
	p.sent.Add(1)
	pad := p.rng.IntN(300)
	if p.rng.IntN(10) == 0 {
		pad = p.rng.IntN(20_000)
	}
	payload := fmt.Sprintf("%s/%d ", p.name, p.number) + strings.Repeat("x", pad)
	return newFrame(chaosStream(p.rng.IntN(chaosStreams)), payload)
}
