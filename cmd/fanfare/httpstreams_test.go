package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Event streams are served by serve itself, on names that nobody has used before, by
// HTTP/1.1 and by HTTP/2 without TLS, of which one connection carries more than browsers
// let pages have of the former.
func TestEventStreamsOfServe(t *testing.T) {
	s := startEmbedded(t)
	site := siteURL(t, s.stdout)
	url := site + "/v1/streams/chat%2Fmessages/lobby"
	h2 := unencryptedHTTP2(t)
	var tabs []*browserTab
	for i := range 30 {
		client := h2
		if i == 0 {
			client = nil
		}
		tab := open(t, client, url)
		if tab.status != http.StatusOK || tab.header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("status %d, %v", tab.status, tab.header)
		}
		for name, want := range map[string]string{
			"X-Accel-Buffering": "no", "Cache-Control": "no-transform", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
		} {
			if !strings.Contains(tab.header.Get(name), want) {
				t.Errorf("%s is %q", name, tab.header.Get(name))
			}
		}
		tab.await("fanfare.caught_up")
		tabs = append(tabs, tab)
	}
	mustRun(t, "", "publish", "chat/messages", "lobby", "--data", "hello", "--server", s.address)
	for i, tab := range tabs {
		if data := tab.nextFrame(); data != "hello" {
			t.Errorf("tab %d got %q", i, data)
		}
	}
	if p := getFrom(t, h2, site+"/healthz"); p.status != http.StatusOK {
		t.Errorf("beside them: %+v", p)
	}
	mustRun(t, "", "close", "chat/messages", "lobby", "--server", s.address)
	for _, tab := range tabs {
		tab.await("fanfare.closed")
		tab.rest()
	}
}

// Scenarios S81 and S113. Symptom: an event stream went deaf when the server's time for
// an answer was over, or was cut with the server's time for a request; and where such
// times were lifted, slow clients held connections for ever. A stream outlives every
// time of the server, and nobody else does.
func TestStreamsOutliveTimeouts(t *testing.T) {
	short := webTimeouts{header: 500 * time.Millisecond, read: time.Second, write: time.Second, idle: time.Second, shutdown: time.Second}
	s := startUnreadyChanged(t, func(p *program) { p.webTimeouts = short }, "", "--data-dir", t.TempDir())
	s.awaitReady()
	site := siteURL(t, s.stdout)
	publish := func(payload string) { mustRun(t, "", "publish", "c", "s", "--data", payload, "--server", s.address) }

	began := time.Now()
	tab := open(t, nil, site+"/v1/streams/c/s?from=live")
	tab.await("fanfare.caught_up")
	raw := connectSubscribe(t, site)
	publishing := publishStream(t, site)
	publish("first")

	slow := map[string]string{
		"the header":        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
		"the body":          "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"a stream's body":   "POST /fanfare.v1.FanfareService/Subscribe HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/connect+json\r\nContent-Length: 1000\r\n\r\n\x00",
		"the first request": "",
		"the next request":  "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"HTTP/2's settings": http2Preface,
		"HTTP/2's requests": http2Preface + http2Settings,
		"HTTP/2's header":   http2Preface + http2Settings + http2HalfHeader,
	}
	var cutting sync.WaitGroup
	for name, text := range slow {
		conn := dialSite(t, site)
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if name == "the header" || name == "the body" {
			// One byte at a time does not help.
			cutting.Go(func() {
				pace := time.NewTicker(50 * time.Millisecond)
				defer pace.Stop()
				for _, err := conn.Write([]byte("x")); err == nil; _, err = conn.Write([]byte("x")) {
					<-pace.C
				}
			})
		}
		cutting.Go(func() { cut(t, conn) })
	}
	cutting.Go(func() { answersNotTaken(t, s, site) })
	cutting.Wait()

	again := time.NewTicker(300 * time.Millisecond)
	defer again.Stop()
	for until := began.Add(3*short.read + short.idle); time.Now().Before(until); <-again.C {
		publish("again")
	}
	if err := publishing.Send(&fanfarev1.PublishStreamRequest{Frame: &fanfarev1.NewFrame{Channel: "another"}}); err != nil {
		t.Errorf("the call that publishes: %v", err)
	}
	if answer, err := publishing.Recv(); err != nil || answer.GetPublished() == nil {
		t.Errorf("the call that publishes: %v, %v", answer, err)
	}
	publish("last")
	frames := []string{tab.nextFrame()}
	for frames[len(frames)-1] != "last" {
		frames = append(frames, tab.nextFrame())
	}
	if frames[0] != "first" || len(frames) < 4 {
		t.Errorf("the event stream got %q", frames)
	}
	if err := raw.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// "last", in Base64.
	if _, err := readUntil(raw, "bGFzdA=="); err != nil {
		t.Errorf("the streaming call: %v", err)
	}
}

