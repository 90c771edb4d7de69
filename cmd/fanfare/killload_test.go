package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

const (
	// killPublishers of each kind publish at a time.
	killPublishers = 4
	// killWindow is how many frames of a PublishStream wait for an answer.
	killWindow = 64
)

// killLoad is heavy publishing to a server that comes and goes.
type killLoad struct {
	recorder *servicetest.Recorder
	client   fanfarev1.FanfareServiceClient

	confirmed atomic.Int64
	// more has an entry if confirmed has grown.
	more chan struct{}

	publishers *errgroup.Group
	// failed is closed when a publisher has met what it should not.
	failed <-chan struct{}
	// stopped is closed when no more frames are to be begun.
	stopped  chan struct{}
	stopOnce sync.Once
	// cancel gives up what has begun.
	cancel context.CancelFunc
}

func startKillLoad(recorder *servicetest.Recorder, client fanfarev1.FanfareServiceClient) *killLoad {
	l := &killLoad{recorder: recorder, client: client, more: make(chan struct{}, 1), stopped: make(chan struct{})}
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	l.publishers, ctx = errgroup.WithContext(ctx)
	l.failed = ctx.Done()
	for n := range killPublishers {
		piped := &killPublisher{killLoad: l, name: fmt.Sprint("piped-", n)}
		l.publishers.Go(func() error { return piped.pipe(ctx) })
		careful := &killPublisher{killLoad: l, name: fmt.Sprint("careful-", n)}
		l.publishers.Go(func() error { return careful.insist(ctx) })
	}
	return l
}

// awaitConfirmed waits until n more frames are acknowledged.
func (l *killLoad) awaitConfirmed(t *testing.T, n int) {
	t.Helper()
	before := l.confirmed.Load()
	deadline := time.After(patience)
	for l.confirmed.Load() < before+int64(n) {
		select {
		case <-l.more:
		case <-l.failed:
			t.Fatal(l.finish())
		case <-deadline:
			t.Fatalf("%d of %d frames were acknowledged within %s", l.confirmed.Load()-before, n, patience)
		}
	}
}

// finish begins no more frames and waits until what was begun is over.
func (l *killLoad) finish() error {
	l.stopOnce.Do(func() { close(l.stopped) })
	return l.publishers.Wait()
}

// abort ends the load whatever is under way.
func (l *killLoad) abort() {
	l.cancel()
	_ = l.finish()
}

func (l *killLoad) goesOn() bool {
	select {
	case <-l.stopped:
		return false
	default:
		return true
	}
}

// confirm records that a frame was acknowledged.
func (l *killLoad) confirm(attempt *servicetest.Attempt, answer *fanfarev1.PublishResponse) {
	p := answer.GetPosition()
	attempt.Confirmed(backlog.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}, answer.GetDuplicate())
	l.confirmed.Add(1)
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// killPublisher is one publisher of a load.
type killPublisher struct {
	*killLoad
	name   string
	number int
}

// next is a new frame for any of the streams, of up to 2 KiB, seldom 64.
func (p *killPublisher) next() *fanfarev1.NewFrame {
	p.number++
	size := rand.N(2 << 10)
	if rand.N(200) == 0 {
		size = 64 << 10
	}
	stream := crowdStream(rand.N(crowdStreams))
	return &fanfarev1.NewFrame{
		Channel: stream.Channel,
		Scope:   stream.Scope,
		Payload: []byte(fmt.Sprintf("%s-%d %s", p.name, p.number, strings.Repeat("x", size))),
	}
}

// insist publishes frame by frame, with keys, each until it is acknowledged.
func (p *killPublisher) insist(ctx context.Context) error {
	for p.goesOn() {
		f := p.next()
		f.IdempotencyKey = fmt.Sprintf("%s-%d", p.name, p.number)
		for {
			attempt := p.recorder.Publishing(p.name, f)
			answer, err := p.client.Publish(ctx, &fanfarev1.PublishRequest{Frame: f}, grpc.WaitForReady(true))
			if err == nil {
				p.confirm(attempt, answer)
				break
			}
			if code := status.Code(err); code != codes.Unavailable && code != codes.Unknown || ctx.Err() != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

// pipe publishes without keys, many frames at a time. What a kill leaves without
// an answer stays unknown.
func (p *killPublisher) pipe(ctx context.Context) error {
	for p.goesOn() {
		err := p.pipeOnce(ctx)
		if code := status.Code(err); code != codes.OK && code != codes.Unavailable || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// pipeOnce publishes through one PublishStream until it breaks or the load ends.
func (p *killPublisher) pipeOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := p.client.PublishStream(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	w := &killWaiting{slots: make(chan struct{}, killWindow), attempts: map[uint64]*servicetest.Attempt{}}
	var sending errgroup.Group
	sending.Go(func() error { return p.send(ctx, call, w) })
	err = p.receive(call, w)
	cancel()
	return errors.Join(err, sending.Wait())
}

// killWaiting are the frames of a call that wait for an answer.
type killWaiting struct {
	slots    chan struct{}
	mu       sync.Mutex // guards attempts
	attempts map[uint64]*servicetest.Attempt
}

func (w *killWaiting) add(number uint64, a *servicetest.Attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts[number] = a
}

func (w *killWaiting) take(number uint64) *servicetest.Attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.attempts[number]
	delete(w.attempts, number)
	<-w.slots
	return a
}

func (p *killPublisher) send(ctx context.Context, call publishStreamCall, w *killWaiting) error {
	for number := uint64(0); p.goesOn(); number++ {
		select {
		case w.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		f := p.next()
		w.add(number, p.recorder.Publishing(p.name, f))
		if call.Send(&fanfarev1.PublishStreamRequest{Number: number, Frame: f}) != nil {
			return nil // Recv has the error
		}
	}
	return call.CloseSend()
}

func (p *killPublisher) receive(call publishStreamCall, w *killWaiting) error {
	for {
		answer, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		attempt := w.take(answer.GetNumber())
		if failed := answer.GetError(); failed != nil {
			return fmt.Errorf("frame %d: %s", answer.GetNumber(), failed.GetMessage())
		}
		p.confirm(attempt, answer.GetPublished())
	}
}

type publishStreamCall = grpc.BidiStreamingClient[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse]
