package service

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// heldStore answers publications when the test says so.
type heldStore struct {
	fakeStore

	mu   sync.Mutex
	held []func(backlog.Outcome, error)
}

func newHeldStore() *heldStore {
	s := &heldStore{}
	s.answer = func(_ context.Context, _ backlog.Publication, done func(backlog.Outcome, error)) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = append(s.held, done)
	}
	return s
}

func (s *heldStore) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// release answers the i-th publication that waits.
func (s *heldStore) release(i int, sequence uint64) {
	s.mu.Lock()
	done := s.held[i]
	s.mu.Unlock()
	done(backlog.Outcome{Position: backlog.Position{Epoch: 1, Sequence: sequence}}, nil)
}

func publishRequest(number uint64, channel string) *fanfarev1.PublishStreamRequest {
	return &fanfarev1.PublishStreamRequest{Number: number, Frame: &fanfarev1.NewFrame{Channel: channel}}
}

func openPublishStream(t *testing.T, store backlog.Store) fanfarev1.FanfareService_PublishStreamClient {
	t.Helper()
	client, _, _ := serve(t, testServer(t, store))
	stream, err := client.PublishStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func mustSend(t *testing.T, stream fanfarev1.FanfareService_PublishStreamClient, request *fanfarev1.PublishStreamRequest) {
	t.Helper()
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
}

func TestPublishStreamKeepsOrderAndAnswersAll(t *testing.T) {
	const n = 5000
	store := &fakeStore{}
	stream := openPublishStream(t, store)
	go func() {
		for i := range uint64(n) {
			if stream.Send(publishRequest(i, []string{"a", "b", "c"}[i%3])) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	answers := map[uint64]uint64{}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		answers[answer.GetNumber()] = answer.GetPublished().GetPosition().GetSequence()
	}
	if len(answers) != n {
		t.Fatalf("%d of %d requests were answered", len(answers), n)
	}
	for number, sequence := range answers {
		if sequence != number/3+1 {
			t.Fatalf("request %d got sequence %d, want %d", number, sequence, number/3+1)
		}
	}
}

// A frame that is refused ends nothing, and answers come as they are ready.
func TestPublishStreamAnswersAsTheyCome(t *testing.T) {
	store := newHeldStore()
	stream := openPublishStream(t, store)
	mustSend(t, stream, publishRequest(1, "a"))
	mustSend(t, stream, publishRequest(2, "b"))
	mustSend(t, stream, &fanfarev1.PublishStreamRequest{Number: 3})
	mustSend(t, stream, publishRequest(4, "a\n"))
	eventually(t, "two publications wait", func() bool { return store.waiting() == 2 })
	store.release(1, 7)
	for _, want := range []struct {
		number uint64
		field  string
	}{{3, "frame"}, {4, "frame.channel"}} {
		answer, err := stream.Recv()
		if err != nil || answer.GetNumber() == 2 {
			// The released one may come before or between.
			answer, err = stream.Recv()
		}
		if err != nil || answer.GetNumber() != want.number || answer.GetError().GetField() != want.field ||
			answer.GetError().GetReason() != fanfarev1.ErrorReason_ERROR_REASON_INVALID_FIELD {
			t.Fatalf("got %v, %v; want an error for number %d", answer, err, want.number)
		}
	}
	store.release(0, 1)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Symptom: a publish queue that was full for minutes left no trace of what
// PublishStreams lost by it, though Publish wrote of it: only frames whose failure
// had a cause that the client is not told were logged. A frame is logged as a call
// is, by its code, with who calls.
func TestRefusedFramesAreLoggedLikeCalls(t *testing.T) {
	for _, refused := range []struct {
		err         error
		level, text string
	}{
		{backlog.ErrPublishQueueFull, "WARN", "reason=PUBLISH_QUEUE_FULL"},
		{backlog.ErrNotificationQueueFull, "WARN", "reason=NOTIFICATION_QUEUE_FULL"},
		{backlog.ErrDiskFull, "WARN", "reason=DISK_FULL"},
		{backlog.ErrUnavailable, "WARN", "reason=STORE_UNAVAILABLE"},
		{backlog.ErrOutcomeUnknown, "WARN", "reason=OUTCOME_UNKNOWN"},
		{errAway, "WARN", driverText},
		{errors.New("a fault"), "ERROR", "a fault"},
		{&backlog.LimitError{Field: "channel"}, "DEBUG", "reason=INVALID_FIELD"},
		{&backlog.KeyConflictError{}, "DEBUG", "reason=KEY_CONFLICT"},
		{backlog.ErrSequenceExhausted, "DEBUG", "reason=SEQUENCE_EXHAUSTED"},
		{context.Canceled, "DEBUG", "grpc.code=Canceled"},
	} {
		s, log := loggedServer(t, nil)
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4567}})
		p := &pipeline{server: s, stream: publishStreamOf(ctx)}
		p.refused(1, 0, refused.err)
		line, count := log.last()
		if count != 1 || !strings.Contains(line, "level="+refused.level) || !strings.Contains(line, refused.text) || !strings.Contains(line, "peer.address=10.1.2.3:4567") {
			t.Errorf("%v: %d lines, the last is %q; want level %s and %s", refused.err, count, line, refused.level, refused.text)
		}
	}
}

