package nginx_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func newReplica(t *testing.T, options ...func(*servicetest.Config)) *servicetest.Replica {
	t.Helper()
	return servicetest.Start(t, "sqlite:"+t.TempDir()+"/fanfare.db", options...)
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// All kinds of calls go through, while two of three replicas are away.
func TestGRPCThroughNginx(t *testing.T) {
	replica := newReplica(t)
	nginx := start(t, upstreams{grpc: []string{replica.Addr}})
	conn := dial(t, nginx.grpc)
	client := fanfarev1.NewFanfareServiceClient(conn)
	ctx := bounded(t)

	health, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", health.GetStatus(), err)
	}
	subscription, err := client.Subscribe(ctx, &fanfarev1.SubscribeRequest{Channel: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	// Each frame is published only when the one before it has come: none waits in the
	// proxy for others.
	if _, err := subscription.Recv(); err != nil {
		t.Fatal(err)
	}
	publishing, err := client.PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// 3 MB, more than nginx takes of a request by default.
	for n, payload := range []string{"a", "b", strings.Repeat("c", 1<<20), strings.Repeat("d", 1<<20), strings.Repeat("e", 1<<20)} {
		err := publishing.Send(&fanfarev1.PublishStreamRequest{Number: uint64(n + 1), Frame: &fanfarev1.NewFrame{Channel: "orders", Payload: []byte(payload)}})
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := publishing.Recv(); err != nil || answer.GetPublished() == nil {
			t.Fatalf("frame %d is answered %v, %v", n, answer, err)
		}
		if got := nextFrame(t, subscription); string(got.GetPayload()) != payload {
			t.Fatalf("frame %d has %d bytes, want %d", n, len(got.GetPayload()), len(payload))
		}
	}
}

func nextFrame(t *testing.T, subscription grpc.ServerStreamingClient[fanfarev1.SubscribeResponse]) *fanfarev1.Frame {
	t.Helper()
	for {
		response, err := subscription.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if frames := response.GetFrames(); len(frames) > 0 {
			return frames[0]
		}
	}
}

// A stream of publishes that says nothing for longer than nginx waits by default, which
// is a minute, stays. In the short form what it outlives is a second stream, through an
// nginx whose timeouts are short: it shows which of them matter.
func TestQuietStreamOfPublishesStays(t *testing.T) {
	replica := newReplica(t)
	patient := start(t, upstreams{grpc: []string{replica.Addr}})
	hasty := start(t, upstreams{grpc: []string{replica.Addr}},
		"grpc_read_timeout 1d;", "grpc_read_timeout 1s;",
		"client_body_timeout 1d;", "client_body_timeout 1s;")
	open := func(p *proxy) grpc.BidiStreamingClient[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse] {
		t.Helper()
		stream, err := fanfarev1.NewFanfareServiceClient(dial(t, p.grpc)).PublishStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		publish(t, stream, 1)
		return stream
	}
	quiet, doomed := open(patient), open(hasty)
	if answer, err := doomed.Recv(); err == nil {
		t.Errorf("a stream that says nothing is answered %v by an nginx that waits for a second", answer)
	}
	if inLongForm() {
		<-time.After(70 * time.Second)
	}
	publish(t, quiet, 2)
}

// publish publishes a frame and waits for the answer.
func publish(t *testing.T, stream grpc.BidiStreamingClient[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse], number uint64) {
	t.Helper()
	frame := &fanfarev1.NewFrame{Channel: "orders", Payload: []byte("paid")}
	if err := stream.Send(&fanfarev1.PublishStreamRequest{Number: number, Frame: frame}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || answer.GetPublished() == nil || answer.GetNumber() != number {
		t.Fatalf("frame %d is answered %v, %v", number, answer, err)
	}
}
