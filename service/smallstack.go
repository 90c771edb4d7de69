package service

import (
	"time"

	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// logStream is the outermost interceptor of streaming calls. It logs how a call
// really ended, a recovered panic included, and has Subscribe and Session run on a
// small stack.
func (s *Server) logStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	began := time.Now()
	var err error
	switch info.FullMethod {
	case fanfarev1.FanfareService_Subscribe_FullMethodName, fanfarev1.FanfareService_Session_FullMethodName:
		err = s.beginAside(stream, handler)
	default:
		err = handler(srv, stream)
	}
	s.callLog.ended(stream.Context(), info.FullMethod, err, time.Since(began))
	return err
}

// beginAside has handler, which is Subscribe or Session with the interceptors around
// it, begin on another goroutine, and serves the call on this one. This one is parked
// as long as the call lasts, on whatever stack it needed before: 8 KiB, which is most
// of what an idle subscription costs, if it receives the request and subscribes; half
// of that if it does not, and has few and small frames.
func (s *Server) beginAside(stream grpc.ServerStream, handler grpc.StreamHandler) error {
	b := &beginner{server: s}
	begun := make(chan error, 1)
	s.loops.Go(func() { begun <- handler(b, stream) })
	if err := <-begun; err != nil {
		return err
	}
	return b.call.serve()
}

// beginner is a FanfareService whose Subscribe and Session return when the call has
// begun.
type beginner struct {
	fanfarev1.UnimplementedFanfareServiceServer
	server *Server
	call   interface{ serve() error }
}

func (b *beginner) Subscribe(req *fanfarev1.SubscribeRequest, stream fanfarev1.FanfareService_SubscribeServer) (err error) {
	b.call, err = b.server.begin(req, stream)
	return err
}

func (b *beginner) Session(stream fanfarev1.FanfareService_SessionServer) (err error) {
	b.call, err = b.server.beginSession(stream)
	return err
}
