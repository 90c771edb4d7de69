package transcode

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// lateServer answers what is published when nothing more comes.
type lateServer struct {
	fanfarev1.UnimplementedFanfareServiceServer
	ended  chan error // how the requests have ended
	answer func()     // is called before
}

func (s lateServer) PublishStream(call grpc.BidiStreamingServer[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse]) error {
	var admitted []uint64
	for {
		request, err := call.Recv()
		if err == nil {
			admitted = append(admitted, request.GetNumber())
			continue
		}
		s.ended <- err
		if !errors.Is(err, io.EOF) {
			return err
		}
		s.answer()
		for _, number := range admitted {
			if err := call.Send(&fanfarev1.PublishStreamResponse{Number: number}); err != nil {
				return err
			}
		}
		return nil
	}
}

// messageFault is what can be wrong with a message, and how that is told.
type messageFault struct {
	message      io.Reader
	code, reason string
}

func messageFaults(w *world) map[string]messageFault {
	more, _ := io.Pipe()
	goesOn := func(begin []byte, rest io.Reader) io.Reader { return io.MultiReader(bytes.NewReader(begin), rest) }
	return map[string]messageFault{
		"unreadable": {bytes.NewReader(append(envelope(1), '{')), "invalid_argument", reasonField},
		"cut off":    {bytes.NewReader(append(envelope(10), '{')), "invalid_argument", reasonField},
		"too large":  {goesOn(envelope(int(w.handler.maxBodyBytes)+1), more), "invalid_argument", reasonField},
		"marked":     {goesOn([]byte{2, 0, 0, 0, 0}, more), "invalid_argument", reasonField},
		"unfinished": {goesOn(envelope(10), more), "deadline_exceeded", ""},
		"no memory":  {goesOn(envelope(int(w.handler.maxBodyBytes)), endless{}), "unavailable", reasonLimit},
	}
}

// endless is a message that goes on.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte{' '}, len(p))), nil }

// Symptom: a client whose message could not be read was told INVALID_ARGUMENT or
// DEADLINE_EXCEEDED, and nothing of those before it, which were stored. Cause: the call was
// reset, with the answers that were still to come.
//
// What came before is answered, and then what is wrong is told.
func TestMessagesBeforeAFaultAreAnswered(t *testing.T) {
	server := lateServer{ended: make(chan error, 100), answer: func() {}}
	w := streamsWorld(t, server, Config{UnaryTimeout: 700 * time.Millisecond}, 100*time.Millisecond)
	w.handler.requests = newMemory(1 << 20)
	for _, before := range []int{0, 2} {
		for name, fault := range messageFaults(w) {
			good := bytes.Repeat(append(envelope(2), "{}"...), before)
			got := await(t, name, w.stream(t, t.Context(), fanfarev1.FanfareService_PublishStream_FullMethodName, io.MultiReader(bytes.NewReader(good), fault.message)))
			in := strings.NewReader(got.text)
			answered := 0
			for answered < before {
				if flags, _ := nextMessage(t, in); flags != 0 {
					break
				}
				answered++
			}
			code, reason, message := streamed{text: got.text[len(got.text)-in.Len():]}.told(t)
			if answered != before || code != fault.code || reason != fault.reason || !strings.Contains(message, "sent to the server") {
				t.Errorf("%s, after %d messages: %d were answered, then was told %q %q %q", name, before, answered, code, reason, message)
			}
		}
	}
}

// Symptom: what followed an empty message on a stream was neither stored nor answered, and
// the stream ended as if all were well. Cause: the transcoder takes such a message for the
// end of the requests.
func TestMessagesAfterAnEmptyOneAreHandedOn(t *testing.T) {
	w := streamsWorld(t, lateServer{ended: make(chan error, 1), answer: func() {}}, Config{}, patience)
	var body []byte
	for _, message := range []string{`{}`, `{"number": "7"}`, `{}`, `{"number": "8"}`} {
		body = append(append(body, envelope(len(message))...), message...)
	}
	got := await(t, "the stream", w.stream(t, t.Context(), fanfarev1.FanfareService_PublishStream_FullMethodName, bytes.NewReader(body)))
	in := strings.NewReader(got.text)
	for _, want := range []string{`{"number":"0"}`, `{"number":"7"}`, `{"number":"0"}`, `{"number":"8"}`} {
		if flags, message := nextMessage(t, in); flags != 0 || string(message) != want {
			t.Fatalf("instead of the answer %s came %s", want, message)
		}
	}
	if flags, end := nextMessage(t, in); flags != 2 || strings.Contains(string(end), "error") {
		t.Errorf("the end: %d, %s", flags, end)
	}
}

// A fault says nothing of what came before it if the server's answers are lost, too.
func TestFaultsOfStreamsThatBreakAreInDoubt(t *testing.T) {
	away := make(chan struct{})
	server := lateServer{ended: make(chan error, 1), answer: func() { <-away }}
	w := streamsWorld(t, server, Config{UnaryTimeout: patience}, patience)
	body := append(append(envelope(2), "{}"...), append(envelope(1), '{')...)
	ended := w.stream(t, t.Context(), fanfarev1.FanfareService_PublishStream_FullMethodName, bytes.NewReader(body))
	if err := <-server.ended; !errors.Is(err, io.EOF) {
		t.Errorf("the requests ended with %v", err)
	}
	(<-w.conns).Close()
	got := await(t, "the stream", ended)
	close(away)
	if code, reason, message := got.told(t); code != "unknown" || reason != reasonUnknown || !strings.Contains(message, "cannot be read") {
		t.Errorf("told %q %q %q", code, reason, message)
	}
}
