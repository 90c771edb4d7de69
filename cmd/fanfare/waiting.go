package main

import (
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service"
)

// waitingServer answers while the database cannot be reached yet: it is alive
// but not ready, and UNAVAILABLE to every other call. Without it a liveness
// probe would restart a process that only waits.
type waitingServer struct {
	grpc *grpc.Server
	done chan struct{}
}

// startWaitingServer serves on a socket, which stop leaves open.
func startWaitingServer(s socket) *waitingServer {
	states := health.NewServer()
	states.SetServingStatus("", healthgrpc.HealthCheckResponse_NOT_SERVING)
	states.SetServingStatus(fanfarev1.FanfareService_ServiceDesc.ServiceName, healthgrpc.HealthCheckResponse_NOT_SERVING)
	states.SetServingStatus(service.LivenessService, healthgrpc.HealthCheckResponse_SERVING)
	w := &waitingServer{
		grpc: grpc.NewServer(grpc.UnknownServiceHandler(refuseWaiting)),
		done: make(chan struct{}),
	}
	healthgrpc.RegisterHealthServer(w.grpc, states)
	go func() {
		defer close(w.done)
		// Its error is that stop ended it, or one that the next server meets too.
		_ = w.grpc.Serve(&lentSocket{socket: s})
	}()
	return w
}

// refuseWaiting answers every call that is not for the health service.
func refuseWaiting(_ any, stream grpc.ServerStream) error {
	message := "the server waits for its database"
	switch method, _ := grpc.MethodFromServerStream(stream); method {
	case fanfarev1.FanfareService_Publish_FullMethodName, fanfarev1.FanfareService_PublishBatch_FullMethodName, fanfarev1.FanfareService_PublishStream_FullMethodName:
		message += "; nothing was stored"
	}
	st, err := status.New(codes.Unavailable, message).WithDetails(
		&errdetails.ErrorInfo{Domain: service.ErrorDomain, Reason: "STORE_UNAVAILABLE"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	if err != nil {
		return err
	}
	return st.Err()
}

// stop ends the server and returns when the socket is free for another one.
func (w *waitingServer) stop() {
	w.grpc.Stop()
	<-w.done
}

// socket is what listen returns: a listener whose Accept can be interrupted.
type socket interface {
	net.Listener
	SetDeadline(time.Time) error
}

// lentSocket is a socket that is used for a while: closing it ends Accept and
// leaves the socket open, so that no client is refused while one server hands
// over to the next.
type lentSocket struct {
	socket
	closed atomic.Bool
}

func (l *lentSocket) Accept() (net.Conn, error) {
	conn, err := l.socket.Accept()
	if err != nil && l.closed.Load() {
		return nil, net.ErrClosed
	}
	return conn, err
}

func (l *lentSocket) Close() error {
	l.closed.Store(true)
	return l.SetDeadline(time.Now())
}
