package servicetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// sessionCredit is how many bytes of frames a subscription of a Sessions has room for.
const sessionCredit = 64 << 10

// Sessions is a client whose subscriptions share one Session at a time. Each has credit
// for what it has room for, so that one that takes nothing holds up no other. What its
// Subscribe returns behaves as a call of its own, as far as the protocol lets it.
type Sessions struct {
	fanfarev1.FanfareServiceClient

	mu      sync.Mutex // guards current
	current *muxed
}

// NewSessions returns a Sessions that calls client.
func NewSessions(client fanfarev1.FanfareServiceClient) *Sessions {
	return &Sessions{FanfareServiceClient: client}
}

// Close ends the current session.
func (s *Sessions) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		s.current.cancel()
		<-s.current.done
		s.current = nil
	}
}

// Subscribe begins a subscription in the current session, or in a new one if that has
// ended.
func (s *Sessions) Subscribe(ctx context.Context, request *fanfarev1.SubscribeRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[fanfarev1.SubscribeResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.hasEnded() {
		current, err := newMuxed(s.FanfareServiceClient)
		if err != nil {
			return nil, err
		}
		s.current = current
	}
	return s.current.subscribe(ctx, request)
}

// muxed is one Session.
type muxed struct {
	call   fanfarev1.FanfareService_SessionClient
	cancel context.CancelFunc
	// done is closed when nothing is received any more.
	done chan struct{}

	mu     sync.Mutex // guards what follows, and sends
	err    error
	last   uint32
	routes map[uint32]*route
}

func newMuxed(client fanfarev1.FanfareServiceClient) (*muxed, error) {
	ctx, cancel := context.WithCancel(context.Background())
	call, err := client.Session(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	m := &muxed{call: call, cancel: cancel, done: make(chan struct{}), routes: make(map[uint32]*route)}
	go func() {
		defer close(m.done)
		defer cancel()
		m.receive()
	}()
	return m, nil
}

func (m *muxed) hasEnded() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err != nil
}

// subscribe fails later, as a call does.
func (m *muxed) subscribe(ctx context.Context, request *fanfarev1.SubscribeRequest) (*route, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	r := &route{done: ctx.Done(), gone: ctx.Err, session: m, number: m.last, changed: make(chan struct{}, 1)}
	if m.err != nil {
		r.end(m.err)
		return r, nil
	}
	m.routes[r.number] = r
	_ = m.call.Send(&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{
		Subscribe: &fanfarev1.SessionSubscribe{Number: r.number, Request: request, Credit: proto.Uint64(sessionCredit)},
	}}) // Recv tells of the error
	context.AfterFunc(ctx, func() { m.unsubscribe(r) })
	return r, nil
}

func (m *muxed) unsubscribe(r *route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.routes[r.number] == r {
		_ = m.call.Send(&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Unsubscribe{
			Unsubscribe: &fanfarev1.SessionUnsubscribe{Number: r.number},
		}})
	}
}

func (m *muxed) credit(r *route, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.routes[r.number] == r {
		_ = m.call.Send(&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Credit{
			Credit: &fanfarev1.SessionCredit{Number: r.number, Bytes: uint64(bytes)}, //nolint:gosec // of a message
		}})
	}
}

// receive hands on what is received, until the call ends.
func (m *muxed) receive() {
	for {
		response, err := m.call.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Unavailable, "the session ended")
		}
		if err == nil {
			err = m.route(response)
		}
		if err != nil {
			m.end(err)
			return
		}
	}
}

func (m *muxed) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	for _, r := range m.routes {
		r.end(err)
	}
	clear(m.routes)
}

// route hands a response to those it is for.
func (m *muxed) route(response *fanfarev1.SessionResponse) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(response.GetNumbers()) == 0 {
		for _, r := range m.routes {
			r.add(toAll(response))
		}
		return nil
	}
	for _, number := range response.GetNumbers() {
		r := m.routes[number]
		if r == nil {
			return status.Errorf(codes.Internal, "%v is for %d, which is not subscribed", response, number)
		}
		switch n := response.GetNotice().(type) {
		case *fanfarev1.SessionResponse_Unsubscribed:
			r.end(status.FromContextError(r.gone()).Err())
		case *fanfarev1.SessionResponse_Ended:
			r.end(errorOf(n.Ended.GetError()))
		case *fanfarev1.SessionResponse_Closed:
			r.add(toOne(response))
			r.end(io.EOF)
		default:
			r.add(toOne(response))
			continue
		}
		delete(m.routes, number)
	}
	return nil
}