// What one stream may have unanswered is bounded, whatever a client sends.
func TestPublishStreamIsBounded(t *testing.T) {
	store := newHeldStore()
	stream := openPublishStream(t, store)
	go func() {
		for i := range uint64(3 * maxPipelinedFrames) {
			if stream.Send(publishRequest(i, "a")) != nil {
				return
			}
		}
	}()
	eventually(t, "the bound is reached", func() bool { return store.waiting() == maxPipelinedFrames })
	store.release(0, 1)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one more is read", func() bool { return store.waiting() == maxPipelinedFrames+1 })
	if n := len(store.submissions()); n != maxPipelinedFrames+1 {
		t.Errorf("%d publications were submitted, the bound is %d", n, maxPipelinedFrames)
	}
}

func TestPublishStreamHandsItsCancellationOn(t *testing.T) {
	store := &fakeStore{}
	cancelled := make(chan struct{})
	store.answer = func(ctx context.Context, _ backlog.Publication, done func(backlog.Outcome, error)) {
		context.AfterFunc(ctx, func() {
			done(backlog.Outcome{}, ctx.Err())
			close(cancelled)
		})
	}
	client, _, _ := serve(t, testServer(t, store))
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := client.PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mustSend(t, stream, publishRequest(1, "a"))
	eventually(t, "it was submitted", func() bool { return len(store.submissions()) == 1 })
	cancel()
	select {
	case <-cancelled:
	case <-time.After(10 * time.Second):
		t.Fatal("the store was not told")
	}
}

// fakePublishCall is a PublishStream in a bubble of synctest, whose client takes every
// answer at once.
type fakePublishCall struct {
	grpc.ServerStream
	t        *testing.T
	ctx      context.Context
	requests chan *fanfarev1.PublishStreamRequest
	answers  chan *fanfarev1.PublishStreamResponse
	ended    chan error
}

func beginPublishStream(t *testing.T, s *Server) *fakePublishCall {
	ctx, cancel := context.WithCancel(t.Context())
	c := &fakePublishCall{
		t: t, ctx: ctx, ended: make(chan error, 1),
		requests: make(chan *fanfarev1.PublishStreamRequest, 2*maxPipelinedFrames),
		answers:  make(chan *fanfarev1.PublishStreamResponse, 2*maxPipelinedFrames),
	}
	go func() {
		defer cancel() // as in a call, whose context ends with it
		c.ended <- s.PublishStream(&grpc.GenericServerStream[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse]{ServerStream: c})
	}()
	t.Cleanup(func() {
		cancel()
		s.loops.Wait()
	})
	return c
}

func (c *fakePublishCall) Context() context.Context { return c.ctx }