// connectSubscribe subscribes by the Connect protocol on a connection of its own.
func connectSubscribe(t *testing.T, site string) net.Conn {
	t.Helper()
	conn := dialSite(t, site)
	message := `{"channel":"c","scope":"s","live":true}`
	body := "\x00\x00\x00\x00" + string(rune(len(message))) + message
	if _, err := fmt.Fprintf(conn, "POST /fanfare.v1.FanfareService/Subscribe HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if said, err := readUntil(conn, "caughtUp"); err != nil {
		t.Fatalf("%v after %q", err, said)
	}
	return conn
}

// publishStream begins a call of gRPC in both directions over the port of HTTP.
func publishStream(t *testing.T, site string) grpc.BidiStreamingClient[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse] {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(site, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := fanfarev1.NewFanfareServiceClient(conn).PublishStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// It has begun.
	if err := stream.Send(&fanfarev1.PublishStreamRequest{Frame: &fanfarev1.NewFrame{Channel: "another"}}); err != nil {
		t.Fatal(err)
	}
	if answer, err := stream.Recv(); err != nil || answer.GetPublished() == nil {
		t.Fatalf("%v, %v", answer, err)
	}
	return stream
}

// readUntil reads until a text has come.
func readUntil(r io.Reader, text string) (string, error) {
	var said []byte
	buffer := make([]byte, 4<<10)
	for !strings.Contains(string(said), text) {
		n, err := r.Read(buffer)
		said = append(said, buffer[:n]...)
		if err != nil {
			return string(said), err
		}
	}
	return string(said), nil
}

// answersNotTaken asks for more pages than fit between client and server, and takes none.
func answersNotTaken(t *testing.T, s *server, site string) {
	mustRun(t, strings.Repeat("x", 1<<20), "publish", "large", "", "--server", s.address)
	conn := dialSite(t, site)
	const pages = 30
	request := "GET /v1/frames?channel=large HTTP/1.1\r\nHost: localhost\r\n\r\n"
	if _, err := io.WriteString(conn, strings.Repeat(request, pages)); err != nil {
		t.Error(err)
	}
	eventuallyCut := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		// A connection that the other side has cut takes nothing more.
		if _, err := io.WriteString(conn, request); err != nil {
			break
		}
		select {
		case <-tick.C:
		case <-eventuallyCut:
			t.Errorf("a client that takes no answer was not cut within %s", patience)
			return
		}
	}
}

// Streams keep their places, however many connections come that ask nothing; one too many
// is told to come again; and a probe is always answered.
func TestStreamsAmongManyConnections(t *testing.T) {
	const streams = 5
	s := startEmbedded(t, "--http-max-connections", fmt.Sprint(streams))
	site := siteURL(t, s.stdout)
	var tabs []*browserTab
	for range streams {
		tab := open(t, nil, site+"/v1/streams/c/s")
		tab.await("fanfare.caught_up")
		tabs = append(tabs, tab)
	}
	late := open(t, nil, site+"/v1/streams/c/s")
	if late.status != http.StatusOK {
		t.Errorf("one too many: status %d", late.status)
	}
	if event := late.await("fanfare.reconnect"); !strings.Contains(event.Data, "LIMIT_REACHED") {
		t.Errorf("one too many: %+v", event)
	}
	for range 3 * webReserve {
		dialSite(t, site)
	}
	if p := get(t, site+"/healthz"); p.status != http.StatusOK {
		t.Errorf("a probe: %+v", p)
	}
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	for _, tab := range tabs {
		if data := tab.nextFrame(); data != "x" {
			t.Errorf("got %q", data)
		}
	}
	tabs[0].close()
	eventually(t, "a place is free again", func() bool {
		tab := open(t, nil, site+"/v1/streams/c/s")
		defer tab.close()
		return tab.next().Type != "fanfare.reconnect"
	})
}

// Symptom: where streaming calls had all the places for streams, an event stream was let in
// as well, and cut without a word when a new connection came. It is told to come again.
func TestEventStreamsAndCallsShareThePlaces(t *testing.T) {
	t.Parallel()
	s := startEmbedded(t, "--http-max-connections", "2")
	site := siteURL(t, s.stdout)
	connectSubscribe(t, site)
	call := connectSubscribe(t, site)
	late := open(t, nil, site+"/v1/streams/c/s")
	if event := late.next(); event.Type != "fanfare.reconnect" || !strings.Contains(event.Data, "LIMIT_REACHED") {
		t.Errorf("one too many: %+v", event)
	}
	call.Close()
	eventually(t, "a place is free again", func() bool {
		tab := open(t, nil, site+"/v1/streams/c/s")
		defer tab.close()
		return tab.next().Type != "fanfare.reconnect"
	})
}

