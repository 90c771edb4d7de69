package clientlib_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// newClientWith returns a client of a connection that is made with options.
func newClientWith(t *testing.T, address string, options ...grpc.DialOption) *clientlib.Client {
	t.Helper()
	conn, err := clientlib.Connect([]string{address}, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := clientlib.New(conn, quick())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// patient is a context that bounds a test.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

const sendLimit = 1 << 20

func tooLarge(message any) bool {
	r, ok := message.(*fanfarev1.PublishStreamRequest)
	return ok && len(r.GetFrame().GetPayload()) > sendLimit
}

// choosyCodec has no bytes for frames that are too large.
type choosyCodec struct{}

func (choosyCodec) Marshal(message any) ([]byte, error) {
	if tooLarge(message) {
		return nil, errors.New("it is too large")
	}
	return proto.Marshal(message.(proto.Message))
}

func (choosyCodec) Unmarshal(data []byte, message any) error {
	return proto.Unmarshal(data, message.(proto.Message))
}

func (choosyCodec) Name() string { return "proto" }

// intercept has a stream interceptor that sends what refuse returns nil for. The call goes
// on without the rest.
func intercept(refuse func(message any) error) grpc.DialOption {
	return grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := next(ctx, d, cc, method, options...)
		if err != nil {
			return nil, err
		}
		return choosyStream{s, refuse}, nil
	})
}

type choosyStream struct {
	grpc.ClientStream
	refuse func(message any) error
}

func (s choosyStream) SendMsg(message any) error {
	if err := s.refuse(message); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(message)
}

// Symptom: frames without a key were published twice, and every Wait returned nil. Cause:
// for a frame that the client's own side does not send grpc resets the call, with a code
// that of a server means that it has taken none of what it did not answer. It had; so what
// became of those is not known, and only those with a key are sent again.
func TestPublisherGivesUpAloneWhatItsOwnSideDoesNotSend(t *testing.T) {
	for name, test := range map[string]struct {
		refuses grpc.DialOption
		code    codes.Code
	}{
		"a limit": {grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(sendLimit)), codes.ResourceExhausted},
		"a codec": {grpc.WithDefaultCallOptions(grpc.ForceCodec(choosyCodec{})), codes.Internal},
		"an interceptor": {intercept(func(message any) error {
			if tooLarge(message) {
				return status.Error(codes.InvalidArgument, "it is too large")
			}
			return nil
		}), codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := patient(t)
			a := &answers{each: func(string, int) *fanfarev1.Error { return nil }}
			first, taken := true, make(chan struct{})
			address := (&fakeServer{publishStream: func(call fanfarev1.FanfareService_PublishStreamServer) error {
				if !first {
					return a.serve(call)
				}
				first = false
				for range 3 {
					r, err := call.Recv()
					if err != nil {
						return err
					}
					a.seen = append(a.seen, string(r.GetFrame().GetPayload()))
				}
				close(taken)
				<-call.Context().Done()
				return call.Context().Err()
			}}).start(t)
			p := newClientWith(t, address, test.refuses).NewPublisher(ctx)
			ephemeral := func(payload string) clientlib.NewFrame {
				f := frame(stream("s"), payload)
				f.Ephemeral = true
				return f
			}
			lost := []*clientlib.Pending{mustTake(t, p, ephemeral("1")), mustTake(t, p, ephemeral("2"))}
			kept := []*clientlib.Pending{mustTake(t, p, frame(stream("s"), "3"))}
			<-taken
			bad := mustTake(t, p, clientlib.NewFrame{Stream: stream("s"), Payload: make([]byte, 2*sendLimit), Ephemeral: true})
			kept = append(kept, mustTake(t, p, ephemeral("4")))
			var e *clientlib.Error
			if _, err := bad.Wait(ctx); !errors.As(err, &e) || e.Code != test.code || errors.Is(err, clientlib.ErrOutcomeUnknown) {
				t.Errorf("the frame that is too large: %v", err)
			}
			for i, sent := range lost {
				if _, err := sent.Wait(ctx); !errors.Is(err, clientlib.ErrOutcomeUnknown) {
					t.Errorf("frame %d, which has no key: %v", i+1, err)
				}
			}
			for i, sent := range kept {
				if _, err := sent.Wait(ctx); err != nil {
					t.Errorf("frame %d: %v", i+3, err)
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if want := []string{"1", "2", "3", "3", "4"}; !slices.Equal(a.seen, want) {
				t.Errorf("the server saw %q, want %q", a.seen, want)
			}
		})
	}
}

