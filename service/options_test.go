package service

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip" // registers a compressor, as a client or another service of the process may
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// lines is a log that keeps what was logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

// last returns the last line, and how many there are.
func (l *lines) last() (string, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return "", 0
	}
	return l.all[len(l.all)-1], len(l.all)
}

func loggedServer(t *testing.T, store backlog.Store) (*Server, *lines) {
	t.Helper()
	log := &lines{}
	s := testServer(t, store)
	s.logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.callLog = newCallLog(s.logger)
	return s, log
}

// One line at the end of each call, its level by its code, with the cause that
// the client is not told and without what it sent.
func TestCallsAreLogged(t *testing.T) {
	store := &fakeStore{}
	s, log := loggedServer(t, store)
	client, _, _ := serve(t, s)
	var outcome func() error
	store.answer = func(_ context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
		if err := outcome(); err != nil {
			done(backlog.Outcome{}, err)
			return
		}
		done(store.number(p), nil)
	}
	for i, test := range []struct {
		outcome func() error
		code    codes.Code
		level   string
		has     string
	}{
		{func() error { return nil }, codes.OK, "DEBUG", "grpc.code=OK"},
		{func() error { return fmt.Errorf("%w: %s", backlog.ErrUnavailable, driverText) }, codes.Unavailable, "WARN", driverText},
		{func() error { return &backlog.ExpectationError{} }, codes.Aborted, "DEBUG", "grpc.code=Aborted"},
		{func() error { return fmt.Errorf("%w: %s", backlog.ErrOutcomeUnknown, driverText) }, codes.Unknown, "WARN", driverText},
		{func() error { panic("a bug") }, codes.Internal, "ERROR", "options_test.go"},
		{func() error { return nil }, codes.OK, "DEBUG", "grpc.code=OK"}, // and the server goes on
	} {
		outcome = test.outcome
		_, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c", Payload: []byte("a secret")}})
		if status.Code(err) != test.code || strings.Contains(fmt.Sprint(err), "10.0.0.7") || strings.Contains(fmt.Sprint(err), "a bug") {
			t.Errorf("call %d ended with %v", i, err)
		}
		eventually(t, "the call is logged", func() bool { _, n := log.last(); return n == i+1 })
		line, _ := log.last()
		if !strings.Contains(line, "level="+test.level) || !strings.Contains(line, test.has) || strings.Contains(line, "a secret") {
			t.Errorf("call %d was logged as %s", i, line)
		}
	}
}

// compressions records how responses were compressed.
type compressions struct {
	mu   sync.Mutex
	seen []string
}

func (c *compressions) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *compressions) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *compressions) HandleConn(context.Context, stats.ConnStats)                       {}
func (c *compressions) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.InHeader); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen = append(c.seen, h.Compression)
	}
}

// grpc answers with the compressor that the client used, which costs a
// subscription twenty times what sending does.
func TestResponsesAreNotCompressed(t *testing.T) {
	_, conn, _ := serve(t, testServer(t, nil))
	seen := &compressions{}
	compressing, err := grpc.NewClient(conn.Target(), append(insecureOptions(), grpc.WithStatsHandler(seen),
		grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)))...)
	if err != nil {
		t.Fatal(err)
	}
	defer compressing.Close() //nolint:errcheck // the test is over
	client := fanfarev1.NewFanfareServiceClient(compressing)
	frame := &fanfarev1.NewFrame{Channel: "c", Payload: make([]byte, 10_000)}
	if _, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: frame}); err != nil {
		t.Fatal(err)
	}
	stream, err := client.PublishStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustSend(t, stream, &fanfarev1.PublishStreamRequest{Frame: frame})
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.seen) != 2 || seen.seen[0] != "" && seen.seen[0] != "identity" || seen.seen[1] != "" && seen.seen[1] != "identity" {
		t.Errorf("responses were compressed: %q", seen.seen)
	}
}

// A whole batch at its limits fits a request.
func TestRequestsAtTheLimitsFit(t *testing.T) {
	client, _, _ := serve(t, testServer(t, nil))
	headers := map[string]string{}
	for i := range backlog.MaxHeaders {
		headers[fmt.Sprint(i)] = ""
	}
	batch := &fanfarev1.PublishBatchRequest{}
	for range backlog.MaxBatchFrames {
		batch.Frames = append(batch.Frames, &fanfarev1.NewFrame{Channel: "c", Headers: headers, Payload: make([]byte, backlog.MaxBatchBytes/backlog.MaxBatchFrames-100)})
	}
	if _, err := client.PublishBatch(t.Context(), batch); err != nil {
		t.Error(err)
	}
	// Above the limit the refusal names the field.
	_, err := client.Publish(t.Context(), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c", Payload: make([]byte, 5<<20)}})
	refusedField(t, err, "frame.payload")
}

// A client that gave up its call before the server had begun with it left an
// error in the log as if the server were at fault: grpc refuses to set the
// compressor of a call that is done, and says nothing of why it is.
func TestCallGivenUpAtOnce(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	for _, c := range []struct {
		name string
		ctx  context.Context
		want codes.Code
	}{
		{"cancelled", gone, codes.Canceled},
		{"too late", late, codes.DeadlineExceeded},
		{"another fault", t.Context(), codes.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			// No grpc stream is in these contexts, so that nothing can be set.
			_, unary := uncompressedUnary(c.ctx, nil, nil, func(context.Context, any) (any, error) { return nil, nil })
			streaming := uncompressedStream(nil, &stalledStream{ctx: c.ctx}, nil, func(any, grpc.ServerStream) error { return nil })
			if status.Code(unary) != c.want || status.Code(streaming) != c.want {
				t.Errorf("unary %v, streaming %v, want %s", unary, streaming, c.want)
			}
		})
	}
}
