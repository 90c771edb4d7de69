package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

const deadline = 20 * time.Second

// follower is a handler that a test can wait for.
type follower struct {
	mu      sync.Mutex
	order   Order
	notices []NoticeKind
	at      time.Time
	bytes   int
	ended   bool
	err     error
	// changed has room for one.
	changed chan struct{}
}

func newFollower() *follower { return &follower{changed: make(chan struct{}, 1)} }

func (f *follower) Subscribed(after uint64, at time.Time) {
	f.change(func() { f.order.Begin(after); f.at = at })
}

func (f *follower) Frames(n int, first, last uint64, bytes int, at time.Time) {
	f.change(func() { f.order.Frames(n, first, last); f.bytes += bytes; f.at = at })
}

func (f *follower) Notice(kind NoticeKind, at time.Time) {
	f.change(func() { f.order.Notice(kind); f.notices = append(f.notices, kind); f.at = at })
}

func (f *follower) End(err error) { f.change(func() { f.ended, f.err = true, err }) }

func (f *follower) change(by func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		panic("called after its end")
	}
	by()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// await waits until the follower is as described.
func (f *follower) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	timeout := time.After(deadline)
	for {
		f.mu.Lock()
		done, state := is(), fmt.Sprintf("at frame %d, notices %v, ended %v with %v", f.order.Last(), f.notices, f.ended, f.err)
		f.mu.Unlock()
		if done {
			return
		}
		select {
		case <-f.changed:
		case <-timeout:
			t.Fatalf("waited %v for %s; it is %s", deadline, what, state)
		}
	}
}

func (f *follower) awaitFrame(t *testing.T, sequence uint64) {
	t.Helper()
	f.await(t, fmt.Sprintf("frame %d", sequence), func() bool { return f.order.Last() >= sequence })
}

func (f *follower) awaitEnd(t *testing.T) error {
	t.Helper()
	f.await(t, "the end", func() bool { return f.ended })
	return f.err
}

func (f *follower) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.order.Err(); err != nil {
		t.Error(err)
	}
}

