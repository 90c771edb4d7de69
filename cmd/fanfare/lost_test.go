package main

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// A server that goes away after it was asked is not one that is not there, and
// what was asked of it may have been done.
func TestLostConnections(t *testing.T) {
	s := &scriptedServer{}
	s.publish = func(ctx context.Context) (*fanfarev1.PublishResponse, error) {
		s.hangUp(ctx, nil)
		return nil, nil
	}
	s.close = func(ctx context.Context) (*fanfarev1.CloseStreamResponse, error) {
		s.hangUp(ctx, nil)
		return nil, nil
	}
	s.subscribe = func(_ *fanfarev1.SubscribeRequest, stream fanfarev1.FanfareService_SubscribeServer) error {
		notice := &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{
			CaughtUp: &fanfarev1.CaughtUp{Position: &fanfarev1.Position{Epoch: 7, Sequence: 3}},
		}}
		err := stream.Send(notice)
		s.hangUp(stream.Context(), notice)
		return err
	}
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"publish":          {[]string{"publish", "c", "s", "--data", "x"}, []string{"the frame may have been stored", "a retry may store it twice", "--key"}},
		"publish with key": {[]string{"publish", "c", "s", "--data", "x", "--key", "k"}, []string{"the frame may have been stored; retry with the same --key to learn it"}},
		"close":            {[]string{"close", "c", "s"}, []string{"may have been closed"}},
		"subscribe":        {[]string{"subscribe", "c", "s"}, []string{"continue with --from 7-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			s.start(t)
			r := command(t, "", append(c.args, "--server", s.address)...)
			for _, want := range append(c.want, "the connection to "+s.address+" was lost") {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("stderr %q does not contain %q", r.stderr, want)
				}
			}
			if r.code != exitFailed || strings.Contains(r.stderr, "EOF") || strings.Contains(r.stderr, "fanfare serve") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// The same with a real server that is killed.
func TestKilledServer(t *testing.T) {
	p := startEmbeddedProcess(t)
	subscriber := start(t, nil, "subscribe", "c", "s", "--server", p.address)
	subscriber.stderr.await(t, "caught up")
	lines := newLoad()
	t.Cleanup(lines.stop)
	publisher := start(t, lines, "publish", "c", "s", "--lines", "--server", p.address)
	publisher.stdout.await(t, `-3\n`)
	p.signal(syscall.SIGKILL)
	for _, r := range []*running{subscriber, publisher} {
		if code := r.end(); code != exitFailed {
			t.Errorf("exit code %d", code)
		}
		r.stderr.await(t, "the connection to "+p.address+" was lost")
	}
	subscriber.stderr.await(t, `continue with --from \d+-\d+\n`)
	publisher.stderr.await(t, `lines 1-\d+ were stored; .* may have been stored; what follows line \d+ was not sent\n`)
}

// A publish that was not answered in time may have been stored; one that never
// reached a server was not.
func TestLateAnswers(t *testing.T) {
	s := (&scriptedServer{publish: func(ctx context.Context) (*fanfarev1.PublishResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}).start(t)
	// It is reached in time, also on a busy machine.
	r := command(t, "", "publish", "c", "s", "--data", "x", "--key", "k", "--timeout", "2s", "--server", s.address)
	want := "did not answer in time (--timeout 2s); the frame may have been stored; retry with the same --key to learn it\n"
	if r.code != exitFailed || !strings.HasSuffix(r.stderr, want) {
		t.Errorf("%+v, want %q", r, want)
	}

	// The kernel accepts and nobody speaks.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	r = command(t, "", "publish", "c", "s", "--data", "x", "--timeout", "100ms", "--server", mute.Addr().String())
	if r.code != exitFailed || !strings.Contains(r.stderr, "no connection to "+mute.Addr().String()+" was made in time (--timeout 100ms)") || strings.Contains(r.stderr, "stored") {
		t.Errorf("%+v", r)
	}
}

// What a balancer answers for a server that it does not reach is not a lost
// connection.
func TestUnavailableByABalancer(t *testing.T) {
	s := (&scriptedServer{publish: func(context.Context) (*fanfarev1.PublishResponse, error) {
		return nil, status.Error(codes.Unavailable, "no healthy upstream")
	}}).start(t)
	r := command(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	if r.code != exitFailed || r.stderr != "fanfare publish: no healthy upstream (Unavailable)\n" {
		t.Errorf("%+v", r)
	}
}
