package transcode

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/gen/openapi"
)

const patience = 20 * time.Second

// upstreamServer answers calls as a test wants.
type upstreamServer struct {
	fanfarev1.UnimplementedFanfareServiceServer
	getStream func(context.Context) (*fanfarev1.GetStreamResponse, error)
	subscribe func(grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error
	publish   func(context.Context)
}

func (s *upstreamServer) Publish(ctx context.Context, _ *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	s.publish(ctx)
	return &fanfarev1.PublishResponse{}, status.FromContextError(ctx.Err()).Err()
}

func (s *upstreamServer) PublishStream(stream grpc.BidiStreamingServer[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse]) error {
	s.publish(stream.Context())
	return status.FromContextError(stream.Context().Err()).Err()
}

func (s *upstreamServer) GetStream(ctx context.Context, _ *fanfarev1.GetStreamRequest) (*fanfarev1.GetStreamResponse, error) {
	return s.getStream(ctx)
}

func (s *upstreamServer) Subscribe(_ *fanfarev1.SubscribeRequest, stream grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
	return s.subscribe(stream)
}

// world is a Handler in front of a server that a test has made.
type world struct {
	handler *Handler
	url     string
	conns   chan net.Conn // those that were dialed
}

func newWorld(t *testing.T, server *upstreamServer, config Config) *world {
	t.Helper()
	w := &world{conns: make(chan net.Conn, 10)}
	lis := bufconn.Listen(64 << 10)
	g := grpc.NewServer()
	fanfarev1.RegisterFanfareServiceServer(g, server)
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	config.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := lis.DialContext(ctx)
		if err == nil {
			w.conns <- conn
		}
		return conn, err
	}
	config.Rules, config.Logger = openapi.Rules, slog.New(slog.DiscardHandler)
	w.serve(t, config)
	return w
}

func (w *world) serve(t *testing.T, config Config) {
	t.Helper()
	var err error
	if w.handler, err = New(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.handler.Close)
	site := httptest.NewServer(w.handler)
	t.Cleanup(site.Close)
	w.url = site.URL
}

// ask sends a request and returns the status and the problem of the answer.
func (w *world) ask(t *testing.T, path string, body io.Reader) (int, Problem) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(ctx, method, w.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p Problem
	if err := json.Unmarshal(text, &p); err != nil {
		t.Errorf("%v in %q", err, text)
	}
	return response.StatusCode, p
}

// A server that cannot be reached is UNAVAILABLE, to everybody in its own protocol.
func TestServerThatIsAway(t *testing.T) {
	w := &world{}
	w.serve(t, Config{
		Dial:   func(context.Context) (net.Conn, error) { return nil, errors.New("it is away") },
		Rules:  openapi.Rules,
		Logger: slog.New(slog.DiscardHandler),
	})
	if status, p := w.ask(t, "/v1/stream?channel=c", nil); status != http.StatusServiceUnavailable || p.Code != "unavailable" || strings.Contains(p.Message, "away") {
		t.Errorf("status %d, %+v", status, p)
	}
	client := connect.NewClient[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse](http.DefaultClient, w.url+fanfarev1.FanfareService_Subscribe_FullMethodName, connect.WithGRPCWeb())
	stream, err := client.CallServerStream(t.Context(), connect.NewRequest(&fanfarev1.SubscribeRequest{Channel: "c"}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeUnavailable {
		t.Errorf("the stream: %v", stream.Err())
	}
}

// Symptom: when the connection to the server broke in the middle of a stream, the
// client's broke, too, and it was told nothing. The stream ends UNAVAILABLE.
func TestServerThatBreaksOff(t *testing.T) {
	for name, option := range map[string]connect.ClientOption{"Connect": connect.WithProtoJSON(), "gRPC-Web": connect.WithGRPCWeb()} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &upstreamServer{subscribe: func(stream grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
				if err := stream.Send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{Subscribed: &fanfarev1.Subscribed{}}}); err != nil {
					return err
				}
				<-stream.Context().Done()
				return stream.Context().Err()
			}}, Config{})
			client := connect.NewClient[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse](http.DefaultClient, w.url+fanfarev1.FanfareService_Subscribe_FullMethodName, option)
			stream, err := client.CallServerStream(t.Context(), connect.NewRequest(&fanfarev1.SubscribeRequest{Channel: "c"}))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if !stream.Receive() {
				t.Fatalf("nothing came: %v", stream.Err())
			}
			(<-w.conns).Close()
			if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeUnavailable {
				t.Errorf("the stream ended with %v", stream.Err())
			}
		})
	}
}

