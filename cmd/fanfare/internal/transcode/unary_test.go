package transcode

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Symptom: a publish committed, and its answer could not be written any more. Cause: the
// time of the call began when its request had come, that of the answer with the header.
func TestTimeOfACallBeginsWithItsHeader(t *testing.T) {
	const whole, slow = 2 * time.Second, 700 * time.Millisecond
	left := make(chan time.Duration, 1)
	w := newWorld(t, &upstreamServer{getStream: func(ctx context.Context) (*fanfarev1.GetStreamResponse, error) {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return nil, status.Error(codes.NotFound, "none")
	}}, Config{UnaryTimeout: whole})
	body, send := io.Pipe()
	first := make(chan struct{})
	go func() {
		_, _ = io.WriteString(send, `{"channel": `)
		close(first)
		time.AfterFunc(slow, func() {
			_, _ = io.WriteString(send, `"c"}`)
			_ = send.Close()
		})
	}()
	code, p := w.ask(t, "/fanfare.v1.FanfareService/GetStream", body)
	<-first
	if code != http.StatusNotFound || p.Code != "not_found" {
		t.Fatalf("status %d, %+v", code, p)
	}
	if got := <-left; got > whole-slow {
		t.Errorf("a call whose request took %s was given %s of %s", slow, got, whole)
	}
}

// Whose time is over before the server was asked is told that nothing was sent.
func TestCallsWhoseTimeIsOverBeforeTheyAreSent(t *testing.T) {
	w := newWorld(t, &upstreamServer{}, Config{UnaryTimeout: 200 * time.Millisecond})
	body, send := io.Pipe()
	defer send.Close()
	go func() { _, _ = io.WriteString(send, `{"channel": `) }() // and no more
	if code, p := w.ask(t, "/v1/close", body); code != http.StatusRequestTimeout || p.Code != "deadline_exceeded" || !strings.Contains(p.Message, "nothing was sent") {
		t.Errorf("a request that does not come: status %d, %+v", code, p)
	}
	if err := w.handler.calls.Acquire(t.Context(), maxUnaryCalls); err != nil {
		t.Fatal(err)
	}
	if code, p := w.ask(t, "/v1/close", strings.NewReader("{}")); code != http.StatusGatewayTimeout || p.Code != "deadline_exceeded" || !strings.Contains(p.Message, "nothing was sent") {
		t.Errorf("without a place: status %d, %+v", code, p)
	}
	w.handler.calls.Release(maxUnaryCalls)
	if code, p := w.ask(t, "/v1/close", strings.NewReader("{}")); code != http.StatusNotImplemented {
		t.Errorf("with a place: status %d, %+v", code, p)
	}
}
