package transcode

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/gen/openapi"
)

// readingServer waits for what its clients send.
type readingServer struct {
	fanfarev1.UnimplementedFanfareServiceServer
	came chan struct{}
}

func (s readingServer) Session(call grpc.BidiStreamingServer[fanfarev1.SessionRequest, fanfarev1.SessionResponse]) error {
	_, err := call.Recv()
	return err
}

func (s readingServer) PublishStream(call grpc.BidiStreamingServer[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse]) error {
	for {
		if _, err := call.Recv(); err != nil {
			return err
		}
		s.came <- struct{}{}
	}
}

// streamsWorld is a Handler that speaks HTTP/2, too, and whose requests for memory wait for as
// long as placeTimeout.
func streamsWorld(t *testing.T, server fanfarev1.FanfareServiceServer, config Config, placeTimeout time.Duration) *world {
	t.Helper()
	inside := bufconn.Listen(64 << 10)
	g := grpc.NewServer()
	fanfarev1.RegisterFanfareServiceServer(g, server)
	go func() { _ = g.Serve(inside) }()
	t.Cleanup(g.Stop)
	w := &world{conns: make(chan net.Conn, 100)}
	config.Dial = func(ctx context.Context) (net.Conn, error) {
		conn, err := inside.DialContext(ctx)
		if err == nil {
			w.conns <- conn
		}
		return conn, err
	}
	config.Rules, config.Logger = openapi.Rules, slog.New(slog.DiscardHandler)
	var err error
	if w.handler, err = New(config); err != nil {
		t.Fatal(err)
	}
	w.handler.placeTimeout = placeTimeout
	t.Cleanup(w.handler.Close)
	site := httptest.NewUnstartedServer(w.handler)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	site.Config.Protocols = &protocols
	// Clients hold as much as a frame may have, up to 512 KiB, for each request.
	site.Config.HTTP2 = &http.HTTP2Config{MaxReadFrameSize: 16 << 10}
	site.Start()
	t.Cleanup(site.Close)
	w.url = site.URL
	return w
}

// streamed is the answer to a call in JSON by the Connect protocol.
type streamed struct {
	status int
	text   string // what came at the end
	err    error
}

// stream begins a call, on a connection of its own. Its answer comes when it has ended.
func (w *world) stream(t *testing.T, ctx context.Context, method string, body io.Reader) <-chan streamed {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	conn := &http.Transport{Protocols: &protocols}
	t.Cleanup(conn.CloseIdleConnections)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+method, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/connect+json")
	ended := make(chan streamed, 1)
	go func() {
		answer, err := conn.RoundTrip(r)
		if err != nil {
			ended <- streamed{err: err}
			return
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		ended <- streamed{answer.StatusCode, string(text), err}
	}()
	return ended
}

// told is the code, the reason and the message that the call ended with.
func (s streamed) told(t *testing.T) (code, reason, message string) {
	t.Helper()
	begin := strings.IndexByte(s.text, '{')
	var end struct {
		Error struct {
			Code, Message string
			Details       []struct{ Debug struct{ Reason string } }
		}
	}
	if s.err != nil || begin < 0 || json.Unmarshal([]byte(s.text[begin:]), &end) != nil {
		t.Errorf("the answer: status %d, %q, %v", s.status, s.text, s.err)
		return
	}
	for _, detail := range end.Error.Details {
		reason = detail.Debug.Reason
	}
	return end.Error.Code, reason, end.Error.Message
}

func await(t *testing.T, what string, ended <-chan streamed) streamed {
	t.Helper()
	select {
	case got := <-ended:
		return got
	case <-time.After(patience):
		t.Fatalf("%s did not end", what)
		return streamed{}
	}
}

// envelope is what stands before a message.
func envelope(size int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(size)) }