// A unary call ends while its answer can still be written, and its server knows when.
func TestUnaryCallsHaveADeadline(t *testing.T) {
	deadlines := make(chan time.Duration, 1)
	w := newWorld(t, &upstreamServer{getStream: func(ctx context.Context) (*fanfarev1.GetStreamResponse, error) {
		deadline, _ := ctx.Deadline()
		deadlines <- time.Until(deadline)
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}}, Config{UnaryTimeout: 200 * time.Millisecond})
	if status, p := w.ask(t, "/v1/stream?channel=c", nil); status != http.StatusGatewayTimeout || p.Code != "deadline_exceeded" {
		t.Errorf("status %d, %+v", status, p)
	}
	if left := <-deadlines; left > 200*time.Millisecond || left < -patience {
		t.Errorf("the server was given %s", left)
	}
}

// The calls that are under way are bounded; one too many waits for a place.
func TestCallsAreBounded(t *testing.T) {
	w := newWorld(t, &upstreamServer{getStream: func(context.Context) (*fanfarev1.GetStreamResponse, error) {
		return nil, status.Error(codes.NotFound, "none")
	}}, Config{})
	w.handler.placeTimeout = 50 * time.Millisecond
	if err := w.handler.calls.Acquire(t.Context(), maxUnaryCalls); err != nil {
		t.Fatal(err)
	}
	if status, p := w.ask(t, "/v1/stream?channel=c", nil); status != http.StatusServiceUnavailable || p.Reason != "LIMIT_REACHED" {
		t.Errorf("without a place: status %d, %+v", status, p)
	}
	w.handler.calls.Release(maxUnaryCalls)
	if status, p := w.ask(t, "/v1/stream?channel=c", nil); status != http.StatusNotFound || p.Message != "none" {
		t.Errorf("with a place: status %d, %+v", status, p)
	}
}

// A stream for which there is no place is refused before it begins, and one that ends
// gives its place back.
func TestStreamsAskForAPlace(t *testing.T) {
	ended := make(chan struct{}, 1)
	allowed := true
	w := newWorld(t, &upstreamServer{subscribe: func(stream grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
		return stream.Send(&fanfarev1.SubscribeResponse{})
	}}, Config{Begin: func(*http.Request) (func(), bool) { return func() { ended <- struct{}{} }, allowed }})
	client := connect.NewClient[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse](http.DefaultClient, w.url+fanfarev1.FanfareService_Subscribe_FullMethodName)
	subscribe := func() (got bool, err error) {
		stream, err := client.CallServerStream(t.Context(), connect.NewRequest(&fanfarev1.SubscribeRequest{Channel: "c"}))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		for stream.Receive() {
			got = true
		}
		return got, stream.Err()
	}
	if got, err := subscribe(); !got || err != nil {
		t.Errorf("got something: %t, %v", got, err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the place was not given back")
	}
	allowed = false
	if got, err := subscribe(); got || connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("without a place: got something: %t, %v", got, err)
	}
}

// A request brings its caller's token to the server, and of the rest only what concerns
// the call: nothing that somebody could take for metadata of the server's own.
func TestHeadersThatArePassed(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "Grpc-Timeout": true, "Traceparent": true,
		"Cookie": false, "X-Forwarded-Client-Cert": false, "X-User": false, "Last-Event-Id": false,
	} {
		if got := passes(name); got != want {
			t.Errorf("%s is passed on: %t", name, got)
		}
	}
}
