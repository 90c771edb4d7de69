package transcode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/gen/openapi"
)

// Symptom: a call whose client had given it a deadline ended as UNAVAILABLE when that had
// passed, a publish, too, of which UNAVAILABLE says that nothing was stored. Cause: the
// server resets such a call, which was taken for a lost connection.
func TestClientsDeadlines(t *testing.T) {
	w := newWorld(t, &upstreamServer{
		publish: func(ctx context.Context) { <-ctx.Done() },
		subscribe: func(stream grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
			<-stream.Context().Done()
			return status.FromContextError(stream.Context().Err()).Err()
		},
	}, Config{})
	for _, c := range []struct{ name, path, media, timeout, value string }{
		{"JSON", "/v1/publish", "application/json", "X-Server-Timeout", "0.1"},
		{"Connect", fanfarev1.FanfareService_Publish_FullMethodName, "application/json", "Connect-Timeout-Ms", "100"},
		{"gRPC-Web", fanfarev1.FanfareService_Publish_FullMethodName, "application/grpc-web+json", "Grpc-Timeout", "100m"},
		{"a stream by Connect", fanfarev1.FanfareService_Subscribe_FullMethodName, "application/connect+json", "Connect-Timeout-Ms", "100"},
		{"a stream by gRPC-Web", fanfarev1.FanfareService_Subscribe_FullMethodName, "application/grpc-web+proto", "Grpc-Timeout", "100000u"},
	} {
		t.Run(c.name, func(t *testing.T) {
			message := []byte("{}")
			if strings.HasSuffix(c.media, "+proto") {
				message = nil
			}
			if isEnvelopedType(c.media) {
				message = append(envelope(len(message)), message...)
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+c.path, bytes.NewReader(message))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", c.media)
			r.Header.Set(c.timeout, c.value)
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			told := string(body) + "Grpc-Status: " + answer.Header.Get("Grpc-Status")
			if !strings.Contains(told, `"code":"deadline_exceeded"`) && !strings.Contains(told, "Grpc-Status: 4") {
				t.Errorf("status %d: %q", answer.StatusCode, told)
			}
		})
	}
}

func TestTimeoutsAsGRPCWritesThem(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second, "00000004m": 4 * time.Millisecond, "5u": 5 * time.Microsecond, "0n": 0,
		"99999999H": math.MaxInt64,
	} {
		if got, ok := grpcTimeout(text); !ok || got != want {
			t.Errorf("%s: %s, %t", text, got, ok)
		}
	}
	for _, text := range []string{"", "1", "S", "1s", "-1S", "+1S", "1.5S", "123456789S", "1 S"} {
		if got, ok := grpcTimeout(text); ok {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// Symptom: a publish whose answer was lost with the connection to the server was told
// UNAVAILABLE, which says that nothing was stored. It is UNAVAILABLE only if no server was
// reached.
func TestPublishesWithoutAnAnswer(t *testing.T) {
	var w *world
	w = newWorld(t, &upstreamServer{publish: func(ctx context.Context) {
		(<-w.conns).Close()
		<-ctx.Done()
	}}, Config{})
	if code, p := w.ask(t, "/v1/publish", strings.NewReader("{}")); p.Code != "unknown" || p.Reason != reasonUnknown {
		t.Errorf("status %d, %+v", code, p)
	}
	away := &world{}
	away.serve(t, Config{
		Dial:   func(context.Context) (net.Conn, error) { return nil, errors.New("it is away") },
		Rules:  openapi.Rules,
		Logger: slog.New(slog.DiscardHandler),
	})
	if code, p := away.ask(t, "/v1/publish", strings.NewReader("{}")); code != http.StatusServiceUnavailable || p.Code != "unavailable" {
		t.Errorf("nobody there: status %d, %+v", code, p)
	}
	going := &world{}
	going.serve(t, Config{
		Dial: func(context.Context) (net.Conn, error) {
			return nil, withReason(codes.Unavailable, "DRAINING", "it goes").Err()
		},
		Rules:  openapi.Rules,
		Logger: slog.New(slog.DiscardHandler),
	})
	if code, p := going.ask(t, "/v1/publish", strings.NewReader("{}")); code != http.StatusServiceUnavailable || p.Reason != "DRAINING" || p.Message != "it goes" {
		t.Errorf("nobody there any more: status %d, %+v", code, p)
	}
}

// A client that hangs up has its call cancelled at the server, whatever it calls by.
func TestHangingUpCancelsTheCall(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	wait := func(ctx context.Context) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
	}
	w := newWorld(t, &upstreamServer{
		publish: wait,
		subscribe: func(stream grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
			wait(stream.Context())
			return nil
		},
	}, Config{})
	for _, c := range []struct{ path, media string }{
		{"/v1/publish", "application/json"},
		{fanfarev1.FanfareService_Publish_FullMethodName, "application/json"},
		{fanfarev1.FanfareService_Publish_FullMethodName, "application/grpc-web+json"},
		{fanfarev1.FanfareService_Subscribe_FullMethodName, "application/connect+json"},
	} {
		message := []byte("{}")
		if isEnvelopedType(c.media) {
			message = append(envelope(len(message)), message...)
		}
		ctx, hangUp := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+c.path, bytes.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", c.media)
		asked := make(chan error, 1)
		go func() {
			answer, err := http.DefaultClient.Do(r)
			if err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
			asked <- err
		}()
		select {
		case <-begun:
		case err := <-asked:
			t.Fatalf("%s, %s: %v", c.path, c.media, err)
		case <-time.After(patience):
			t.Fatalf("%s, %s: the call did not begin", c.path, c.media)
		}
		hangUp()
		<-asked
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: the call ended with %v", c.path, c.media, err)
			}
		case <-time.After(patience / 2): // before the time of a unary call is over
			t.Errorf("%s, %s: the call was not cancelled", c.path, c.media)
			<-ended
		}
	}
}
