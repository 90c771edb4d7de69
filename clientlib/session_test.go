package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A server that has no Session, such as an older one, is sent Subscribe. Those that were
// there already go over, and so do those that come.
func TestSessionFallsBackToSubscribe(t *testing.T) {
	t.Parallel()
	c := &calls{}
	c.plays = append(c.plays, idles(1, 2))
	client := newClient(t, []string{(&fakeServer{subscribe: c.serve}).start(t)}, clientlib.WithSession())
	for range 3 {
		r := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest()))
		r.expect("subscribed after 0, resumed false", "1 1", "2 2")
		r.Close()
	}
}

// A subscription that nobody reads pauses alone, its siblings go on, and no more is read
// ahead of it than it may. When it is read again it has everything.
func TestSlowConsumerPausesAlone(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, "sqlite::memory:", func(c *servicetest.Config) {
		backlog := int64(10_000)
		c.Backlog = &backlog
	})
	meter := &creditMeter{FanfareServiceClient: r.Client}
	address := (&fakeServer{session: meter.relay}).start(t)
	client := newClient(t, []string{address}, clientlib.WithSession())
	direct := newClient(t, []string{r.Addr})
	const readAhead, frames = 32 << 10, 400
	slowStream, fastStream := stream("slow"), stream("fast")
	payload := strings.Repeat("x", 1000)
	slow := read(t, client.Subscribe(t.Context(), slowStream, clientlib.Oldest(), clientlib.WithReadAhead(readAhead)))
	fast := read(t, client.Subscribe(t.Context(), fastStream, clientlib.Oldest(), clientlib.WithReadAhead(readAhead)))
	p := direct.NewPublisher(t.Context())
	for range frames {
		for _, s := range []clientlib.Stream{slowStream, fastStream} {
			if _, err := p.Publish(t.Context(), frame(s, payload)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	fast.frames(frames)
	// Of one number came all, of the other what it may have: its credit, and one message
	// of 16 KiB.
	if got := meter.least(); got > readAhead+16<<10 {
		t.Errorf("%d bytes were sent to a subscription that nobody reads, which may read %d ahead", got, readAhead)
	}
	for i := range frames {
		if f := until[*clientlib.Frame](slow); f.Position.Sequence != uint64(i+1) {
			t.Fatalf("frame %d is %s", i+1, f.Position)
		}
	}
	// All that was taken was credited again, but for less than a part of it: otherwise
	// the subscription would come to a stop sooner or later.
	slack := int64(readAhead + readAhead/4)
	eventually(t, "the credit is what was sent, and the read-ahead", func() bool {
		meter.mu.Lock()
		defer meter.mu.Unlock()
		for number, sent := range meter.sent {
			if left := meter.credit[number] - sent; left < readAhead*3/4-1 || left > slack {
				return false
			}
		}
		return true
	})
}

// creditMeter relays a Session to a real server, and sums up what each number got.
type creditMeter struct {
	fanfarev1.FanfareServiceClient
	mu           sync.Mutex
	sent, credit map[uint32]int64
}

// least is what the number got that got least.
func (m *creditMeter) least() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	least := int64(1 << 62)
	for _, sent := range m.sent {
		least = min(least, sent)
	}
	return least
}

func (m *creditMeter) relay(call fanfarev1.FanfareService_SessionServer) error {
	ctx, cancel := context.WithCancel(call.Context())
	behind, err := m.Session(ctx)
	if err != nil {
		cancel()
		return err
	}
	m.sent, m.credit = map[uint32]int64{}, map[uint32]int64{}
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			request, err := call.Recv()
			if err != nil {
				cancel()
				return
			}
			m.mu.Lock()
			if s := request.GetSubscribe(); s != nil {
				m.credit[s.GetNumber()] += int64(s.GetCredit())
			}
			if c := request.GetCredit(); c != nil {
				m.credit[c.GetNumber()] += int64(c.GetBytes())
			}
			m.mu.Unlock()
			if behind.Send(request) != nil {
				return
			}
		}
	})
	for {
		response, err := behind.Recv()
		if err != nil {
			return err
		}
		m.mu.Lock()
		for _, n := range response.GetNumbers() {
			m.sent[n] += int64(proto.Size(&fanfarev1.SubscribeResponse{Frames: response.GetFrames()}))
		}
		m.mu.Unlock()
		if err := call.Send(response); err != nil {
			return err
		}
	}
}

// Many subscriptions come back after their session's connection broke, and each gets what
// it had not had.
func TestManySubscriptionsComeBack(t *testing.T) {
	onEachWay(t, func(t *testing.T, w *world) {
		const subscriptions, streams = 1200, 20
		readers := make([]*reader, subscriptions)
		name := func(i int) clientlib.Stream { return stream(fmt.Sprint("many ", i%streams)) }
		for i := range readers {
			readers[i] = w.subscribe(name(i), clientlib.Oldest())
		}
		for _, r := range readers {
			until[*clientlib.CaughtUp](r)
		}
		w.proxy.Reset()
		for i := range streams {
			publish(t, w.direct, frame(name(i), fmt.Sprint(i)))
		}
		for i, r := range readers {
			if got := r.frames(1); got[0] != fmt.Sprint(i%streams) {
				t.Fatalf("subscription %d got %q", i, got)
			}
		}
		for _, r := range readers {
			r.Close()
		}
		eventually(t, "the server has no subscription", func() bool { return w.replica.Hub.Stats().Subscribers == 0 })
	})
}

