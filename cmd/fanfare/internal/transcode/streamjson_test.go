package transcode

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// subscribed opens a stream in JSON and returns its body.
func (w *world) subscribed(t *testing.T) io.Reader {
	t.Helper()
	request := []byte(`{"channel": "c"}`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+fanfarev1.FanfareService_Subscribe_FullMethodName, bytes.NewReader(append(envelope(len(request)), request...)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/connect+json; charset=UTF-8")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "application/connect+json" {
		t.Fatalf("status %d, %v", answer.StatusCode, answer.Header)
	}
	return answer.Body
}

// nextMessage reads a message of a stream in JSON, and its flags.
func nextMessage(t *testing.T, in io.Reader) (flags byte, message []byte) {
	t.Helper()
	head := make([]byte, envelopeBytes)
	if _, err := io.ReadFull(in, head); err != nil {
		t.Fatal(err)
	}
	message = make([]byte, int(head[1])<<24|int(head[2])<<16|int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(in, message); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(message) {
		t.Fatalf("no JSON: %.100q", message)
	}
	return head[0], message
}

const largeBytes = 256 << 10

// largeFrame is a response with a frame of largeBytes.
func largeFrame() *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{{Payload: make([]byte, largeBytes)}}}
}

// Symptom: a subscription in JSON held the last frame that it had been sent, twice, for as
// long as none followed: 2.5 MiB of one of 1 MiB. Cause: the transcoder keeps a message until
// the next one comes.
func TestSubscriptionsAtRestHoldNothing(t *testing.T) {
	w := newWorld(t, &upstreamServer{subscribe: func(stream grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
		if err := stream.Send(largeFrame()); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}}, Config{})
	const streams = 20
	before := heapBytes()
	for range streams {
		if _, message := nextMessage(t, w.subscribed(t)); len(message) < largeBytes/3*4 {
			t.Fatalf("a frame came as %d bytes", len(message))
		}
	}
	if grown := heapBytes() - before; grown > streams*largeBytes*3/4 {
		t.Errorf("%d subscriptions at rest that were sent %d KiB each hold %d KiB", streams, largeBytes>>10, grown>>10)
	}
}

// What is held of large frames for clients that are slow to take them is bounded: who finds
// no room is told to go on from the last position. Small frames need none.
func TestLargeAnswersInJSONAreBounded(t *testing.T) {
	w := newWorld(t, &upstreamServer{subscribe: func(stream grpc.ServerStreamingServer[fanfarev1.SubscribeResponse]) error {
		for _, response := range []*fanfarev1.SubscribeResponse{{}, largeFrame(), {}} {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		return nil
	}}, Config{WriteTimeout: patience})
	in := w.subscribed(t)
	for range 3 {
		if flags, _ := nextMessage(t, in); flags != 0 {
			t.Fatal("the stream ended early")
		}
	}
	if flags, end := nextMessage(t, in); flags != 2 || strings.Contains(string(end), "error") {
		t.Errorf("the end: %d, %.200s", flags, end)
	}
	w.handler.config.WriteTimeout /= 100
	if !w.handler.answers.all.TryAcquire(maxAnswersBytes) {
		t.Fatal("an answer that has ended holds memory")
	}
	in = w.subscribed(t)
	if flags, _ := nextMessage(t, in); flags != 0 {
		t.Fatal("the small message did not come")
	}
	if flags, end := nextMessage(t, in); flags != 2 || !strings.Contains(string(end), `"code":"unavailable"`) || !strings.Contains(string(end), "last position") {
		t.Errorf("without room: %d, %.200s", flags, end)
	}
	w.handler.answers.all.Release(maxAnswersBytes)
}

// The server may have sent all, and ended well, when a message is lost on its way to the
// client: that is told, but not in place of an error of the server's own.
func TestLossIsToldAtAnEndThatIsWell(t *testing.T) {
	ctx, fault := withStreamFault(t.Context())
	_ = fault.set(codes.Unavailable, reasonLimit, "lost")
	for sent, want := range map[string]string{"0": "14", "7": "7"} {
		response := &http.Response{
			Body: http.NoBody, Trailer: http.Header{"Grpc-Status": {sent}}, Request: (&http.Request{}).WithContext(ctx),
		}
		if err := new(upstream).endInOrder(response); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(response.Body); err != nil || response.Trailer.Get("Grpc-Status") != want {
			t.Errorf("sent %s: %v, %v", sent, response.Trailer, err)
		}
	}
}

// An answer comes in pieces that end anywhere.
func TestAnswersInJSONComeInPieces(t *testing.T) {
	var wire []byte
	for _, response := range []*fanfarev1.SubscribeResponse{{}, {Frames: []*fanfarev1.Frame{{Payload: []byte("payload")}}}, {}} {
		message, err := proto.Marshal(response)
		if err != nil {
			t.Fatal(err)
		}
		wire = append(append(wire, envelope(len(message))...), message...)
	}
	wire = append(wire, 2, 0, 0, 0, 2, '{', '}')
	_, kind := methodTypes(fanfarev1.FanfareService_Subscribe_FullMethodName)
	w := newWorld(t, &upstreamServer{}, Config{})
	var want string
	for piece := len(wire); piece > 0; piece-- {
		held := w.handler.answers.budget(&http.Request{}, patience)
		out := httptest.NewRecorder()
		out.Header().Set("Content-Type", "application/connect+proto")
		answer := &jsonAnswer{
			ResponseWriter: out, media: "application/connect+json", kind: kind, json: w.handler.json, held: held,
			take: func(bytes int64) error { return held.take(context.Background(), bytes) },
		}
		for rest := wire; len(rest) > 0; {
			n := min(piece, len(rest))
			if _, err := answer.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		held.giveBack()
		if want == "" {
			want = out.Body.String()
		}
		if out.Body.String() != want || !strings.Contains(want, "cGF5bG9hZA==") || !strings.HasSuffix(want, "\x02\x00\x00\x00\x02{}") || out.Header().Get("Content-Type") != "application/connect+json" {
			t.Fatalf("in pieces of %d bytes: %v %q", piece, out.Header(), out.Body.String())
		}
	}
}

// Symptom: a stream that was flushed before its first message said that it is in Protocol
// Buffers, and then came in JSON. Cause: the flush sent the header as the server had it.
func TestAnswersInJSONSaySoWhenFlushedFirst(t *testing.T) {
	out := httptest.NewRecorder()
	out.Header().Set("Content-Type", "application/connect+proto")
	answer := &jsonAnswer{ResponseWriter: out, media: "application/connect+json"}
	if answer.Flush(); !out.Flushed || out.Result().Header.Get("Content-Type") != "application/connect+json" {
		t.Errorf("flushed: %t, %v", out.Flushed, out.Result().Header)
	}
}
