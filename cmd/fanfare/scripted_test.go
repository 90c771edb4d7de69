package main

import (
	"context"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// scriptedServer answers as a test says, in ways that a real server does only
// on a bad day.
type scriptedServer struct {
	fanfarev1.UnimplementedFanfareServiceServer
	publish       func(context.Context) (*fanfarev1.PublishResponse, error)
	close         func(context.Context) (*fanfarev1.CloseStreamResponse, error)
	publishStream func(fanfarev1.FanfareService_PublishStreamServer) error
	subscribe     func(*fanfarev1.SubscribeRequest, fanfarev1.FanfareService_SubscribeServer) error
	listStreams   func(*fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error)
	listPolicies  func() (*fanfarev1.ListPoliciesResponse, error)
	setPolicy     func(context.Context, *fanfarev1.SetPolicyRequest) (*fanfarev1.SetPolicyResponse, error)

	address string
	conns   chan *tappedConn
}

// start serves until the test ends.
func (s *scriptedServer) start(t *testing.T) *scriptedServer {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = lis.Addr().String()
	s.conns = make(chan *tappedConn, 16)
	g := grpc.NewServer()
	fanfarev1.RegisterFanfareServiceServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(tappedListener{lis, s.conns}) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

// hangUp ends the connection without a word, from within one of its calls, once
// the call's last answer (nil: none) is written to it. It returns when the
// call's client is gone.
func (s *scriptedServer) hangUp(call context.Context, last proto.Message) {
	marker, err := proto.Marshal(last)
	if err != nil {
		panic(err)
	}
	conn := <-s.conns
	for len(s.conns) > 0 {
		conn = <-s.conns // an earlier command's stands before it
	}
	for !strings.Contains(conn.written.String(), string(marker)) && call.Err() == nil {
		runtime.Gosched()
	}
	// Not Close: with anything unread that would discard what was written.
	_ = conn.CloseWrite()
	<-call.Done()
}

// tappedListener hands its connections to conns, too.
type tappedListener struct {
	net.Listener
	conns chan<- *tappedConn
}

func (l tappedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tapped := &tappedConn{conn.(*net.TCPConn), newTranscript()}
	l.conns <- tapped
	return tapped, nil
}

// tappedConn remembers what is written to it.
type tappedConn struct {
	*net.TCPConn
	written *transcript
}

func (c *tappedConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	_, _ = c.written.Write(p[:n])
	return n, err
}

func (s *scriptedServer) Publish(ctx context.Context, _ *fanfarev1.PublishRequest) (*fanfarev1.PublishResponse, error) {
	return s.publish(ctx)
}

func (s *scriptedServer) CloseStream(ctx context.Context, _ *fanfarev1.CloseStreamRequest) (*fanfarev1.CloseStreamResponse, error) {
	return s.close(ctx)
}

func (s *scriptedServer) PublishStream(stream fanfarev1.FanfareService_PublishStreamServer) error {
	return s.publishStream(stream)
}

func (s *scriptedServer) Subscribe(request *fanfarev1.SubscribeRequest, stream fanfarev1.FanfareService_SubscribeServer) error {
	return s.subscribe(request, stream)
}

func (s *scriptedServer) ListStreams(_ context.Context, request *fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
	return s.listStreams(request)
}

func (s *scriptedServer) ListPolicies(context.Context, *fanfarev1.ListPoliciesRequest) (*fanfarev1.ListPoliciesResponse, error) {
	return s.listPolicies()
}

func (s *scriptedServer) SetPolicy(ctx context.Context, request *fanfarev1.SetPolicyRequest) (*fanfarev1.SetPolicyResponse, error) {
	return s.setPolicy(ctx, request)
}

// streamsOf is a server with streams.
func streamsOf(t *testing.T, streams ...*fanfarev1.Stream) *scriptedServer {
	return (&scriptedServer{listStreams: func(*fanfarev1.ListStreamsRequest) (*fanfarev1.ListStreamsResponse, error) {
		return &fanfarev1.ListStreamsResponse{Streams: streams}, nil
	}}).start(t)
}

func stream(channel, scope string, sequence uint64) *fanfarev1.Stream {
	return &fanfarev1.Stream{
		Channel: channel, Scope: scope, Head: &fanfarev1.Position{Epoch: 7, Sequence: sequence}, Oldest: 1,
		Updated: timestamppb.New(time.Unix(1, 0)),
	}
}