// What the client's side says of a frame says nothing of an earlier call that sent it.
func TestAFrameThatIsRefusedByItsOwnSideLaterIsStillInDoubt(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	address := (&fakeServer{publishStream: func(call fanfarev1.FanfareService_PublishStreamServer) error {
		if _, err := call.Recv(); err != nil {
			return err
		}
		return refusal(codes.Unavailable, "", 0)
	}}).start(t)
	sends := 0
	p := newClientWith(t, address, intercept(func(any) error {
		if sends++; sends == 1 {
			return nil
		}
		return status.Error(codes.InvalidArgument, "not twice")
	})).NewPublisher(ctx)
	if _, err := mustTake(t, p, frame(stream("s"), "1")).Wait(ctx); !errors.Is(err, clientlib.ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A frame that is not sent because the call has ended is tried again.
func TestPublisherSendsAgainWhatWasNotSentBecauseTheCallEnded(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Unauthenticated} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			ctx := patient(t)
			a := &answers{each: func(string, int) *fanfarev1.Error { return nil }}
			address := (&fakeServer{publishStream: a.serve}).start(t)
			sends := 0
			p := newClientWith(t, address, intercept(func(any) error {
				if sends++; sends == 1 {
					return status.Error(code, "as the test says")
				}
				return nil
			})).NewPublisher(ctx)
			if _, err := mustTake(t, p, frame(stream("s"), "1")).Wait(ctx); err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Symptom: a publish that was stored was told to be refused, and frames of a publisher were
// published twice. Cause: grpc says of an answer that is larger than the connection takes
// what servers say of a request that they do not take.
func TestPublishesTakeAnswersAboveTheLimitOfTheConnection(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	a, unary := &answers{each: func(string, int) *fanfarev1.Error { return nil }}, &publishes{}
	batches := 0
	address := (&fakeServer{publishStream: a.serve, publish: unary.answer, publishBatch: func(context.Context, *fanfarev1.PublishBatchRequest) (*fanfarev1.PublishBatchResponse, error) {
		batches++
		return &fanfarev1.PublishBatchResponse{Results: []*fanfarev1.PublishResponse{{Duplicate: true}}}, nil
	}}).start(t)
	c := newClientWith(t, address, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1)))
	if _, err := c.Publish(ctx, frame(stream("s"), "1")); err != nil || len(unary.seen) != 1 {
		t.Errorf("Publish: %d requests, %v", len(unary.seen), err)
	}
	if _, err := c.PublishBatch(ctx, []clientlib.NewFrame{frame(stream("s"), "1")}); err != nil || batches != 1 {
		t.Errorf("PublishBatch: %d requests, %v", batches, err)
	}
	p := c.NewPublisher(ctx)
	if _, err := mustTake(t, p, clientlib.NewFrame{Stream: stream("s"), Payload: []byte("1"), Ephemeral: true}).Wait(ctx); err != nil || len(a.seen) != 1 {
		t.Errorf("a Publisher: it sent %q, %v", a.seen, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Symptom: a publish without a key of which nothing was sent was told to be of unknown
// outcome. Cause: a header that no call carries is INTERNAL to grpc, as a fault that a
// server has while it publishes.
func TestAPublishWhoseHeaderIsTooLargeWasNotSent(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	server := &publishes{}
	token := strings.Repeat("t", 4<<10)
	c := newClient(t, []string{(&fakeServer{publish: server.answer}).start(t, grpc.MaxHeaderListSize(2<<10))},
		clientlib.WithTokenSource(func(context.Context, bool) (string, error) { return token, nil }))
	_, err := c.Publish(ctx, clientlib.NewFrame{Stream: stream("s"), Ephemeral: true})
	var e *clientlib.Error
	if !errors.As(err, &e) || e.Code != codes.Internal || errors.Is(err, clientlib.ErrOutcomeUnknown) || len(server.seen) != 0 {
		t.Errorf("%d requests, %v", len(server.seen), err)
	}
}