// Symptom: streams held 317 MiB of messages that had not come to their end, where all
// requests together may hold 128 MiB. Cause: only the requests of unary calls were counted.
func TestMessagesOfStreamsAreBounded(t *testing.T) {
	w := streamsWorld(t, readingServer{}, Config{}, 100*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const streams, size = 12, 8 << 20
	var taken, refused atomic.Int64
	var ends []<-chan streamed
	done := make(chan struct{}, streams)
	for range streams {
		out, in := io.Pipe()
		ends = append(ends, w.stream(t, ctx, fanfarev1.FanfareService_PublishStream_FullMethodName, out))
		go func() { // all but the last bytes
			defer func() { done <- struct{}{} }()
			_, _ = in.Write(envelope(size))
			chunk := bytes.Repeat([]byte{' '}, 64<<10)
			for sent := 0; sent < size-len(chunk); sent += len(chunk) {
				if _, err := in.Write(chunk); err != nil {
					refused.Add(1)
					return
				}
				taken.Add(int64(len(chunk)))
			}
		}()
	}
	for range streams {
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("a message is neither taken nor refused")
		}
	}
	whole := int64(maxRequestsBytes / (3 * size))
	if got := streams - refused.Load(); got > whole || got == 0 {
		t.Errorf("%d messages of %d MiB are held, the limit for all requests is %d MiB", got, size>>20, maxRequestsBytes>>20)
	}
	told := 0
	for _, ended := range ends {
		select {
		case got := <-ended:
			told++
			if code, reason, message := got.told(t); code != "unavailable" || reason != reasonLimit || !strings.Contains(message, "not sent") {
				t.Errorf("a stream without room was told %q %q %q", code, reason, message)
			}
		default:
		}
	}
	if told == 0 {
		t.Error("nobody was told that there is no room")
	}
	cancel()
	back, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if w.handler.requests.all.Acquire(back, maxRequestsBytes) != nil {
		t.Error("what was held for streams was not given back")
	}
}

// Symptom: 60 streams in JSON on each of which one frame of 1 MiB had come, and nothing
// since, had everybody else's requests refused for want of memory; and did hold it. Cause:
// the transcoder keeps a message until the next one comes.
//
// A stream holds nothing when its message has been handed on.
func TestStreamsAtRestHoldNothing(t *testing.T) {
	server := readingServer{came: make(chan struct{})}
	w := streamsWorld(t, server, Config{}, 100*time.Millisecond)
	const streams, size = 12, 512 << 10
	message := []byte(`{"frame": {"payload": "` + strings.Repeat("AAAA", size/3) + `"}}`)
	before := heapBytes()
	var ends []<-chan streamed
	var bodies []*io.PipeWriter
	for i := range streams {
		out, in := io.Pipe()
		ends, bodies = append(ends, w.stream(t, t.Context(), fanfarev1.FanfareService_PublishStream_FullMethodName, out)), append(bodies, in)
		go func() { _, _ = in.Write(append(envelope(len(message)), message...)) }()
		select {
		case <-server.came:
		case got := <-ends[i]:
			t.Fatalf("stream %d: %+v", i, got)
		case <-time.After(patience):
			t.Fatalf("the message of stream %d did not come", i)
		}
	}
	waiting, enough := context.WithTimeout(t.Context(), patience)
	defer enough()
	if w.handler.requests.all.Acquire(waiting, maxRequestsBytes) != nil {
		t.Error("streams at rest hold memory for requests")
	} else {
		w.handler.requests.all.Release(maxRequestsBytes)
	}
	if grown := heapBytes() - before; grown > streams*size*3/4 {
		t.Errorf("%d streams at rest on which %d KiB each came hold %d KiB", streams, size>>10, grown>>10)
	}
	for i := range streams {
		_ = bodies[i].Close()
		await(t, "a stream", ends[i])
	}
}

// heapBytes is what is in use, and no garbage.
func heapBytes() int64 {
	for range 3 { // a pool forgets what it had at the time before the last
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Symptom: whoever said how long a message would be, and sent nothing of it, held memory for
// all of it. Memory is taken as the message comes.
func TestMessagesThatDoNotComeHoldNothing(t *testing.T) {
	w := streamsWorld(t, readingServer{}, Config{}, 100*time.Millisecond)
	for range 10 {
		out, in := io.Pipe()
		w.stream(t, t.Context(), fanfarev1.FanfareService_PublishStream_FullMethodName, out)
		if _, err := in.Write(append(envelope(8<<20), '{')); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close() })
	}
	whole := `{"frame": {"payload": "` + strings.Repeat("AAAA", 1<<20) + `"}}`
	if status, p := w.ask(t, fanfarev1.FanfareService_Publish_FullMethodName, strings.NewReader(whole)); status != http.StatusNotImplemented {
		t.Errorf("a request beside messages that do not come: %d, %+v", status, p)
	}
}

