package service

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/hub"
)

// maxTestPayload is that of the largest frame which tests of deliveries publish.
const maxTestPayload = 1 << 20

var testPayloads = bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz."), maxTestPayload/37+2)

// payloadOf is of so many bytes, and differs from that of the next sequence.
func payloadOf(sequence uint64, size int) []byte {
	from := int(sequence % 37)
	return testPayloads[from : from+size]
}

// sizedStore is a fakeStore whose frames have payloads.
type sizedStore struct {
	fakeStore
	// size is that of all payloads but those in sizes.
	size  int
	sizes map[uint64]int
	// held, if not nil, is what loads wait for.
	held chan struct{}
}

func (s *sizedStore) payload(sequence uint64) []byte {
	if size, ok := s.sizes[sequence]; ok {
		return payloadOf(sequence, size)
	}
	return payloadOf(sequence, s.size)
}

func (s *sizedStore) fill(frames []backlog.Frame) {
	for i := range frames {
		frames[i].Payload = s.payload(frames[i].Position.Sequence)
	}
}

func (s *sizedStore) Load(ctx context.Context, origin uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	if s.held != nil {
		select {
		case <-s.held:
		case <-ctx.Done():
			return backlog.LoadResult{}, ctx.Err()
		}
	}
	result, err := s.fakeStore.Load(ctx, origin, requests)
	for _, loaded := range result.Streams {
		s.fill(loaded.Frames)
	}
	return result, err
}

func (s *sizedStore) ReadPage(ctx context.Context, origin uint64, r backlog.PageRequest) (backlog.Page, error) {
	page, err := s.fakeStore.ReadPage(ctx, origin, r)
	s.fill(page.Frames)
	return page, err
}

// deliveryWorld is a server that delivers, over fakes of everything but the hub.
type deliveryWorld struct {
	t      *testing.T
	server *Server
	hub    *hub.Hub
	bus    *fakeBus
	store  *sizedStore
	// caller, if not nil, is who makes the calls that begin from now on.
	caller *auth.Identity
	// announcing is held while the hub is told something.
	announcing sync.Mutex
	tasks      sync.WaitGroup
}

// newDeliveryWorld returns one whose bus listens, until t ends.
func newDeliveryWorld(t *testing.T, configure func(*Config)) *deliveryWorld {
	t.Helper()
	return newDeliveryWorldOn(t, hub.Config{}, configure)
}