// toOne is what a Subscribe would have been sent.
func toOne(response *fanfarev1.SessionResponse) *fanfarev1.SubscribeResponse {
	out := &fanfarev1.SubscribeResponse{Frames: response.GetFrames()}
	switch n := response.GetNotice().(type) {
	case *fanfarev1.SessionResponse_Subscribed:
		out.Notice = &fanfarev1.SubscribeResponse_Subscribed{Subscribed: n.Subscribed}
	case *fanfarev1.SessionResponse_CaughtUp:
		out.Notice = &fanfarev1.SubscribeResponse_CaughtUp{CaughtUp: n.CaughtUp}
	case *fanfarev1.SessionResponse_Gap:
		out.Notice = &fanfarev1.SubscribeResponse_Gap{Gap: n.Gap}
	case *fanfarev1.SessionResponse_Status:
		out.Notice = &fanfarev1.SubscribeResponse_Status{Status: n.Status}
	case *fanfarev1.SessionResponse_Closed:
		out.Notice = &fanfarev1.SubscribeResponse_Closed{Closed: n.Closed}
	}
	return out
}

// toAll is nil for what says nothing of a subscription.
func toAll(response *fanfarev1.SessionResponse) *fanfarev1.SubscribeResponse {
	if response.GetStatus() != nil {
		return toOne(response)
	}
	return nil
}

// errorOf is the error of a call that ends so.
func errorOf(e *fanfarev1.Error) error {
	info := &errdetails.ErrorInfo{Domain: "fanfare.dev", Reason: strings.TrimPrefix(e.GetReason().String(), "ERROR_REASON_")}
	if p := e.GetPosition(); p != nil {
		info.Metadata = map[string]string{"position": positionOf(p).String()}
	}
	details := []protoadapt.MessageV1{info}
	if e.GetRetryIn() != nil {
		details = append(details, &errdetails.RetryInfo{RetryDelay: e.GetRetryIn()})
	}
	st, err := status.New(codes.Code(e.GetCode()), e.GetMessage()).WithDetails(details...) //nolint:gosec // a code
	if err != nil {
		return fmt.Errorf("%v: %w", e, err)
	}
	return st.Err()
}

// route is one subscription, as a call.
type route struct {
	grpc.ClientStream // panics where a test calls what it does not expect
	// done is closed when the call's context has ended, as gone says.
	done    <-chan struct{}
	gone    func() error
	session *muxed
	number  uint32
	// changed has an entry if there may be something to receive.
	changed chan struct{}

	mu      sync.Mutex // guards what follows
	waiting []*fanfarev1.SubscribeResponse
	err     error
}

func (r *route) add(response *fanfarev1.SubscribeResponse) {
	if response == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, response)
	r.change()
}

func (r *route) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	r.change()
}

func (r *route) change() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Recv implements grpc.ServerStreamingClient.
func (r *route) Recv() (*fanfarev1.SubscribeResponse, error) {
	for {
		response, err := r.poll()
		if len(response.GetFrames()) > 0 {
			r.session.credit(r, proto.Size(&fanfarev1.SubscribeResponse{Frames: response.GetFrames()}))
		}
		if response != nil || err != nil {
			return response, err
		}
		select {
		case <-r.changed:
		case <-r.done:
			return nil, status.FromContextError(r.gone()).Err()
		}
	}
}

func (r *route) poll() (*fanfarev1.SubscribeResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return nil, r.err
	}
	response := r.waiting[0]
	r.waiting = r.waiting[1:]
	return response, nil
}

// Header implements grpc.ClientStream.
func (r *route) Header() (metadata.MD, error) { return nil, nil }