// sessionScript plays a Session by hand.
type sessionScript struct {
	t    *testing.T
	call fanfarev1.FanfareService_SessionServer
}

// playSession returns a client whose sessions are played by a function, one after another.
func playSession(t *testing.T, play func(s *sessionScript) error, options ...clientlib.Option) *clientlib.Client {
	f := &fakeServer{session: func(call fanfarev1.FanfareService_SessionServer) error {
		return play(&sessionScript{t: t, call: call})
	}}
	return newClient(t, []string{f.start(t)}, append(options, clientlib.WithSession())...)
}

// next returns the next request that is no credit.
func (s *sessionScript) next() *fanfarev1.SessionRequest {
	for {
		r, err := s.call.Recv()
		if err != nil {
			return &fanfarev1.SessionRequest{}
		}
		if r.GetCredit() == nil {
			return r
		}
	}
}

func (s *sessionScript) frame(number uint32, sequence uint64) {
	s.send(&fanfarev1.SessionResponse{Numbers: []uint32{number}, Frames: []*fanfarev1.Frame{
		{Position: &fanfarev1.Position{Epoch: 7, Sequence: sequence}, Payload: fmt.Append(nil, sequence)},
	}})
}

func (s *sessionScript) subscribed(number uint32, after uint64) {
	s.send(&fanfarev1.SessionResponse{Numbers: []uint32{number}, Notice: &fanfarev1.SessionResponse_Subscribed{
		Subscribed: &fanfarev1.Subscribed{ResumeAfter: &fanfarev1.Position{Epoch: 7, Sequence: after}, Resumed: true},
	}})
}

func (s *sessionScript) ended(number uint32, e *fanfarev1.Error) {
	s.send(&fanfarev1.SessionResponse{Numbers: []uint32{number}, Notice: &fanfarev1.SessionResponse_Ended{Ended: &fanfarev1.Ended{Error: e}}})
}

func (s *sessionScript) send(r *fanfarev1.SessionResponse) {
	if err := s.call.Send(r); err != nil {
		s.t.Errorf("send %v: %v", r, err)
	}
}

// What ends one subscription of a session for a while has it subscribe again under another
// number, after its position; what ends it for good ends it; its siblings see neither.
func TestEndedEndsOneSubscription(t *testing.T) {
	t.Parallel()
	client := playSession(t, func(s *sessionScript) error {
		numbers := map[string]uint32{}
		for range 3 {
			r := s.next().GetSubscribe()
			numbers[r.GetRequest().GetScope()] = r.GetNumber()
			s.subscribed(r.GetNumber(), 0)
			s.frame(r.GetNumber(), 1)
		}
		s.ended(numbers["slow"], &fanfarev1.Error{
			Code: int32(codes.ResourceExhausted), Reason: fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER,
		})
		s.ended(numbers["bad"], &fanfarev1.Error{Code: int32(codes.PermissionDenied)})
		again := s.next().GetSubscribe()
		if again.GetRequest().GetAfter().GetSequence() != 1 || again.GetNumber() == numbers["good"] {
			t.Errorf("the next request is %v", again)
		}
		s.subscribed(again.GetNumber(), 1)
		s.frame(again.GetNumber(), 2)
		s.frame(numbers["good"], 2)
		s.next()
		return nil
	})
	good := read(t, client.Subscribe(t.Context(), stream("good"), clientlib.Oldest()))
	slow := read(t, client.Subscribe(t.Context(), stream("slow"), clientlib.Oldest()))
	bad := read(t, client.Subscribe(t.Context(), stream("bad"), clientlib.Oldest()))
	var e *clientlib.Error
	if err := bad.ends(); !errors.As(err, &e) || e.Code != codes.PermissionDenied {
		t.Errorf("the bad one: %v", err)
	}
	slow.expect("subscribed after 0, resumed true", "1 1", "interrupted", "subscribed after 1, resumed true", "2 2")
	good.expect("subscribed after 0, resumed true", "1 1", "2 2")
}