// Whoever begins a message has to end it, and is told if it is too large or cut off. A
// stream on which nothing is sent goes on.
func TestMessagesThatAreRefused(t *testing.T) {
	const timeout = 700 * time.Millisecond
	w := streamsWorld(t, readingServer{}, Config{UnaryTimeout: timeout}, patience)
	large, _ := io.Pipe()
	for _, c := range []struct {
		name, method string
		body         io.Reader
		code, reason string
	}{
		{"too large", fanfarev1.FanfareService_PublishStream_FullMethodName, io.MultiReader(bytes.NewReader(envelope(int(w.handler.maxBodyBytes)+1)), large), "invalid_argument", reasonField},
		{"too large for a Session", fanfarev1.FanfareService_Session_FullMethodName, bytes.NewReader(envelope(maxSessionBytes + 1)), "invalid_argument", reasonField},
		{"unfinished", fanfarev1.FanfareService_Session_FullMethodName, io.MultiReader(bytes.NewReader(envelope(10)), large), "deadline_exceeded", ""},
		{"unfinished length", fanfarev1.FanfareService_Session_FullMethodName, io.MultiReader(bytes.NewReader([]byte{0, 0}), large), "deadline_exceeded", ""},
		{"cut off", fanfarev1.FanfareService_Session_FullMethodName, bytes.NewReader(append(envelope(10), '{')), "invalid_argument", reasonField},
		{"unreadable", fanfarev1.FanfareService_Session_FullMethodName, bytes.NewReader(append(envelope(1), '{')), "invalid_argument", reasonField},
		{"marked as no message", fanfarev1.FanfareService_Session_FullMethodName, bytes.NewReader([]byte{2, 0, 0, 0, 0}), "invalid_argument", reasonField},
		{"compressed without saying how", fanfarev1.FanfareService_Session_FullMethodName, bytes.NewReader([]byte{compressed, 0, 0, 0, 1, '{'}), "invalid_argument", reasonField},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := await(t, "the stream", w.stream(t, t.Context(), c.method, c.body))
			if code, reason, message := got.told(t); code != c.code || reason != c.reason || message == "" {
				t.Errorf("told %q %q %q", code, reason, message)
			}
		})
	}
	quiet, in := io.Pipe()
	ended := w.stream(t, t.Context(), fanfarev1.FanfareService_Session_FullMethodName, quiet)
	marker, _ := io.Pipe()
	await(t, "a stream with an unfinished message", w.stream(t, t.Context(), fanfarev1.FanfareService_Session_FullMethodName, io.MultiReader(bytes.NewReader(envelope(10)), marker)))
	select {
	case got := <-ended:
		t.Errorf("a stream without a message ended: %+v", got)
	default:
	}
	_ = in.Close()
	await(t, "the quiet stream", ended)
}

// A stream without a place is refused before anything of its request is read.
func TestStreamsHaveTheirPlaceBeforeTheyAreRead(t *testing.T) {
	w := streamsWorld(t, readingServer{}, Config{Begin: func(*http.Request) (func(), bool) { return nil, false }}, patience)
	for _, method := range []string{fanfarev1.FanfareService_Session_FullMethodName, fanfarev1.FanfareService_Subscribe_FullMethodName} {
		request, err := http.NewRequest(http.MethodPost, method, unread{t})
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/connect+json")
		answer := &discardedAnswer{header: http.Header{}}
		if w.handler.ServeHTTP(answer, request); answer.status != http.StatusServiceUnavailable {
			t.Errorf("%s: status %d", method, answer.status)
		}
	}
}

// A subscription's request is one message: it has to come in time, and whatever is wrong
// with it is the client's fault.
//
// Symptom: an empty request was internal. Cause: the server found it, in the midst of gRPC.
func TestSubscriptionsWhoseRequestIsWrong(t *testing.T) {
	w := streamsWorld(t, readingServer{}, Config{UnaryTimeout: time.Second}, patience)
	silent, _ := io.Pipe()
	got := await(t, "a subscription without a request", w.stream(t, t.Context(), fanfarev1.FanfareService_Subscribe_FullMethodName, silent))
	if got.status != http.StatusRequestTimeout {
		t.Errorf("no request: %+v", got)
	}
	for name, body := range map[string][]byte{
		"empty": {}, "no envelope": []byte("{}"), "cut off": append(envelope(10), '{'), "no JSON": append(envelope(1), '{'),
		"no length": envelope(1), "a trailer": {2, 0, 0, 0, 2, '{', '}'},
	} {
		got := await(t, name, w.stream(t, t.Context(), fanfarev1.FanfareService_Subscribe_FullMethodName, bytes.NewReader(body)))
		if code, _, message := got.told(t); code != "invalid_argument" || message == "" {
			t.Errorf("%s: told %q %q", name, code, message)
		}
	}
}