// connect dials a server, and closes the connection when the test ends.
func connect(t *testing.T, address string, o Options) *Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	c, err := Dial(ctx, address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func startReplica(t *testing.T, options ...func(*servicetest.Config)) *servicetest.Replica {
	return servicetest.Start(t, "sqlite::memory:", options...)
}

func live(channel string) *fanfarev1.SubscribeRequest {
	return &fanfarev1.SubscribeRequest{Channel: channel, Start: &fanfarev1.SubscribeRequest_Live{Live: true}}
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// publish publishes a frame and returns its sequence.
func publish(t *testing.T, c *Conn, frame *fanfarev1.NewFrame) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	b, err := c.Call(ctx, fanfarev1.FanfareService_Publish_FullMethodName, encode(t, &fanfarev1.PublishRequest{Frame: frame}))
	if err != nil {
		t.Fatal(err)
	}
	var answer fanfarev1.PublishResponse
	if err := proto.Unmarshal(b, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.GetPosition().GetSequence()
}

func TestSubscribersGetFramesOfBothKinds(t *testing.T) {
	c := connect(t, startReplica(t).Addr, Options{})
	var followers []*follower
	for range 50 {
		f := newFollower()
		followers = append(followers, f)
		if _, err := c.Subscribe(live("orders"), f); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range followers {
		f.await(t, "the end of the replay", func() bool { return len(f.notices) > 0 })
	}
	payload := make([]byte, 200)
	for i := range 20 {
		publish(t, c, &fanfarev1.NewFrame{Channel: "orders", Payload: payload, Ephemeral: i%4 == 1})
	}
	for _, f := range followers {
		f.awaitFrame(t, 15)
		f.check(t)
		if f.notices[0] != CaughtUp || f.order.Durable() != 15 || f.order.Ephemeral() != 5 {
			t.Errorf("got notices %v, %d durable and %d ephemeral frames", f.notices, f.order.Durable(), f.order.Ephemeral())
		}
		if f.bytes < 20*len(payload) || f.bytes > 20*(len(payload)+50) {
			t.Errorf("got %d bytes of 20 frames of %d", f.bytes, len(payload))
		}
	}
}

func TestLargeFramesAndRequests(t *testing.T) {
	c := connect(t, startReplica(t).Addr, Options{})
	f := newFollower()
	if _, err := c.Subscribe(live("large"), f); err != nil {
		t.Fatal(err)
	}
	// The server's first window is 64 KiB: these wait for the next ones, side by side.
	const frames = 8
	var publishes sync.WaitGroup
	for range frames {
		publishes.Go(func() { publish(t, c, &fanfarev1.NewFrame{Channel: "large", Payload: make([]byte, 900<<10)}) })
	}
	publishes.Wait()
	f.awaitFrame(t, frames)
	f.check(t)
	if f.bytes < frames*900<<10 {
		t.Errorf("got %d bytes of %d frames of 900 KiB", f.bytes, frames)
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	c := connect(t, startReplica(t).Addr, Options{})
	var calls sync.WaitGroup
	for range 256 {
		calls.Go(func() {
			for range 4 {
				publish(t, c, &fanfarev1.NewFrame{Channel: "many", Payload: []byte("x")})
			}
		})
	}
	calls.Wait()
	f := newFollower()
	if _, err := c.Subscribe(&fanfarev1.SubscribeRequest{Channel: "many", Start: &fanfarev1.SubscribeRequest_Last{Last: 1000}}, f); err != nil {
		t.Fatal(err)
	}
	f.awaitFrame(t, 1024)
	f.check(t)
	if f.order.Durable() != 1000 {
		t.Errorf("got %d frames, want the last 1000", f.order.Durable())
	}
}

// TestHeldStreamTakesItsWindowAndNoMore holds a stream beside one that is not: the
// latter gets everything, the former what its window takes, and the rest when it
// resumes.
func TestHeldStreamTakesItsWindowAndNoMore(t *testing.T) {
	const window, frames = 8 << 10, 200
	c := connect(t, startReplica(t).Addr, Options{StreamWindow: window})
	held, free := newFollower(), newFollower()
	stream, err := c.SubscribeHeld(live("held"), held)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(live("held"), free); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*follower{held, free} {
		f.await(t, "the end of the replay", func() bool { return len(f.notices) > 0 })
	}
	for range frames {
		publish(t, c, &fanfarev1.NewFrame{Channel: "held", Payload: make([]byte, 200)})
	}
	free.awaitFrame(t, frames)
	held.mu.Lock()
	if got := held.bytes; got == 0 || got > window {
		t.Errorf("the held stream took %d bytes, its window is %d", got, window)
	}
	held.mu.Unlock()
	stream.Resume()
	held.awaitFrame(t, frames)
	held.check(t)
	free.check(t)
}

func TestStreamsAreHeldOnlyWithinAWindow(t *testing.T) {
	c := connect(t, startReplica(t).Addr, Options{})
	if _, err := c.SubscribeHeld(live("held"), newFollower()); err == nil {
		t.Error("a stream with the widest window was held")
	}
}

func TestErrorsAreThoseOfTheServer(t *testing.T) {
	c := connect(t, startReplica(t).Addr, Options{})
	_, err := c.Call(t.Context(), fanfarev1.FanfareService_Publish_FullMethodName, encode(t, &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{}}))
	if s := status.Convert(err); s.Code() != codes.InvalidArgument || len(s.Details()) == 0 || s.Message() == "" {
		t.Errorf("a publish without a channel ended %v with the details %v", err, s.Details())
	}
	if _, err := c.Call(t.Context(), "/fanfare.v1.FanfareService/Unheard", nil); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that does not exist ended %v", err)
	}
	f := newFollower()
	if _, err := c.Subscribe(&fanfarev1.SubscribeRequest{}, f); err != nil {
		t.Fatal(err)
	}
	if err := f.awaitEnd(t); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a subscription without a channel ended %v", err)
	}
}

func TestSubscriptionsEndOfThemselves(t *testing.T) {
	replica := startReplica(t, func(c *servicetest.Config) { c.Service.DrainDelay = -1 })
	c := connect(t, replica.Addr, Options{})
	publish(t, c, &fanfarev1.NewFrame{Channel: "closed"})
	closed, drained := newFollower(), newFollower()
	for channel, f := range map[string]*follower{"closed": closed, "drained": drained} {
		if _, err := c.Subscribe(&fanfarev1.SubscribeRequest{Channel: channel}, f); err != nil {
			t.Fatal(err)
		}
		f.await(t, "the end of the replay", func() bool { return len(f.notices) > 0 })
	}
	if _, err := replica.Client.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: "closed"}); err != nil {
		t.Fatal(err)
	}
	if err := closed.awaitEnd(t); err != nil || closed.notices[len(closed.notices)-1] != Closed {
		t.Errorf("a closed stream ended with %v after the notices %v", err, closed.notices)
	}
	drain, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := replica.Drain(drain); err != nil {
		t.Fatal(err)
	}
	if err := drained.awaitEnd(t); status.Code(err) != codes.Unavailable || drained.notices[len(drained.notices)-1] != Closing {
		t.Errorf("a drain ended a subscription with %v after the notices %v", err, drained.notices)
	}
	if _, err := c.Subscribe(live("drained"), newFollower()); status.Code(err) != codes.Unavailable {
		t.Errorf("a subscription after the drain: %v", err)
	}
}

