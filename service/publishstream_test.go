package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

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

func openPublishStream(t *testing.T, store backlog.Store) (fanfarev1.FanfareService_PublishStreamClient, *Server, func() error) {
	t.Helper()
	s := testServer(t, store)
	client, _, g := serve(t, s)
	stream, err := client.PublishStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream, s, func() error { return s.Drain(t.Context(), g) }
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
	stream, _, _ := openPublishStream(t, store)
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
	stream, _, _ := openPublishStream(t, store)
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
// is, by its code.
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
		p := &pipeline{server: s, stream: publishStreamOf(t.Context())}
		p.refused(1, 0, refused.err)
		line, count := log.last()
		if count != 1 || !strings.Contains(line, "level="+refused.level) || !strings.Contains(line, refused.text) {
			t.Errorf("%v: %d lines, the last is %q; want level %s and %s", refused.err, count, line, refused.level, refused.text)
		}
	}
}

// What one stream may have unanswered is bounded, whatever a client sends.
func TestPublishStreamIsBounded(t *testing.T) {
	store := newHeldStore()
	stream, _, _ := openPublishStream(t, store)
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

// In-flight publishes are answered at a drain; what is sent later is not
// published.
func TestDrainAnswersWhatIsInFlight(t *testing.T) {
	store := newHeldStore()
	stream, s, drain := openPublishStream(t, store)
	s.cfg.DrainGrace = time.Minute
	mustSend(t, stream, publishRequest(1, "a"))
	eventually(t, "it was submitted", func() bool { return store.waiting() == 1 })
	drained := make(chan error, 1)
	go func() { drained <- drain() }()
	eventually(t, "the server is ending", s.isEnding)
	// Released after the moment at which the call, the only one, is told to go.
	time.AfterFunc(500*time.Millisecond, func() { store.release(0, 5) })
	answer, err := stream.Recv()
	if err != nil || answer.GetPublished().GetPosition().GetSequence() != 5 {
		t.Fatalf("got %v, %v", answer, err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the call ended with %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A request that waits for room when the call is told to go is not published,
// and the end of the call says why.
func TestDrainOfAFullPublishStream(t *testing.T) {
	store := newHeldStore()
	stream, s, drain := openPublishStream(t, store)
	s.cfg.DrainGrace = time.Minute
	go func() {
		for i := range uint64(2 * maxPipelinedFrames) {
			if stream.Send(publishRequest(i, "a")) != nil {
				return
			}
		}
	}()
	eventually(t, "the bound is reached", func() bool { return store.waiting() == maxPipelinedFrames })
	drained := make(chan error, 1)
	go func() { drained <- drain() }()
	eventually(t, "the server is ending", s.isEnding)
	time.AfterFunc(1500*time.Millisecond, func() { // the call has long been told to go
		for i := range maxPipelinedFrames {
			store.release(i, uint64(i+1))
		}
	})
	answers := 0
	var err error
	for {
		if _, err = stream.Recv(); err != nil {
			break
		}
		answers++
	}
	if answers != maxPipelinedFrames || status.Code(err) != codes.Unavailable {
		t.Errorf("%d answers came, then %v", answers, err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if n := len(store.submissions()); n != maxPipelinedFrames {
		t.Errorf("%d publications were submitted", n)
	}
}

// A call that has lasted as long as one may ends when everything that it took has
// been answered.
func TestPublishStreamOfItsAge(t *testing.T) {
	store := newHeldStore()
	s := testServer(t, store)
	s.cfg.MaxStreamAge = time.Second // it is submitted before
	client, _, _ := serve(t, s)
	stream, err := client.PublishStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustSend(t, stream, publishRequest(1, "a"))
	eventually(t, "it was submitted", func() bool { return store.waiting() == 1 })
	time.AfterFunc(s.cfg.MaxStreamAge*5/4, func() { store.release(0, 5) })
	answer, err := stream.Recv()
	if err != nil || answer.GetPublished().GetPosition().GetSequence() != 5 {
		t.Fatalf("got %v, %v", answer, err)
	}
	if _, err = stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(fmt.Sprint(status.Convert(err).Details()), "MAX_STREAM_AGE") {
		t.Errorf("the call ended with %v", err)
	}
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
