package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// ways are those by which a client without gRPC of its own calls over HTTP.
var ways = []struct {
	name    string
	http2   bool
	options []connect.ClientOption
}{
	{"Connect, JSON, HTTP/1.1", false, []connect.ClientOption{connect.WithProtoJSON()}},
	{"Connect, HTTP/1.1, gzip", false, []connect.ClientOption{connect.WithSendGzip()}},
	{"Connect, HTTP/2", true, nil},
	{"gRPC-Web, HTTP/1.1", false, []connect.ClientOption{connect.WithGRPCWeb()}},
	{"gRPC-Web, JSON, HTTP/2", true, []connect.ClientOption{connect.WithGRPCWeb(), connect.WithProtoJSON()}},
	{"gRPC, HTTP/2", true, []connect.ClientOption{connect.WithGRPC()}},
}

// remote calls one method.
func remote[Request, Response any](t *testing.T, way int, s *server, method string) *connect.Client[Request, Response] {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if ways[way].http2 {
		client = unencryptedHTTP2(t)
	}
	return connect.NewClient[Request, Response](client, siteURL(t, s.stdout)+method, ways[way].options...)
}

// A browser's client subscribes by Connect and gRPC-Web: it gets each response when it is
// sent, what follows it live, and how the call ends.
func TestSubscribeOverHTTP(t *testing.T) {
	s := startEmbedded(t)
	for way := range ways {
		t.Run(ways[way].name, func(t *testing.T) {
			scope := ways[way].name
			publish := remote[fanfarev1.PublishRequest, fanfarev1.PublishResponse](t, way, s, fanfarev1.FanfareService_Publish_FullMethodName)
			frame := func(payload string) {
				t.Helper()
				request := &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c", Scope: scope, Payload: []byte(payload)}}
				if _, err := publish.CallUnary(t.Context(), connect.NewRequest(request)); err != nil {
					t.Fatal(err)
				}
			}
			frame("stored")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			stream, err := remote[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse](t, way, s, fanfarev1.FanfareService_Subscribe_FullMethodName).
				CallServerStream(ctx, connect.NewRequest(&fanfarev1.SubscribeRequest{Channel: "c", Scope: scope}))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			next := func() *fanfarev1.SubscribeResponse {
				t.Helper()
				if !stream.Receive() {
					t.Fatalf("the stream has ended: %v", stream.Err())
				}
				return stream.Msg()
			}
			if r := next(); r.GetSubscribed() == nil {
				t.Errorf("first came %v", r)
			}
			if r := next(); len(r.GetFrames()) != 1 || string(r.GetFrames()[0].GetPayload()) != "stored" {
				t.Errorf("then came %v", r)
			}
			if r := next(); r.GetCaughtUp() == nil {
				t.Errorf("then came %v", r)
			}
			frame("live")
			if r := next(); len(r.GetFrames()) != 1 || string(r.GetFrames()[0].GetPayload()) != "live" {
				t.Errorf("then came %v", r)
			}
			mustRun(t, "", "close", "c", scope, "--server", s.address)
			if r := next(); r.GetClosed().GetLast().GetSequence() != 2 {
				t.Errorf("then came %v", r)
			}
			if stream.Receive() || stream.Err() != nil {
				t.Errorf("after the close: %v, %v", stream.Msg(), stream.Err())
			}
		})
	}
}

// What cannot be read has its reason, too.
//
// Symptom: of JSON that was no request, calls by the Connect protocol were told no reason.
func TestUnreadableRequestsHaveAReason(t *testing.T) {
	s := startEmbedded(t)
	p := post(t, siteURL(t, s.stdout)+fanfarev1.FanfareService_GetStream_FullMethodName, `{"channel": "c"} x`)
	if p.status != http.StatusBadRequest || !strings.Contains(p.body, `"reason":"INVALID_FIELD"`) || !strings.Contains(p.body, "invalid value x") {
		t.Errorf("status %d: %s", p.status, p.body)
	}
}

// Errors of calls over HTTP have gRPC's code, message and details.
func TestErrorsOverHTTP(t *testing.T) {
	s := startEmbedded(t)
	for way := range ways {
		t.Run(ways[way].name, func(t *testing.T) {
			_, err := remote[fanfarev1.GetStreamRequest, fanfarev1.GetStreamResponse](t, way, s, fanfarev1.FanfareService_GetStream_FullMethodName).
				CallUnary(t.Context(), connect.NewRequest(&fanfarev1.GetStreamRequest{Channel: "nothing"}))
			wantError(t, err, connect.CodeNotFound, "STREAM_NOT_FOUND")
			stream, err := remote[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse](t, way, s, fanfarev1.FanfareService_Subscribe_FullMethodName).
				CallServerStream(t.Context(), connect.NewRequest(&fanfarev1.SubscribeRequest{}))
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if stream.Receive() {
				t.Errorf("received %v", stream.Msg())
			}
			wantError(t, stream.Err(), connect.CodeInvalidArgument, "INVALID_FIELD")
		})
	}
}

func wantError(t *testing.T, err error, code connect.Code, reason string) {
	t.Helper()
	var failed *connect.Error
	if !errors.As(err, &failed) || failed.Code() != code || failed.Message() == "" {
		t.Errorf("failed with %v, want %s", err, code)
		return
	}
	for _, detail := range failed.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*errdetails.ErrorInfo); ok && info.Reason == reason {
				return
			}
		}
	}
	t.Errorf("%v has the details %v, want the reason %s", failed, failed.Details(), reason)
}

// gRPC itself works over the port of HTTP, with many messages in both directions; other
// services are refused as gRPC does.
func TestGRPCOverHTTPPort(t *testing.T) {
	s := startEmbedded(t)
	conn, err := grpc.NewClient(strings.TrimPrefix(siteURL(t, s.stdout), "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	publishing, err := fanfarev1.NewFanfareServiceClient(conn).PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(100) {
		if err := publishing.Send(&fanfarev1.PublishStreamRequest{Number: i, Frame: &fanfarev1.NewFrame{Channel: "c", Scope: "s"}}); err != nil {
			t.Fatal(err)
		}
		answer, err := publishing.Recv()
		if err != nil || answer.GetNumber() != i || answer.GetPublished().GetPosition().GetSequence() != i+1 {
			t.Fatalf("answer %d: %v, %v", i, answer, err)
		}
	}
	if health, err := healthgrpc.NewHealthClient(conn).Check(ctx, &healthgrpc.HealthCheckRequest{}); err != nil || health.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	err = conn.Invoke(ctx, "/grpc.reflection.v1.ServerReflection/Nothing", &healthgrpc.HealthCheckRequest{}, &healthgrpc.HealthCheckResponse{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("another service: %v", err)
	}
}

// The log says who calls over HTTP, and that it is over HTTP. What a client says of itself
// is not believed.
//
// Symptom: the peer of every such call was "bufconn".
func TestLogOfCallsOverHTTP(t *testing.T) {
	s := startEmbedded(t, "--log-level", "debug")
	site := siteURL(t, s.stdout)
	spoofed := header("X-Forwarded-For", "192.0.2.1")
	get(t, site+"/v1/stream?channel=nothing", spoofed)
	post(t, site+fanfarev1.FanfareService_CloseStream_FullMethodName, `{}`, spoofed)
	for _, method := range []string{"GetStream", "CloseStream"} {
		s.stderr.await(t, `grpc.method=`+method+` peer.address=127\.0\.0\.1:\d+ peer.via=http`)
	}
	if log := s.stderr.String(); strings.Contains(log, "192.0.2.1") || strings.Contains(log, "bufconn") {
		t.Errorf("the log says:\n%s", log)
	}
}