func TestCancelledSubscriptionHearsNoMore(t *testing.T) {
	replica := startReplica(t)
	c := connect(t, replica.Addr, Options{})
	cancelled, other := newFollower(), newFollower()
	stream, err := c.Subscribe(live("orders"), cancelled)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(live("orders"), other); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*follower{cancelled, other} {
		f.await(t, "the end of the replay", func() bool { return len(f.notices) > 0 })
	}
	stream.Cancel()
	publish(t, c, &fanfarev1.NewFrame{Channel: "orders"})
	other.awaitFrame(t, 1)
	if cancelled.order.Last() != 0 || cancelled.ended {
		t.Errorf("after Cancel it got frame %d, ended: %v", cancelled.order.Last(), cancelled.ended)
	}
}

func TestCallGivenUp(t *testing.T) {
	c := connect(t, startReplica(t).Addr, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Call(ctx, fanfarev1.FanfareService_Publish_FullMethodName, make([]byte, 1<<20)); !errors.Is(err, context.Canceled) {
		t.Errorf("a call with a cancelled context ended %v", err)
	}
	// What it did not send holds up nobody.
	publish(t, c, &fanfarev1.NewFrame{Channel: "next", Payload: make([]byte, 500<<10)})
}

func TestServerBoundsStreams(t *testing.T) {
	replica := startReplica(t, func(c *servicetest.Config) { c.Service.MaxConcurrentStreams = 2 })
	c := connect(t, replica.Addr, Options{})
	first, second := newFollower(), newFollower()
	stream, err := c.Subscribe(live("orders"), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(live("orders"), second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(live("orders"), newFollower()); !errors.Is(err, ErrStreamLimit) {
		t.Errorf("a third stream: %v", err)
	}
	stream.Cancel()
	publish(t, c, &fanfarev1.NewFrame{Channel: "orders"})
}

func TestCloseEndsWhatIsOpen(t *testing.T) {
	c := connect(t, startReplica(t).Addr, Options{})
	f := newFollower()
	if _, err := c.Subscribe(live("orders"), f); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if !f.ended || !errors.Is(f.err, ErrClosed) {
		t.Errorf("ended: %v, with %v", f.ended, f.err)
	}
	if _, err := c.Subscribe(live("orders"), newFollower()); !errors.Is(err, ErrClosed) {
		t.Errorf("a subscription on a closed connection: %v", err)
	}
	if _, err := c.Call(t.Context(), fanfarev1.FanfareService_Publish_FullMethodName, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a call on a closed connection: %v", err)
	}
}