func (c *fakePublishCall) RecvMsg(message any) error {
	select {
	case r := <-c.requests:
		proto.Merge(message.(proto.Message), r)
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

func (c *fakePublishCall) SendMsg(message any) error {
	data, err := newCodec().Marshal(message)
	if err != nil {
		c.t.Error(err)
		return err
	}
	defer data.Free()
	answer := &fanfarev1.PublishStreamResponse{}
	if err := proto.Unmarshal(data.Materialize(), answer); err != nil {
		c.t.Error(err)
	}
	c.answers <- answer
	return nil
}

// send sends a request, and returns when it waits for something.
func (c *fakePublishCall) send(number uint64) {
	c.requests <- publishRequest(number, "a")
	synctest.Wait()
}

// goesOn fails the test if the call has ended, or has had an answer.
func (c *fakePublishCall) goesOn() {
	c.t.Helper()
	synctest.Wait()
	select {
	case err := <-c.ended:
		c.t.Fatalf("the call ended with %v", err)
	case answer := <-c.answers:
		c.t.Fatalf("it was answered with %v", answer)
	default:
	}
}

// In-flight publishes are answered after a drain has told the call to go; what is sent
// from then on is not published.
func TestDrainAnswersWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHeldStore()
		s := testServer(t, store)
		call := beginPublishStream(t, s)
		call.send(1)
		close(s.ending)
		elapse(s.cfg.DrainGrace) // it has been told to go
		call.send(2)
		call.goesOn()
		store.release(0, 5)
		if answer := <-call.answers; answer.GetNumber() != 1 || answer.GetPublished().GetPosition().GetSequence() != 5 {
			t.Errorf("it was answered with %v", answer)
		}
		if f := failureOf(<-call.ended); f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
			t.Errorf("the call ended with %+v", f)
		}
		if n := len(store.submissions()); n != 1 {
			t.Errorf("%d publications were submitted", n)
		}
	})
}

// A request that waits for room when the call is told to go is not published,
// and the end of the call says why.
func TestDrainOfAFullPublishStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHeldStore()
		s := testServer(t, store)
		call := beginPublishStream(t, s)
		for i := range uint64(2 * maxPipelinedFrames) {
			call.requests <- publishRequest(i, "a")
		}
		synctest.Wait()
		close(s.ending)
		elapse(s.cfg.DrainGrace) // it has been told to go
		call.goesOn()
		if n := store.waiting(); n != maxPipelinedFrames {
			t.Fatalf("%d publications wait, the bound is %d", n, maxPipelinedFrames)
		}
		for i := range maxPipelinedFrames {
			store.release(i, uint64(i+1))
		}
		f := failureOf(<-call.ended)
		if n := len(call.answers); n != maxPipelinedFrames || f.reason != fanfarev1.ErrorReason_ERROR_REASON_DRAINING {
			t.Errorf("%d answers came, then %+v", n, f)
		}
		if n := len(store.submissions()); n != maxPipelinedFrames {
			t.Errorf("%d publications were submitted", n)
		}
	})
}

// A call that has lasted as long as one may ends when everything that it took has
// been answered.
func TestPublishStreamOfItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newHeldStore()
		s := testServer(t, store)
		s.cfg.MaxStreamAge = time.Hour
		call := beginPublishStream(t, s)
		call.send(1)
		elapse(s.cfg.MaxStreamAge)
		call.send(2)
		call.goesOn()
		store.release(0, 5)
		if answer := <-call.answers; answer.GetPublished().GetPosition().GetSequence() != 5 {
			t.Errorf("it was answered with %v", answer)
		}
		if f := failureOf(<-call.ended); f.reason != fanfarev1.ErrorReason_ERROR_REASON_MAX_STREAM_AGE {
			t.Errorf("the call ended with %+v", f)
		}
		if n := len(store.submissions()); n != 1 {
			t.Errorf("%d publications were submitted", n)
		}
	})
}

// Streams of health and reflection do not hold up a drain, and a watcher sees
// NOT_SERVING first.
func TestDrainEndsHealthWatchers(t *testing.T) {
	s := testServer(t, nil)
	s.cfg.DrainDelay = 50 * time.Millisecond
	s.cfg.DrainGrace = time.Minute
	_, conn, g := serve(t, s)
	makeReady(s, time.Now())
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := watch.Recv(); err != nil || answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("got %v, %v", answer, err)
	}
	began := time.Now()
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(t.Context(), g) }()
	if answer, err := watch.Recv(); err != nil || answer.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("got %v, %v", answer, err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the drain took %s", took)
	}
}

// A drain that is cut short closes connections at once.
func TestDrainCutShort(t *testing.T) {
	store := newHeldStore()
	s := testServer(t, store)
	s.cfg.DrainDelay, s.cfg.DrainGrace = time.Hour, time.Hour
	client, _, g := serve(t, s)
	store.answer = func(ctx context.Context, _ backlog.Publication, done func(backlog.Outcome, error)) {
		context.AfterFunc(ctx, func() { done(backlog.Outcome{}, backlog.ErrOutcomeUnknown) })
	}
	ended := make(chan error, 1)
	go func() {
		_, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c"}})
		ended <- err
	}()
	eventually(t, "it was submitted", func() bool { return len(store.submissions()) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Drain(ctx, g); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the publish succeeded")
	}
}