// Scenario S144. Symptom: a server's end waited for event streams, which never become
// idle, until it was killed; or they were cut in the middle of an event. On SIGTERM each
// is told to come back, one that is not read, too, and goes on at another replica with
// exactly the rest.
func TestDrainTellsEventStreams(t *testing.T) {
	database := pgtest.NewDatabase(t)
	a := startProcess(t, "--store", database, "--drain-delay", "100ms")
	b := startProcess(t, "--store", database)
	siteA, siteB := siteURL(t, a.stdout), siteURL(t, b.stdout)
	const clients, before, after = 20, 200, 100
	var tabs []*browserTab
	for range clients - 1 {
		tab := open(t, nil, siteA+"/v1/streams/c/s")
		tab.await("fanfare.caught_up")
		tabs = append(tabs, tab)
	}
	// More than fits between client and server.
	for range 10 {
		mustRun(t, strings.Repeat("x", 1<<20), "publish", "large", "s", "--server", b.address)
	}
	unread := dialSite(t, siteA)
	if _, err := io.WriteString(unread, "GET /v1/streams/large/s HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	raw := connectSubscribe(t, siteA)
	publishNumbers(t, b.address, "c", "s", 0, before)
	began := time.Now()
	if err := a.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := a.end(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	t.Logf("the server ended %s after the signal", time.Since(began))
	publishNumbers(t, b.address, "c", "s", before, before+after)
	for i, tab := range tabs {
		frames := tab.rest()
		if tab.err != nil {
			t.Errorf("client %d: the stream ended with %v", i, tab.err)
		}
		rest := open(t, nil, siteB+"/v1/streams/c/s", header("Last-Event-ID", tab.last))
		for len(frames) < before+after {
			frames = append(frames, rest.nextFrame())
		}
		rest.close()
		want := make([]string, before+after)
		for n := range want {
			want[n] = fmt.Sprint(n)
		}
		if !slices.Equal(frames, want) {
			t.Errorf("client %d got %d frames, among them %.200q…", i, len(frames), frames)
		}
	}
	// The streaming call was told, too, and ended with a reason.
	if said, err := readUntil(raw, "DRAINING"); err != nil {
		t.Errorf("the streaming call ended with %v after %.2000q", err, said)
	}
}

// Symptom: from the end of the delay to the end of the process, publishes over HTTP, whose
// port stays open for the health page, were UNAVAILABLE without a reason.
func TestCallsOverHTTPAreToldOfTheDrain(t *testing.T) {
	t.Parallel()
	s := startProcess(t, "--store", "sqlite::memory:", "--drain-delay", "0")
	site := siteURL(t, s.stdout)
	// A call that is not read holds up the end of the drain.
	for range 20 {
		mustRun(t, strings.Repeat("x", 1<<20), "publish", "large", "s", "--server", s.address)
	}
	unread := dialSite(t, site)
	if _, err := io.WriteString(unread, "POST /fanfare.v1.FanfareService/Subscribe HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/connect+json\r\nContent-Length: 36\r\n\r\n"+
		"\x00\x00\x00\x00\x1f"+`{"channel":"large","scope":"s"}`); err != nil {
		t.Fatal(err)
	}
	if said, err := readUntil(unread, "\r\n\r\n"); err != nil || !strings.Contains(said, "200 OK") {
		t.Fatalf("%v after %q", err, said)
	}
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"JSON": "/v1/publish", "Connect": "/fanfare.v1.FanfareService/Publish"} {
		var refused page
		eventually(t, name+" is refused", func() bool {
			refused = post(t, site+path, publishJSON("c", "s", "x"))
			return refused.status != http.StatusOK
		})
		if refused.status != http.StatusServiceUnavailable || !strings.Contains(refused.body, "DRAINING") || name == "JSON" && refused.problem(t).RetryIn != 1 {
			t.Errorf("%s: status %d, %s", name, refused.status, refused.body)
		}
	}
	_ = unread.Close()
	if err := s.end(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// How soon browsers come back was the program's own: an operator whose edges are overrun
// when all of them come back could not spread that over a longer time.
func TestOperatorsSayHowSoonBrowsersComeBack(t *testing.T) {
	t.Parallel()
	s := startEmbedded(t, "--http-retry", "1m")
	edge := start(t, nil, "edge", "--server", s.address, "--http", "127.0.0.1:0", "--http-retry", "1m", "--drain-delay", "0")
	t.Cleanup(func() { edge.interrupt(); edge.end() })
	for name, site := range map[string]string{"serve": siteURL(t, s.stdout), "edge": siteURL(t, edge.stdout)} {
		retries := map[int]bool{}
		for range 5 {
			conn := dialSite(t, site)
			_ = conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprint(conn, "GET /v1/streams/c/s HTTP/1.1\r\nHost: localhost\r\n\r\n")
			var milliseconds int
			for lines := bufio.NewScanner(conn); milliseconds == 0 && lines.Scan(); {
				_, _ = fmt.Sscanf(lines.Text(), "retry: %d", &milliseconds)
			}
			if milliseconds < 60_000 || milliseconds >= 180_000 {
				t.Errorf("%s: a browser waits for %d ms", name, milliseconds)
			}
			retries[milliseconds] = true
		}
		if len(retries) < 2 {
			t.Errorf("%s: five browsers come back at the same time, after %v ms", name, retries)
		}
	}
}
