package service

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

type httpAddr string

func (httpAddr) Network() string  { return "http" }
func (a httpAddr) String() string { return string(a) }

// Symptom: every call over HTTP was logged as of the peer "bufconn". Cause: it comes by a
// listener within the process. Who connects by a network is believed nothing about it.
func TestLinesSayWhoCalls(t *testing.T) {
	g := newGuarded(t)
	inside := bufconn.Listen(64 << 10)
	served := grpc.NewServer(g.ServerOptions()...)
	g.Register(served)
	go func() { _ = served.Serve(inside) }()
	t.Cleanup(served.Stop)
	within, err := grpc.NewClient("passthrough:///inside", append(insecureOptions(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inside.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = within.Close() })
	forwarded := func(addresses ...string) context.Context {
		ctx := with(t.Context(), "Bearer "+signed(t, grant("somebody", "chat")))
		for _, address := range addresses {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", address)
		}
		return ctx
	}
	read := func(conn *grpc.ClientConn, ctx context.Context) {
		_, _ = fanfarev1.NewFanfareServiceClient(conn).GetStream(ctx, &fanfarev1.GetStreamRequest{Channel: "chat", Scope: "kitchen"})
	}
	subscribe := func(conn *grpc.ClientConn, ctx context.Context) {
		if call, err := fanfarev1.NewFanfareServiceClient(conn).Subscribe(ctx, &fanfarev1.SubscribeRequest{}); err == nil {
			_, _ = call.Recv()
		}
	}
	for _, c := range []struct {
		name string
		call func()
		want string // of the line, up to what follows
		not  string
	}{
		{"over HTTP", func() { read(within, forwarded("192.0.2.7:1234")) }, "peer.address=192.0.2.7:1234 peer.via=http ", inProcess},
		{"a stream over HTTP", func() { subscribe(within, forwarded("192.0.2.7:1234")) }, "peer.address=192.0.2.7:1234 peer.via=http ", inProcess},
		{"from the process itself", func() { read(within, forwarded()) }, "peer.address=in-process grpc", "http"},
		{"several", func() { read(within, forwarded("192.0.2.7:1", "192.0.2.8:1")) }, "peer.address=in-process grpc", "192.0.2"},
		{"by a network", func() { read(g.conn, forwarded("192.0.2.7:1234")) }, "peer.address=127.0.0.1:", "192.0.2"},
		{"refused by who passes calls on", func() {
			_ = g.Authenticate(peer.NewContext(t.Context(), &peer.Peer{Addr: httpAddr("192.0.2.9:1")}))
		}, "peer.address=192.0.2.9:1 peer.via=http ", inProcess},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(g.log.String())
			c.call()
			eventually(t, "a line that says "+c.want, func() bool { return strings.Contains(g.log.String()[before:], c.want) })
			if line := g.log.String()[before:]; strings.Contains(line, c.not) {
				t.Errorf("the log says %s", line)
			}
		})
	}
}
