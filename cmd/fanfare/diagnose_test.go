package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// The port of HTTP speaks gRPC, too, so that who takes it for the other is served.
func TestCommandsReachThePortOfHTTP(t *testing.T) {
	web := startEmbedded(t).stdout.await(t, `health on http://(\S+)/healthz`)[1]
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", web)
	if got := mustRun(t, "", "subscribe", "c", "s", "--count", "1", "--server", web); !strings.HasSuffix(got, "x\n") {
		t.Errorf("subscribe printed %q", got)
	}
}

// A server that is none of ours is named for what it is, by every command.
func TestOtherServers(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of handshakes that failed
	secure.StartTLS()
	t.Cleanup(secure.Close)
	const advice = "; --server takes the address that fanfare serve prints, 127.0.0.1:7420 by default\n"
	for _, c := range []struct{ name, address, want string }{
		{"HTTP", web.Listener.Addr().String(), " speaks HTTP, not gRPC" + advice},
		{"dns", "dns:///" + web.Listener.Addr().String(), " speaks HTTP, not gRPC" + advice},
		{"TLS", secure.Listener.Addr().String(), " expects TLS, which fanfare does not speak yet" + advice},
		{"hangs up", hangingUp(t), "no server answers at "},
		{"nobody", deadServer, "no server answers at " + deadServer + ": "},
		{"no socket", "unix:///nowhere/fanfare.sock", "no server answers at unix:///nowhere/fanfare.sock: "},
		{"no port", "127.0.0.1", "without a port it is 443: did you mean 127.0.0.1:7420?\n"},
		{"no port of IPv6", "[::1]", "did you mean [::1]:7420?\n"},
		{"port only", "7420", "did you mean 127.0.0.1:7420?\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, args := range [][]string{{"publish", "c", "s", "--data", "x"}, {"publish", "c", "s", "--lines"}, {"subscribe", "c", "s"}, {"streams"}} {
				r := command(t, "x\n", append(args, "--server", c.address)...)
				if r.code != exitFailed || r.stdout != "" || !strings.Contains(r.stderr, strings.TrimSuffix(c.want, "\n")) || strings.Count(r.stderr, "\n") != 1 {
					t.Errorf("%q: %+v, want %q", args, r, c.want)
				}
			}
		})
	}
}

// hangingUp is the address of a server that hangs up at once.
func hangingUp(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	})
	t.Cleanup(func() {
		lis.Close()
		serving.Wait()
	})
	return lis.Addr().String()
}

// S165: what a server refuses for good is asked once and shown at once.
func TestRefusalsAreFinal(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.NotFound, codes.FailedPrecondition} {
		var calls atomic.Int32
		refuse := func() error { calls.Add(1); return status.Error(code, "the server says why") }
		s := (&scriptedServer{
			publish:       func(context.Context) (*fanfarev1.PublishResponse, error) { return nil, refuse() },
			publishStream: func(fanfarev1.FanfareService_PublishStreamServer) error { return refuse() },
			subscribe: func(*fanfarev1.SubscribeRequest, grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
				return refuse()
			},
			close:       func(context.Context) (*fanfarev1.CloseStreamResponse, error) { return nil, refuse() },
			listStreams: func(*fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) { return nil, refuse() },
		}).start(t)
		for _, args := range [][]string{{"publish", "c", "s", "--data", "x"}, {"publish", "c", "s", "--lines"}, {"subscribe", "c", "s"}, {"close", "c", "s"}, {"streams"}} {
			calls.Store(0)
			r := command(t, "x\n", append(args, "--server", s.address)...)
			if r.code != exitFailed || calls.Load() != 1 || !strings.Contains(r.stderr, "the server says why") || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%s for %q: %d calls, %+v", code, args, calls.Load(), r)
			}
		}
	}
}
