package clientlib_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// fakeServer answers calls as a test says, where a real server cannot be brought to it.
// What is nil is UNIMPLEMENTED.
type fakeServer struct {
	fanfarev1.UnimplementedFanfareServiceServer
	publish       func(context.Context, *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error)
	publishBatch  func(context.Context, *fanfarev1.PublishBatchRequest) (*fanfarev1.PublishBatchResponse, error)
	publishStream func(fanfarev1.FanfareService_PublishStreamServer) error
	subscribe     func(*fanfarev1.SubscribeRequest, fanfarev1.FanfareService_SubscribeServer) error
	session       func(fanfarev1.FanfareService_SessionServer) error
}

func (f *fakeServer) Publish(ctx context.Context, r *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	if f.publish == nil {
		return f.UnimplementedFanfareServiceServer.Publish(ctx, r)
	}
	return f.publish(ctx, r)
}

func (f *fakeServer) PublishBatch(ctx context.Context, r *fanfarev1.PublishBatchRequest) (*fanfarev1.PublishBatchResponse, error) {
	if f.publishBatch == nil {
		return f.UnimplementedFanfareServiceServer.PublishBatch(ctx, r)
	}
	return f.publishBatch(ctx, r)
}

func (f *fakeServer) PublishStream(s fanfarev1.FanfareService_PublishStreamServer) error {
	if f.publishStream == nil {
		return f.UnimplementedFanfareServiceServer.PublishStream(s)
	}
	return f.publishStream(s)
}

func (f *fakeServer) Subscribe(r *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
	if f.subscribe == nil {
		return f.UnimplementedFanfareServiceServer.Subscribe(r, s)
	}
	return f.subscribe(r, s)
}

func (f *fakeServer) Session(s fanfarev1.FanfareService_SessionServer) error {
	if f.session == nil {
		return f.UnimplementedFanfareServiceServer.Session(s)
	}
	return f.session(s)
}

// start serves until the test ends, and returns the address.
func (f *fakeServer) start(t testing.TB, options ...grpc.ServerOption) string {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	fanfarev1.RegisterFanfareServiceServer(server, f)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(socket) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return socket.Addr().String()
}

// refusal is an error as a server sends it; without reason, as a proxy or grpc does.
func refusal(code codes.Code, reason string, retryIn time.Duration) error {
	st := status.New(code, "as the test says")
	if reason != "" {
		st, _ = st.WithDetails(&errdetails.ErrorInfo{Domain: "fanfare.dev", Reason: reason})
	}
	if retryIn > 0 {
		st, _ = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryIn)})
	}
	return st.Err()
}
