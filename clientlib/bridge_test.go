package clientlib_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// bridge is a server with Session that has one Subscribe of another server for each
// subscription. It keeps to credit, and counts.
type bridge struct {
	behind fanfarev1.FanfareServiceClient

	mu sync.Mutex
	// most is the most subscriptions at a time that had not been answered.
	asked, most int
	// sent is the size of frames, credit what was given, of all subscriptions.
	sent, credit uint64
}

// startBridge returns the address of a bridge.
func startBridge(t testing.TB, behind fanfarev1.FanfareServiceClient) (*bridge, string) {
	b := &bridge{behind: behind}
	f := &fakeServer{session: b.session}
	f.subscribe = func(*fanfarev1.SubscribeRequest, fanfarev1.FanfareService_SubscribeServer) error {
		return status.Error(codes.Aborted, "the session was not used")
	}
	return b, f.start(t)
}

// bridged is a subscription.
type bridged struct {
	end context.CancelFunc
	// left is whether the client asked for the end.
	left bool
	// credit is what is left of it; a token in more says that it grew.
	credit int64
	more   chan struct{}
}

func (b *bridge) session(call fanfarev1.FanfareService_SessionServer) error {
	ctx, cancel := context.WithCancel(call.Context())
	var (
		tasks   sync.WaitGroup
		sending sync.Mutex
		mu      sync.Mutex
		open    = map[uint32]*bridged{}
	)
	defer tasks.Wait()
	defer cancel()
	send := func(r *fanfarev1.SessionResponse) {
		sending.Lock()
		defer sending.Unlock()
		_ = call.Send(r)
	}
	for {
		request, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch r := request.GetRequest().(type) {
		case *fanfarev1.SessionRequest_Subscribe:
			number := r.Subscribe.GetNumber()
			ctx, end := context.WithCancel(ctx)
			s := &bridged{end: end, credit: int64(r.Subscribe.GetCredit()), more: make(chan struct{}, 1)}
			mu.Lock()
			_, used := open[number]
			open[number] = s
			mu.Unlock()
			if used || number == 0 || r.Subscribe.Credit == nil {
				return status.Errorf(codes.InvalidArgument, "number %d is in use, or there is no credit", number)
			}
			b.ask(1)
			tasks.Go(func() {
				last := b.relay(ctx, &mu, s, number, r.Subscribe.GetRequest(), send)
				mu.Lock()
				delete(open, number)
				if s.left {
					last = &fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Unsubscribed{Unsubscribed: &fanfarev1.Unsubscribed{}}}
				}
				mu.Unlock()
				if last != nil {
					last.Numbers = []uint32{number}
					send(last)
				}
			})
		case *fanfarev1.SessionRequest_Unsubscribe:
			mu.Lock()
			if s := open[r.Unsubscribe.GetNumber()]; s != nil {
				s.left = true
				s.end()
			}
			mu.Unlock()
		case *fanfarev1.SessionRequest_Credit:
			mu.Lock()
			b.count(0, r.Credit.GetBytes())
			if s := open[r.Credit.GetNumber()]; s != nil {
				s.credit += int64(r.Credit.GetBytes())
				select {
				case s.more <- struct{}{}:
				default:
				}
			}
			mu.Unlock()
		}
	}
}

func (b *bridge) ask(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked += n
	b.most = max(b.most, b.asked)
}

func (b *bridge) count(sent, credit uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent += sent
	b.credit += credit
}

// relay hands on what a Subscribe brings, and returns what ends the subscription.
func (b *bridge) relay(ctx context.Context, mu *sync.Mutex, s *bridged, number uint32, request *fanfarev1.SubscribeRequest, send func(*fanfarev1.SessionResponse)) *fanfarev1.SessionResponse {
	answered := sync.OnceFunc(func() { b.ask(-1) })
	defer answered()
	call, err := b.behind.Subscribe(ctx, request)
	for err == nil {
		var response *fanfarev1.SubscribeResponse
		if response, err = call.Recv(); err != nil {
			break
		}
		answered()
		if response.GetProgress() != nil {
			send(&fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Progress{Progress: &fanfarev1.Progress{}}})
			continue
		}
		bytes, _ := proto.Marshal(response)
		out := &fanfarev1.SessionResponse{}
		if err := proto.Unmarshal(bytes, out); err != nil { // its fields have the same numbers
			panic(err)
		}
		out.Numbers = []uint32{number}
		size := 0
		if len(response.GetFrames()) > 0 {
			size = len(bytes)
		}
		if !s.await(ctx, mu, size) {
			break
		}
		b.count(uint64(size), 0)
		send(out)
	}
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return &fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Ended{
		Ended: &fanfarev1.Ended{Error: &fanfarev1.Error{Code: int32(status.Code(err)), Message: status.Convert(err).Message()}},
	}}
}

// await waits until there is credit, and takes it.
func (s *bridged) await(ctx context.Context, mu *sync.Mutex, size int) bool {
	for {
		mu.Lock()
		if size == 0 || s.credit > 0 {
			s.credit -= int64(size)
			mu.Unlock()
			return true
		}
		mu.Unlock()
		select {
		case <-s.more:
		case <-ctx.Done():
			return false
		}
	}
}
