package servicetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Bounds of a Traffic.
const (
	trafficStreams    = 4
	trafficPublishers = 4  // of each kind
	trafficBurst      = 64 // frames that a pipeline has unanswered
	// trafficTimeout bounds one call, and how long anything may fail to come.
	trafficTimeout = time.Minute
)

// Traffic publishes to a few streams, as fast as it is answered, and follows
// them, while a test kills the server, replaces it or breaks connections at
// moments of its choice. It knows the server as a client does. Half of the
// publishers send frames with idempotency keys until they know the outcome; the
// others pipeline, ephemeral frames among the rest, and give up what is not answered. On each stream one follower
// stays and one comes back all the time.
type Traffic struct {
	t        testing.TB
	recorder *Recorder
	client   func() fanfarev1.FanfareServiceClient

	acknowledged atomic.Int64
	// progress has an entry if acknowledged has grown since it was taken.
	progress chan struct{}

	// followers[i] follow stream i.
	followers             [trafficStreams][]*Follower
	publishing, following errgroup.Group
	// stopPublishing and stopFollowing end what the groups run.
	stopPublishing, stopFollowing context.CancelFunc
}

// StartTraffic starts to publish and follow. client returns who to call next; it
// is called concurrently. The backlog must hold everything. When t ends the
// traffic does.
func StartTraffic(t testing.TB, client func() fanfarev1.FanfareServiceClient) *Traffic {
	t.Helper()
	tr := &Traffic{t: t, recorder: NewRecorder(), client: client, progress: make(chan struct{}, 1)}
	var publishing, following context.Context
	publishing, tr.stopPublishing = context.WithCancel(context.Background())
	following, tr.stopFollowing = context.WithCancel(context.Background())
	t.Cleanup(func() {
		tr.stopPublishing()
		tr.stopFollowing()
		_ = tr.publishing.Wait() // Finish tells of errors
		_ = tr.following.Wait()
	})
	for i := range trafficStreams {
		tr.follow(following, i, "steady", 0)
		tr.follow(following, i, "restless", 200*time.Millisecond)
	}
	for i := range trafficPublishers {
		careful := tr.publisher(fmt.Sprint("careful ", i))
		tr.publishing.Go(func() error { return careful.publishEach(publishing) })
		pipeline := tr.publisher(fmt.Sprint("pipeline ", i))
		tr.publishing.Go(func() error { return pipeline.publishBursts(publishing) })
	}
	return tr
}

func trafficStream(i int) backlog.StreamName {
	return backlog.StreamName{Channel: "traffic", Scope: fmt.Sprint(i)}
}

// follow starts a follower of stream i from the oldest frame.
func (tr *Traffic) follow(ctx context.Context, i int, name string, reconnectEvery time.Duration) {
	f := tr.recorder.Follower(fmt.Sprint(name, " ", i), trafficStream(i), FollowerConfig{Pick: tr.client, ReconnectEvery: reconnectEvery})
	tr.followers[i] = append(tr.followers[i], f)
	tr.following.Go(func() error { return f.Run(ctx) })
}

// Acknowledged is how many frames have been.
func (tr *Traffic) Acknowledged() int64 { return tr.acknowledged.Load() }

// AwaitAcknowledged waits until n more frames have been acknowledged. One
// goroutine may wait at a time.
func (tr *Traffic) AwaitAcknowledged(n int64) {
	tr.t.Helper()
	want := tr.Acknowledged() + n
	timeout := time.NewTimer(trafficTimeout)
	defer timeout.Stop()
	for tr.Acknowledged() < want {
		select {
		case <-tr.progress:
		case <-timeout.C:
			tr.t.Fatalf("%d of %d further frames were not acknowledged within %s", want-tr.Acknowledged(), n, trafficTimeout)
		}
	}
}

// Finish ends the traffic and checks every guarantee, and that nobody was told
// of a gap: what was acknowledged is there, once, in order and without holes, for
// those who resumed and for one more follower of each stream, who comes
// afterwards and reads all of it. The server must be serving, for good.
func (tr *Traffic) Finish() {
	tr.t.Helper()
	tr.stopPublishing()
	if err := tr.publishing.Wait(); err != nil {
		tr.t.Fatalf("publish: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), trafficTimeout)
	defer cancel()
	for i := range trafficStreams {
		tr.follow(ctx, i, "late", 0)
		tr.awaitLast(ctx, i)
	}
	tr.stopFollowing()
	cancel()
	if err := tr.following.Wait(); err != nil {
		tr.t.Errorf("follow: %v", err)
	}
	if tr.Acknowledged() == 0 {
		tr.t.Error("no frame was acknowledged: nothing was tested")
	}
	Check(tr.t, tr.recorder.Run(), Unbroken)
}

// awaitLast publishes the last frame of stream i and waits until its followers
// have it.
func (tr *Traffic) awaitLast(ctx context.Context, i int) {
	tr.t.Helper()
	s := trafficStream(i)
	answer, err := tr.publisher("last").PublishUntilAnswered(ctx, &fanfarev1.NewFrame{
		Channel: s.Channel, Scope: s.Scope, Payload: []byte("the last of " + s.Scope), IdempotencyKey: "last",
	})
	if err != nil {
		tr.t.Fatalf("publish the last frame of %s: %v", s, err)
	}
	for _, f := range tr.followers[i] {
		if err := f.AwaitLast(ctx, positionOf(answer.GetPosition())); err != nil {
			tr.t.Fatal(err)
		}
	}
}

// trafficPublisher is one publisher.
type trafficPublisher struct {
	Publisher
	traffic *Traffic
	sent    int
}

func (tr *Traffic) publisher(name string) *trafficPublisher {
	return &trafficPublisher{traffic: tr, Publisher: Publisher{
		Name: name, Recorder: tr.recorder, Client: tr.client, Timeout: trafficTimeout, Confirmed: tr.acknowledge,
	}}
}

func (tr *Traffic) acknowledge() {
	tr.acknowledged.Add(1)
	select {
	case tr.progress <- struct{}{}:
	default:
	}
}

// next makes the next frame: of varying size, some too large to be announced
// whole.
func (p *trafficPublisher) next() *fanfarev1.NewFrame {
	p.sent++
	pad := rand.N(300)
	if rand.N(50) == 0 {
		pad = rand.N(20_000)
	}
	s := trafficStream(rand.N(trafficStreams))
	return &fanfarev1.NewFrame{
		Channel: s.Channel,
		Scope:   s.Scope,
		Payload: fmt.Appendf(nil, "%s/%d %s", p.Name, p.sent, strings.Repeat("x", pad)),
	}
}

// publishEach publishes frame by frame with a key, each until its outcome is
// known, until ctx ends, which is nil.
func (p *trafficPublisher) publishEach(ctx context.Context) error {
	for ctx.Err() == nil {
		f := p.next()
		f.IdempotencyKey = fmt.Sprint(p.Name, "/", p.sent)
		if _, err := p.PublishUntilAnswered(ctx, f); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// publishBursts publishes without keys through PublishStream, a few of the frames
// ephemeral, and goes on with further frames when a call ends, until ctx ends,
// which is nil.
func (p *trafficPublisher) publishBursts(ctx context.Context) error {
	for ctx.Err() == nil {
		frames := make([]*fanfarev1.NewFrame, trafficBurst)
		for i := range frames {
			frames[i] = p.next()
			frames[i].Ephemeral = rand.N(8) == 0
		}
		err := p.PublishBurst(ctx, frames)
		if !Passes(err) && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if err != nil {
			pause(ctx, rand.N(10*time.Millisecond))
		}
	}
	return nil
}