// newDeliveryWorldOn has a hub that is otherwise configured, but for its times and
// pages.
func newDeliveryWorldOn(t *testing.T, hubConfig hub.Config, configure func(*Config)) *deliveryWorld {
	t.Helper()
	cfg := Config{Logger: slog.New(slog.DiscardHandler)}
	if configure != nil {
		configure(&cfg)
	}
	w := &deliveryWorld{t: t, bus: &fakeBus{}, store: &sizedStore{size: 10, sizes: map[uint64]int{}}}
	hubConfig.ListenTimeout, hubConfig.ReadTimeout, hubConfig.PageFrames = time.Hour, time.Hour, 8
	w.hub = hub.New(w.bus, w.store, EncodeFrame, hubConfig)
	w.server = New(w.store, w.hub, w.bus, cfg)
	w.listen(1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w.tasks.Go(func() { _ = w.hub.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		w.tasks.Wait()
		w.server.loops.Wait()
	})
	return w
}

func (w *deliveryWorld) listen(number uint64) {
	w.bus.set(number)
	w.hub.Listening(backlog.Listening{Number: number})
}

// lose ends the listening.
func (w *deliveryWorld) lose() {
	w.bus.set(0)
	w.hub.Lost(nil)
}

func (w *deliveryWorld) head(s backlog.StreamName) uint64 {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return w.store.heads[s]
}

// publish publishes so many frames and announces them together.
func (w *deliveryWorld) publish(s backlog.StreamName, n int) {
	w.announcing.Lock()
	defer w.announcing.Unlock()
	announcements := make([]backlog.Announcement, n)
	for i := range announcements {
		p := w.store.number(backlog.Publication{Stream: s}).Position
		announcements[i] = backlog.Announcement{
			Kind:     backlog.AnnounceFrame,
			Stream:   s,
			OwnEpoch: fakeEpoch,
			Frame:    backlog.Frame{Position: p, Created: time.Now(), Payload: w.store.payload(p.Sequence)},
		}
	}
	w.hub.Announce(announcements)
}

// publishEphemeral announces so many ephemeral frames, which follow what there is.
func (w *deliveryWorld) publishEphemeral(s backlog.StreamName, n int) {
	w.announcing.Lock()
	defer w.announcing.Unlock()
	at := backlog.Position{Epoch: fakeEpoch, Sequence: w.head(s)}
	announcements := make([]backlog.Announcement, n)
	for i := range announcements {
		announcements[i] = backlog.Announcement{
			Kind: backlog.AnnounceEphemeral, Stream: s, OwnEpoch: fakeEpoch,
			Frame: backlog.Frame{Position: at, Created: time.Now(), Ephemeral: true},
		}
	}
	w.hub.Announce(announcements)
}

// publishEach publishes so many frames one by one, in a bubble: each is sent, if it
// can be, before the next comes.
func (w *deliveryWorld) publishEach(s backlog.StreamName, n int) {
	for range n {
		synctest.Wait()
		w.publish(s, 1)
	}
	synctest.Wait()
}

// callContext is the context of a call.
func (w *deliveryWorld) callContext(c *connection) (context.Context, context.CancelFunc) {
	ctx := peer.NewContext(context.WithoutCancel(w.t.Context()), &peer.Peer{AuthInfo: connectionInfo{connection: c}})
	return context.WithCancel(auth.NewContext(ctx, w.caller))
}

// subscribe begins a call that wants everything.
func (w *deliveryWorld) subscribe(s backlog.StreamName, c *connection) *fakeCall {
	ctx, cancel := w.callContext(c)
	call := &fakeCall{
		world:  w,
		name:   s,
		stream: &quotaStream{t: w.t, ctx: ctx, quota: writeQuota},
		cancel: cancel,
		ended:  make(chan error, 1),
	}
	request := &fanfarev1.SubscribeRequest{Channel: s.Channel, Scope: s.Scope}
	w.tasks.Go(func() {
		err := w.server.Subscribe(request, &grpc.GenericServerStream[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse]{ServerStream: call.stream})
		call.stream.returned = true
		call.ended <- err
	})
	w.t.Cleanup(func() { // before that of the world
		cancel()
		call.stream.takeEverything()
	})
	return call
}

// writeQuota is how many bytes grpc takes for a call before it blocks.
const writeQuota = 64 << 10

// quotaStream takes messages as grpc does: once those that have not been written
// have writeQuota bytes it has room for none, not even an empty one.
type quotaStream struct {
	grpc.ServerStream // panics where a delivery calls what it should not
	t                 testing.TB
	ctx               context.Context
	// onSend, if not nil, is called by each send. See eachSend.
	onSend atomic.Pointer[func()]
	// returned is true when the handler has returned. No lock: no send may be under
	// way then, and the race detector sees one that is.
	returned bool
	count    atomic.Int64

	mu     sync.Mutex // guards what follows
	quota  int
	flight []mem.BufferSlice
	// taking has every message written at once, by another goroutine.
	taking bool
}

func (s *quotaStream) Context() context.Context { return s.ctx }

// SendMsg fails where grpc would block: a turn that is blocked would be in the way of
// what the test does next.
func (s *quotaStream) SendMsg(message any) error {
	if do := s.onSend.Load(); do != nil {
		(*do)()
	}
	s.count.Add(1)
	data, err := newCodec().Marshal(message)
	if err != nil {
		s.t.Error(err)
		return err
	}
	defer data.Free()
	if s.returned {
		s.t.Error("a send after the handler has returned")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quota <= 0 {
		s.t.Errorf("a send of %d bytes is blocked by %d messages", data.Len(), len(s.flight))
		return status.Error(codes.Internal, "blocked")
	}
	const header = 5
	s.quota -= data.Len() + header
	data.Ref()
	s.flight = append(s.flight, data)
	if s.taking {
		go s.write(1)
	}
	return nil
}

// eachSend has each send from now on call do first, by whichever goroutine sends.
func (s *quotaStream) eachSend(do func()) { s.onSend.Store(&do) }

// write writes up to n messages, and returns them.
func (s *quotaStream) write(n int) [][]byte {
	s.mu.Lock()
	n = min(n, len(s.flight))
	written := s.flight[:n:n]
	s.flight = slices.Clone(s.flight[n:])
	s.mu.Unlock()
	messages := make([][]byte, n)
	for i, data := range written {
		messages[i] = data.Materialize()
		s.mu.Lock()
		s.quota += len(messages[i]) + 5
		s.mu.Unlock()
		data.Free()
	}
	return messages
}

// takeEverything has everything taken from now on.
func (s *quotaStream) takeEverything() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taking = true
	go s.write(len(s.flight))
}

// forget drops what is in flight.
func (s *quotaStream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flight = nil
}

// fakeCall is a Subscribe whose client takes what the test has it take.
type fakeCall struct {
	world  *deliveryWorld
	name   backlog.StreamName
	stream *quotaStream
	cancel context.CancelFunc
	// ended gets how the call ends.
	ended chan error

	// responses are what the client took, with so many frames that are as they should
	// be up to now.
	responses []*fanfarev1.SubscribeResponse
	count     int
}

// end returns how the call ended, in a bubble, when it has.
func (c *fakeCall) end() error {
	c.world.t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(2 * time.Hour):
		c.world.t.Fatal("it does not end")
		return nil
	}
}