// What a session brings for a number whose subscription was closed is for nobody, and the
// number is not used again before Unsubscribed.
func TestFramesAfterCloseAreForNobody(t *testing.T) {
	t.Parallel()
	client := playSession(t, func(s *sessionScript) error {
		first := s.next().GetSubscribe().GetNumber()
		s.subscribed(first, 0)
		s.frame(first, 1)
		if got := s.next().GetUnsubscribe().GetNumber(); got != first {
			t.Errorf("unsubscribes %d, want %d", got, first)
		}
		s.frame(first, 2)
		second := s.next().GetSubscribe().GetNumber()
		if second == first {
			t.Errorf("number %d is used again before Unsubscribed", second)
		}
		s.frame(first, 3)
		s.send(&fanfarev1.SessionResponse{Numbers: []uint32{first}, Notice: &fanfarev1.SessionResponse_Unsubscribed{Unsubscribed: &fanfarev1.Unsubscribed{}}})
		s.subscribed(second, 1)
		s.frame(second, 2)
		s.next()
		return nil
	})
	r := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest()))
	r.expect("subscribed after 0, resumed true", "1 1")
	r.Close()
	again := read(t, client.Subscribe(t.Context(), stream(""), clientlib.After(r.Position())))
	again.expect("subscribed after 1, resumed true", "2 2")
}

// A hole in one subscription of a session has that one subscribe again.
func TestHoleInASession(t *testing.T) {
	t.Parallel()
	client := playSession(t, func(s *sessionScript) error {
		first := s.next().GetSubscribe().GetNumber()
		s.subscribed(first, 0)
		s.frame(first, 1)
		s.frame(first, 3)
		if got := s.next().GetUnsubscribe().GetNumber(); got != first {
			t.Errorf("unsubscribes %d, want %d", got, first)
		}
		again := s.next().GetSubscribe()
		if got := again.GetRequest().GetAfter().GetSequence(); got != 1 {
			t.Errorf("asks for what follows %d", got)
		}
		s.subscribed(again.GetNumber(), 1)
		s.frame(again.GetNumber(), 2)
		s.next()
		return nil
	})
	r := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest()))
	r.expect("subscribed after 0, resumed true", "1 1", "interrupted", "subscribed after 1, resumed true", "2 2")
}

// Closing says when to come back, and a session does not come sooner. A token that the
// server refuses is replaced once.
func TestSessionHonoursClosingAndTokens(t *testing.T) {
	t.Parallel()
	const asked = 300 * time.Millisecond
	var ended time.Time
	source := &tokens{}
	sessions := 0
	client := playSession(t, func(s *sessionScript) error {
		sessions++
		switch sessions {
		case 1:
			if got := sentToken(s.call.Context()); got != "Bearer token 0" {
				t.Errorf("the token is %q", got)
			}
			return refusal(codes.Unauthenticated, "", 0)
		case 2:
			if got := sentToken(s.call.Context()); got != "Bearer token 1" {
				t.Errorf("the token is %q", got)
			}
			s.subscribed(s.next().GetSubscribe().GetNumber(), 0)
			closing := &fanfarev1.Closing{RetryIn: durationpb.New(asked)}
			s.send(&fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Closing{Closing: closing}})
			ended = time.Now()
			return refusal(codes.Unavailable, "DRAINING", 0)
		default:
			if away := time.Since(ended); away < asked {
				t.Errorf("came back after %s", away)
			}
			number := s.next().GetSubscribe().GetNumber()
			s.subscribed(number, 0)
			s.frame(number, 1)
			s.next()
			return nil
		}
	}, clientlib.WithTokenSource(source.token))
	r := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest()))
	if got := r.frames(1); got[0] != "1" || source.fetched != 1 {
		t.Errorf("got %q with %d new tokens", got, source.fetched)
	}
}

// Symptom: an edge whose token did not allow a stream went on with it for hours after its
// file had one that does. Cause: a session looked for another token near the end of its own
// only. A source that has no other one is asked, and the session left alone.
func TestSessionTakesAnotherTokenWhenOneDoesNotAllowAStream(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	token, asked := "narrow", 0
	source := func(_ context.Context, refresh bool) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if refresh {
			t.Error("a token that is valid is to be replaced by a new one")
		}
		asked++
		return token, nil
	}
	askedTwice := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return asked >= 2
	}
	shown := make(chan struct{})
	client := playSession(t, func(s *sessionScript) error {
		for range 2 {
			s.ended(s.next().GetSubscribe().GetNumber(), &fanfarev1.Error{Code: int32(codes.PermissionDenied)})
		}
		if s.next().GetAuthenticate().GetToken() != "wide" {
			return nil // the test waits for it in vain
		}
		close(shown)
		s.send(&fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Authenticated{Authenticated: &fanfarev1.Authenticated{}}})
		number := s.next().GetSubscribe().GetNumber()
		s.subscribed(number, 0)
		s.frame(number, 1)
		s.next()
		return nil
	}, clientlib.WithTokenSource(source))
	denied := func() {
		t.Helper()
		var e *clientlib.Error
		if err := read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest())).ends(); !errors.As(err, &e) || e.Code != codes.PermissionDenied {
			t.Errorf("ended with %v", err)
		}
	}
	denied()
	eventually(t, "the source is asked", askedTwice)
	mu.Lock()
	token = "wide"
	mu.Unlock()
	denied()
	select {
	case <-shown:
	case <-time.After(patience):
		t.Fatal("the session does not show the other token")
	}
	read(t, client.Subscribe(t.Context(), stream(""), clientlib.Oldest())).frames(1)
}
