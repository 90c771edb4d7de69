package failover

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// errMoved is the cause of calls that were ended because the Conn goes elsewhere.
var errMoved = errors.New("the calls of this process go elsewhere from now on")

// movedRetryIn is when a client comes back after that: there is where to go already.
const movedRetryIn = time.Millisecond

// endedBy is what the caller is told of a call that was cancelled here; nil for
// other causes.
func endedBy(cause error) error {
	switch {
	case errors.Is(cause, errClosed):
		return status.Error(codes.Canceled, errClosed.Error())
	case errors.Is(cause, errMoved), errors.Is(cause, errNotAcknowledged):
		// No reason: whether a publish under way was stored is not known.
		st, err := status.New(codes.Unavailable, cause.Error()).WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(movedRetryIn)})
		if err != nil {
			return status.Error(codes.Unavailable, cause.Error())
		}
		return st.Err()
	default:
		return nil
	}
}

// stream is a streaming call, which counts on its way until it has ended.
type stream struct {
	grpc.ClientStream
	// judge is Conn.judge with the call's context. That of the ClientStream ends with the
	// call, too.
	judge func(err error) error
	conn  *Conn
	call  *call
	// acks watches for acknowledgements; nil if none are awaited.
	acks *acks
	// forget takes back that the end of the context ends the call.
	forget func() bool
}

func newStream(ctx context.Context, c *Conn, call *call, s grpc.ClientStream, acks *acks) *stream {
	judge := func(err error) error { return c.judge(ctx, call.way, err) }
	t := &stream{ClientStream: s, judge: judge, conn: c, call: call, acks: acks}
	// A caller that has given up need not say so.
	t.forget = context.AfterFunc(s.Context(), call.end)
	return t
}

// SendMsg implements grpc.ClientStream.
func (s *stream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	if err == nil {
		s.acks.sent(m)
	}
	return err
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	s.acks.waiting(true)
	err := s.ClientStream.RecvMsg(m)
	s.acks.waiting(false)
	if err == nil {
		if s.acks.received(m) {
			s.conn.leaveHub(s.call.way, Evicted, errors.New("the hub ended a subscription of a session as too slow"))
		}
		return nil
	}
	err = s.judge(err)
	s.end()
	return err
}

func (s *stream) end() {
	s.forget()
	s.call.end()
	s.call.cancel(nil)
}