// goesOn checks that the call has not ended.
func (c *fakeCall) goesOn() {
	c.world.t.Helper()
	select {
	case err := <-c.ended:
		c.world.t.Errorf("it ended with %+v", failureOf(err))
	default:
	}
}

// take has the client take up to n messages.
func (c *fakeCall) take(n int) {
	c.world.t.Helper()
	for _, message := range c.stream.write(n) {
		response := &fanfarev1.SubscribeResponse{}
		if err := proto.Unmarshal(message, response); err != nil {
			c.world.t.Fatal(err)
		}
		for _, f := range response.GetFrames() {
			c.count++
			sequence := f.GetPosition().GetSequence()
			if sequence != uint64(c.count) || !bytes.Equal(f.GetPayload(), c.world.store.payload(sequence)) {
				c.world.t.Fatalf("frame %d has the position %v and %d bytes", c.count, f.GetPosition(), len(f.GetPayload()))
			}
		}
		c.responses = append(c.responses, response)
	}
}

// takeAll has the client, in a bubble, take everything there is.
func (c *fakeCall) takeAll() {
	c.world.t.Helper()
	for synctest.Wait(); c.inFlight() > 0; synctest.Wait() {
		c.take(c.inFlight())
	}
}

// inFlight is how many messages the client has not taken yet.
func (c *fakeCall) inFlight() int {
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	return len(c.stream.flight)
}

// isWhole checks that the client got the first n frames, in order, once, and no more,
// after Subscribed and with one CaughtUp.
func (c *fakeCall) isWhole(n int) {
	c.world.t.Helper()
	subscribed, caughtUp := 0, 0
	for _, r := range c.responses {
		if r.GetSubscribed() != nil {
			subscribed++
		}
		if r.GetCaughtUp() != nil {
			caughtUp++
		}
	}
	if c.count != n || subscribed != 1 || caughtUp != 1 || c.responses[0].GetSubscribed() == nil {
		c.world.t.Errorf("%d frames of %d, with %d Subscribed and %d CaughtUp", c.count, n, subscribed, caughtUp)
	}
}

// beats returns the positions of all Progress.
func (c *fakeCall) beats() (positions []*fanfarev1.Position) {
	for _, r := range c.responses {
		if p := r.GetProgress(); p != nil {
			positions = append(positions, p.GetPosition())
		}
	}
	return positions
}

// saysGoodBye checks that the last message is a Closing at a sequence.
func (c *fakeCall) saysGoodBye(sequence uint64, retryIn time.Duration) {
	c.world.t.Helper()
	if len(c.responses) == 0 {
		c.world.t.Fatal("it was sent nothing")
	}
	last := c.responses[len(c.responses)-1].GetClosing()
	if last == nil || last.GetResumeAfter().GetSequence() != sequence || last.GetRetryIn().AsDuration() != retryIn {
		c.world.t.Errorf("the last message is %v, want Closing at %d", c.responses[len(c.responses)-1], sequence)
	}
}
