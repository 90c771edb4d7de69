package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service"
)

const patience = 20 * time.Second

// startServer runs the command serve, and returns a client of it.
func startServer(t *testing.T, args ...string) fanfarev1.FanfareServiceClient {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	out, stdout := io.Pipe()
	ended := make(chan int, 1)
	var stderr strings.Builder
	go func() {
		ended <- run(ctx, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...), stdout, &stderr)
		stdout.Close()
	}()
	t.Cleanup(func() {
		stop()
		if code := <-ended; code != 0 {
			t.Errorf("serve ended with %d: %s", code, stderr.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, found := strings.CutPrefix(strings.TrimSpace(line), "serving on ")
	if err != nil || !found {
		t.Fatalf("serve began with %q (%v)", line, err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return fanfarev1.NewFanfareServiceClient(conn)
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func publish(t *testing.T, c fanfarev1.FanfareServiceClient, scope string, payloads ...string) {
	t.Helper()
	for _, p := range payloads {
		_, err := c.Publish(patient(t), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c", Scope: scope, Payload: []byte(p)}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// follower is a Subscribe call that has been acknowledged.
type follower struct {
	t          *testing.T
	call       grpc.ServerStreamingClient[fanfarev1.SubscribeResponse]
	cancel     context.CancelFunc
	subscribed *fanfarev1.Subscribed
}

func follow(t *testing.T, c fanfarev1.FanfareServiceClient, r *fanfarev1.SubscribeRequest) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(patient(t))
	call, err := c.Subscribe(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, call: call, cancel: cancel}
	first := f.next()
	if f.subscribed = first.GetSubscribed(); f.subscribed == nil {
		t.Fatalf("the first response is %v", first)
	}
	return f
}

func (f *follower) next() *fanfarev1.SubscribeResponse {
	f.t.Helper()
	m, err := f.call.Recv()
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

// expect takes responses until it has the frames "SEQUENCE PAYLOAD", or "caught
// up" and then the sequence.
func (f *follower) expect(want ...string) {
	f.t.Helper()
	var got []string
	for len(got) < len(want) {
		m := f.next()
		for _, frame := range m.GetFrames() {
			got = append(got, fmt.Sprint(frame.GetPosition().GetSequence(), " ", string(frame.GetPayload())))
		}
		if m.GetCaughtUp() != nil {
			got = append(got, fmt.Sprint("caught up ", m.GetCaughtUp().GetPosition().GetSequence()))
		}
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		f.t.Fatalf("got %q, want %q", got, want)
	}
}

func onBoth(t *testing.T, test func(t *testing.T, mode string)) {
	for _, mode := range []string{"bare", "naive"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			test(t, mode)
		})
	}
}

func TestSubscriptionStartsWhereItAsks(t *testing.T) {
	onBoth(t, func(t *testing.T, mode string) {
		c := startServer(t, "--mode", mode, "--backlog", "3")
		publish(t, c, "s", "a", "b", "c", "d", "e", "f", "g", "h")
		const channel, scope = "c", "s"
		starts := []struct {
			request *fanfarev1.SubscribeRequest
			after   uint64
			want    []string
		}{
			{&fanfarev1.SubscribeRequest{}, 5, []string{"6 f", "7 g", "8 h", "caught up 8"}},
			{&fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Oldest{Oldest: true}}, 5, []string{"6 f", "7 g", "8 h", "caught up 8"}},
			{&fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Live{Live: true}}, 8, []string{"caught up 8"}},
			{&fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Last{Last: 2}}, 6, []string{"7 g", "8 h", "caught up 8"}},
			{&fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_Last{Last: 99}}, 5, []string{"6 f", "7 g", "8 h", "caught up 8"}},
			{&fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_After{After: &fanfarev1.Position{Sequence: 7}}}, 7, []string{"8 h", "caught up 8"}},
			{&fanfarev1.SubscribeRequest{Start: &fanfarev1.SubscribeRequest_After{After: &fanfarev1.Position{Sequence: 12}}}, 8, []string{"caught up 8"}},
		}
		var followers []*follower
		for _, start := range starts {
			start.request.Channel, start.request.Scope = channel, scope
			f := follow(t, c, start.request)
			if got := f.subscribed; got.GetHead().GetSequence() != 8 || got.GetOldest() != 6 || got.GetResumeAfter().GetSequence() != start.after {
				t.Errorf("%v: subscribed with %v", start.request, got)
			}
			f.expect(start.want...)
			followers = append(followers, f)
		}
		publish(t, c, "other", "x")
		publish(t, c, scope, "i")
		for _, f := range followers {
			f.expect("9 i")
		}
	})
}

func TestStreamThatDoesNotExistIsEmpty(t *testing.T) {
	onBoth(t, func(t *testing.T, mode string) {
		f := follow(t, startServer(t, "--mode", mode), &fanfarev1.SubscribeRequest{Channel: "c"})
		if got := f.subscribed; got.GetHead().GetEpoch() != 0 || got.GetOldest() != 1 || got.GetResumeAfter().GetEpoch() != 0 {
			t.Errorf("subscribed with %v", got)
		}
		f.expect("caught up 0")
	})
}

// Subscriptions begin and end while frames are published: each is sent every
// frame after its start, once, in order.
func TestNoFrameIsLostWhereReplayMeetsLive(t *testing.T) {
	onBoth(t, func(t *testing.T, mode string) {
		const frames = 1000
		c := startServer(t, "--mode", mode, "--backlog", fmt.Sprint(frames), "--buffer", "2")
		done := make(chan error, 1)
		go func() {
			var batch []*fanfarev1.NewFrame
			for range 20 {
				batch = append(batch, &fanfarev1.NewFrame{Channel: "c", Payload: make([]byte, 100)})
			}
			for range frames / len(batch) {
				if _, err := c.PublishBatch(context.Background(), &fanfarev1.PublishBatchRequest{Frames: batch}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for i, last := 0, uint64(0); last < frames; i++ {
			f := follow(t, c, &fanfarev1.SubscribeRequest{Channel: "c"})
			last = 0
			for last < min(frames, uint64(100*i)) {
				for _, frame := range f.next().GetFrames() {
					last++
					if got := frame.GetPosition().GetSequence(); got != last {
						t.Fatalf("frame %d instead of %d", got, last)
					}
				}
			}
			f.cancel()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// A publisher waits for a subscription that takes nothing, and no longer than
// until it leaves.
func TestPublisherWaitsForASubscriptionThatIsFull(t *testing.T) {
	onBoth(t, func(t *testing.T, mode string) {
		c := startServer(t, "--mode", mode, "--buffer", "1")
		slow := follow(t, c, &fanfarev1.SubscribeRequest{Channel: "c"})
		ctx, give := context.WithTimeout(patient(t), time.Second)
		defer give()
		frame := &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{Channel: "c", Payload: make([]byte, 512<<10)}}
		published, err := 0, error(nil)
		for err == nil && published < 1000 {
			if _, err = c.Publish(ctx, frame); err == nil {
				published++
			}
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("%d frames were taken for a subscriber that reads nothing (%v)", published, err)
		}
		slow.cancel()
		publish(t, c, "", "after it left")
	})
}

// A reference with smaller frames would compare different work.
func TestFrameIsTheProductsToTheByte(t *testing.T) {
	for _, mode := range []string{"bare", "naive"} {
		c := startServer(t, "--mode", mode)
		f := follow(t, c, &fanfarev1.SubscribeRequest{Channel: "c"})
		_, err := c.Publish(patient(t), &fanfarev1.PublishRequest{Frame: &fanfarev1.NewFrame{
			Channel: "c", Payload: make([]byte, 200), ContentType: "text/plain", EventType: "e", Headers: map[string]string{"h": "v"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		m := f.next()
		for m.GetFrames() == nil {
			m = f.next()
		}
		got := m.GetFrames()[0]
		product := service.EncodeFrame(backlog.Frame{
			Position: backlog.Position{Epoch: got.GetPosition().GetEpoch(), Sequence: 1}, Created: got.GetCreated().AsTime(),
			Payload: make([]byte, 200), ContentType: "text/plain", EventType: "e", Headers: map[string]string{"h": "v"},
		})
		reference, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil || string(reference) != string(product) {
			t.Errorf("%s: the frame's bytes are\n%x, and the product's\n%x (%v)", mode, reference, product, err)
		}
	}
}

func TestWhatItCannotDoIsRefused(t *testing.T) {
	c := startServer(t)
	sequence := uint64(1)
	for _, f := range []*fanfarev1.NewFrame{
		nil, {}, {Channel: "c", Ephemeral: true}, {Channel: "c", IdempotencyKey: "k"}, {Channel: "c", ExpectedSequence: &sequence},
	} {
		_, one := c.Publish(patient(t), &fanfarev1.PublishRequest{Frame: f})
		_, batch := c.PublishBatch(patient(t), &fanfarev1.PublishBatchRequest{Frames: []*fanfarev1.NewFrame{f}})
		for _, err := range []error{one, batch} {
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.Unimplemented {
				t.Errorf("publishing %v: %v", f, err)
			}
		}
	}
	call, err := c.Subscribe(patient(t), &fanfarev1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); status.Code(err) != codes.InvalidArgument || errors.Is(err, io.EOF) {
		t.Errorf("subscribing to no channel: %v", err)
	}
	for _, args := range [][]string{{"serve", "--mode", "best"}, {"serve", "--backlog", "-1"}, {"serve", "--listen", "nowhere"}, {"serve", "extra"}, {"nothing"}} {
		if code := run(context.Background(), args, io.Discard, io.Discard); code != 1 {
			t.Errorf("limits %s ended with %d", strings.Join(args, " "), code)
		}
	}
}
