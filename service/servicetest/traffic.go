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
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
// others pipeline, and give up what is not answered. On each stream one follower
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
		careful := &trafficPublisher{Traffic: tr, name: fmt.Sprint("careful ", i)}
		tr.publishing.Go(func() error { return careful.publishEach(publishing) })
		pipeline := &trafficPublisher{Traffic: tr, name: fmt.Sprint("pipeline ", i)}
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
	p := &trafficPublisher{Traffic: tr, name: "last"}
	answer, err := p.untilAnswered(ctx, &fanfarev1.NewFrame{
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
	*Traffic
	name string
	sent int
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
		Payload: fmt.Appendf(nil, "%s/%d %s", p.name, p.sent, strings.Repeat("x", pad)),
	}
}

func (p *trafficPublisher) confirm(a *Attempt, answer *fanfarev1.PublishResponse) {
	a.Confirmed(positionOf(answer.GetPosition()), answer.GetDuplicate())
	p.acknowledged.Add(1)
	select {
	case p.progress <- struct{}{}:
	default:
	}
}

// publishEach publishes frame by frame with a key, each until its outcome is
// known, until ctx ends, which is nil.
func (p *trafficPublisher) publishEach(ctx context.Context) error {
	for ctx.Err() == nil {
		f := p.next()
		f.IdempotencyKey = fmt.Sprint(p.name, "/", p.sent)
		if _, err := p.untilAnswered(ctx, f); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// untilAnswered publishes a frame with a key until it is confirmed.
func (p *trafficPublisher) untilAnswered(ctx context.Context, f *fanfarev1.NewFrame) (*fanfarev1.PublishResponse, error) {
	for {
		attempt := p.recorder.Publishing(p.name, f)
		answer, err := p.publishOnce(ctx, f)
		switch {
		case err == nil:
			p.confirm(attempt, answer)
			return answer, nil
		case nothingStored(err):
			attempt.Refused()
		}
		if ctx.Err() != nil || !passes(err) {
			return nil, err
		}
		pause(ctx, rand.N(10*time.Millisecond))
	}
}

func (p *trafficPublisher) publishOnce(ctx context.Context, f *fanfarev1.NewFrame) (*fanfarev1.PublishResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, trafficTimeout)
	defer cancel()
	return p.client().Publish(ctx, &fanfarev1.PublishRequest{Frame: f})
}

// publishBursts publishes without keys through PublishStream, and goes on with
// further frames when a call ends, until ctx ends, which is nil.
func (p *trafficPublisher) publishBursts(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := p.pipeline(ctx); !passes(err) && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		pause(ctx, rand.N(10*time.Millisecond))
	}
	return nil
}

// pipeline is one PublishStream; it returns how the call ended.
func (p *trafficPublisher) pipeline(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := p.client().PublishStream(ctx)
	for err == nil {
		err = p.burst(call)
	}
	return err
}

// burst sends some frames and takes their answers. What is not answered stays
// unknown.
func (p *trafficPublisher) burst(call fanfarev1.FanfareService_PublishStreamClient) error {
	attempts := make([]*Attempt, trafficBurst)
	for i := range attempts {
		f := p.next()
		attempts[i] = p.recorder.Publishing(p.name, f)
		// What it returns, Recv tells better.
		_ = call.Send(&fanfarev1.PublishStreamRequest{Number: uint64(i), Frame: f})
	}
	for range attempts {
		answer, err := call.Recv()
		if err != nil {
			return err
		}
		attempt := attempts[answer.GetNumber()]
		if published := answer.GetPublished(); published != nil {
			p.confirm(attempt, published)
			continue
		}
		refusal := answer.GetError()
		if refusal.GetReason() != fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN {
			attempt.Refused()
		}
		if err := status.Error(codes.Code(refusal.GetCode()), refusal.GetMessage()); !passes(err) {
			return err
		}
	}
	return nil
}

// passes reports whether an error is one of those that a server which dies or
// starts causes, and that a client lives with.
func passes(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.Canceled:
		return true
	case codes.Unknown:
		return reasonOf(err) == "OUTCOME_UNKNOWN"
	default:
		return false
	}
}

// nothingStored reports whether the server said so; a connection that broke says
// nothing.
func nothingStored(err error) bool {
	reason := reasonOf(err)
	return reason != "" && reason != "OUTCOME_UNKNOWN" && reason != "INTERNAL"
}

// reasonOf is the reason of an error that has one.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
