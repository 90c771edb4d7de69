package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Requests that are being read are bounded in memory, all together: one for which there
// is no room is told to come again, and what it had is given back.
func TestBodiesAreBounded(t *testing.T) {
	w := newWorld(t, &upstreamServer{}, Config{})
	w.handler.placeTimeout = 50 * time.Millisecond
	// As others would that are slow to send.
	const others = maxRequestsBytes - 1<<20
	if err := w.handler.requests.all.Acquire(t.Context(), others); err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"channel": "c", "scope": "%s"}`, strings.Repeat("x", 2<<20))
	if status, p := w.ask(t, "/v1/close", strings.NewReader(body)); status != http.StatusServiceUnavailable || p.Reason != "LIMIT_REACHED" || p.RetryIn == 0 {
		t.Errorf("without room: status %d, %+v", status, p)
	}
	w.handler.requests.all.Release(others)
	if status, p := w.ask(t, "/v1/close", strings.NewReader(body)); status != http.StatusNotImplemented || p.Code != "unimplemented" {
		t.Errorf("with room: status %d, %+v", status, p) // the server of this test closes nothing
	}
	if !w.handler.requests.all.TryAcquire(maxRequestsBytes) {
		t.Error("what was held for requests was not given back")
	}
}

// Symptom: requests that came at the same time were refused for want of memory that was
// free a moment later.
func TestRequestsWaitForMemory(t *testing.T) {
	w := newWorld(t, &upstreamServer{}, Config{})
	w.handler.placeTimeout = patience
	if err := w.handler.requests.all.Acquire(t.Context(), maxRequestsBytes); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { w.handler.requests.all.Release(maxRequestsBytes) })
	if code, p := w.ask(t, "/v1/close", strings.NewReader("{}")); code != http.StatusNotImplemented {
		t.Errorf("status %d, %+v", code, p)
	}
}

// unread is a request of which nobody may read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the request of somebody without a token is read")
	return 0, io.EOF
}

// Symptom: six clients without a token that sent slowly had everybody refused. Cause:
// requests took memory before anybody knew whose they were. They are refused in the
// words of their protocol, with the reason, and nothing of them is read.
func TestRequestsAreAuthorizedBeforeTheyAreRead(t *testing.T) {
	refusal, err := status.New(codes.Unauthenticated, "a token is needed").WithDetails(&errdetails.ErrorInfo{Reason: "UNAUTHENTICATED"})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, &upstreamServer{}, Config{Authorize: func(r *http.Request) error {
		if r.Header.Get("Authorization") == "" {
			return refusal.Err()
		}
		return nil
	}})
	if code, p := w.ask(t, "/v1/close", strings.NewReader("{}")); code != http.StatusUnauthorized || p.Code != "unauthenticated" || p.Reason != "UNAUTHENTICATED" || p.Message != "a token is needed" {
		t.Errorf("as JSON: status %d, %+v", code, p)
	}
	for name, option := range map[string]connect.ClientOption{"Connect": connect.WithProtoJSON(), "gRPC-Web": connect.WithGRPCWeb()} {
		client := connect.NewClient[fanfarev1.CloseStreamRequest, fanfarev1.CloseStreamResponse](http.DefaultClient, w.url+fanfarev1.FanfareService_CloseStream_FullMethodName, option)
		_, err := client.CallUnary(t.Context(), connect.NewRequest(&fanfarev1.CloseStreamRequest{Channel: "c"}))
		checkRefusal(t, name, err)
		streams := connect.NewClient[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse](http.DefaultClient, w.url+fanfarev1.FanfareService_Subscribe_FullMethodName, option)
		stream, err := streams.CallServerStream(t.Context(), connect.NewRequest(&fanfarev1.SubscribeRequest{Channel: "c"}))
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
			t.Errorf("%s: a message came", name)
		}
		checkRefusal(t, name+" stream", stream.Err())
		_ = stream.Close()
	}
	request, err := http.NewRequest(http.MethodPost, "/v1/close", unread{t})
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	w.handler.ServeHTTP(&discardedAnswer{header: http.Header{}}, request)
	request.Header.Set("Authorization", "Bearer token")
	request.Body = io.NopCloser(bytes.NewReader([]byte("{}")))
	answer := &discardedAnswer{header: http.Header{}}
	if w.handler.ServeHTTP(answer, request); answer.status != http.StatusNotImplemented {
		t.Errorf("with a token: status %d", answer.status)
	}
	// The health service is open, and so takes little.
	if code, p := w.ask(t, "/grpc.health.v1.Health/Check", strings.NewReader(`{"service": "`+strings.Repeat("x", maxOpenBytes)+`"}`)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large request to the health service: status %d, %+v", code, p)
	}
	if code, p := w.ask(t, "/grpc.health.v1.Health/Check", strings.NewReader("{}")); p.Code != "unimplemented" {
		t.Errorf("the health service: status %d, %+v", code, p) // the server of this test has none
	}
}

func checkRefusal(t *testing.T, name string, err error) {
	t.Helper()
	var refused *connect.Error
	if connect.CodeOf(err) != connect.CodeUnauthenticated || !errors.As(err, &refused) || len(refused.Details()) != 1 {
		t.Errorf("%s: %v", name, err)
		return
	}
	detail, err := refused.Details()[0].Value()
	if info, ok := detail.(*errdetails.ErrorInfo); !ok || info.Reason != "UNAUTHENTICATED" {
		t.Errorf("%s: the detail is %v, %v", name, detail, err)
	}
}

// discardedAnswer keeps the status of an answer.
type discardedAnswer struct {
	header http.Header
	status int
}

func (a *discardedAnswer) Header() http.Header         { return a.header }
func (a *discardedAnswer) WriteHeader(status int)      { a.status = status }
func (a *discardedAnswer) Write(p []byte) (int, error) { return len(p), nil }
