package nginx_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// edge serves event streams of one replica.
type edge struct {
	t       *testing.T
	handler *sse.Handler
	address string
	client  *clientlib.Client
}

func newEdge(t *testing.T, replica *servicetest.Replica, config sse.Config) *edge {
	t.Helper()
	client := clientlib.New(replica.Conn)
	handler := sse.New(client, config)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		handler.Close()
		server.Close()
		client.Close()
	})
	return &edge{t: t, handler: handler, address: strings.TrimPrefix(server.URL, "http://"), client: client}
}

func (e *edge) publish(scope, payload string) {
	e.t.Helper()
	frame := clientlib.NewFrame{Stream: clientlib.Stream{Channel: "orders", Scope: scope}, Payload: []byte(payload)}
	if _, err := e.client.Publish(bounded(e.t), frame); err != nil {
		e.t.Fatal(err)
	}
}

// stream is an event stream, as it arrives.
type stream struct {
	t        *testing.T
	response *http.Response
	lines    *bufio.Reader
	leave    context.CancelFunc
}

// open subscribes, and returns when there is an answer.
func open(t *testing.T, address, scope string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/streams?channel=orders&scope="+scope, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := new(http.Transport).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return &stream{t: t, response: response, lines: bufio.NewReader(response.Body), leave: cancel}
}

// until reads up to a line and returns it, or an error at the end of the stream.
func (s *stream) until(prefix string) (string, error) {
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil || strings.HasPrefix(line, prefix) {
			return strings.TrimSuffix(line, "\n"), err
		}
	}
}

func (s *stream) expect(line string) {
	s.t.Helper()
	if got, err := s.until(line); err != nil || got != line {
		s.t.Fatalf("%q instead of %q, %v", got, line, err)
	}
}

// byDefault is a site whose owner knows nothing of event streams: what is not said is
// as nginx has it.
const byDefault = `
upstream fanfare { server UPSTREAM; }
server {
	listen LISTEN;
	location / { proxy_pass http://fanfare; proxy_set_header Host $host; }
}`

// A proxy that gathers what it passes on until a buffer is full would deliver the first
// of these frames with the last, or never: the next one is written only when this one has
// come. So the default settings deliver them because the answer forbids to gather.
//
// In the long form a second passes between them, and what each takes is told.
func TestFramesArriveAtOnce(t *testing.T) {
	edge := newEdge(t, newReplica(t), sse.Config{})
	direct := open(t, edge.address, "headers").response.Header
	if direct.Get("X-Accel-Buffering") != "no" {
		t.Errorf("the answer's X-Accel-Buffering is %q", direct.Get("X-Accel-Buffering"))
	}
	for scope, nginx := range map[string]*proxy{
		"shipped": start(t, upstreams{http: []string{edge.address}}),
		"default": startWith(t, strings.ReplaceAll(byDefault, "UPSTREAM", edge.address)),
	} {
		subscription := open(t, nginx.http, scope)
		if got := subscription.response.Header.Get("Cache-Control"); !strings.Contains(got, "no-transform") {
			t.Errorf("%s: Cache-Control is %q", scope, got)
		}
		// The stream is empty, and yet its subscriber knows that it is in force.
		if _, err := subscription.until("id: "); err != nil {
			t.Fatal(err)
		}
		for n := range 10 {
			if inLongForm() {
				<-time.After(time.Second)
			}
			began := time.Now()
			payload := fmt.Sprintf("%s frame %06d", scope, n) // 20 bytes
			edge.publish(scope, payload)
			subscription.expect("data: " + payload)
			t.Logf("%s: frame %d came after %v", scope, n, time.Since(began).Round(100*time.Microsecond))
		}
	}
}

// A stream on which nothing happens stays open as long as its heartbeat is shorter than
// the proxy's patience, and ends when it is longer.
func TestQuietStreamStays(t *testing.T) {
	const heartbeats = 8
	beat, patience := 250*time.Millisecond, "1s"
	if inLongForm() {
		beat, patience = 2*time.Second, "5s"
	}
	replica := newReplica(t)
	quick, slow := newEdge(t, replica, sse.Config{Heartbeat: beat}), newEdge(t, replica, sse.Config{Heartbeat: time.Hour})
	hasty := []string{"proxy_read_timeout 60s;", "proxy_read_timeout " + patience + ";"}
	stays := open(t, start(t, upstreams{http: []string{quick.address}}, hasty...).http, "quiet")
	ends := open(t, start(t, upstreams{http: []string{slow.address}}, hasty...).http, "quiet")

	if line, err := ends.until(":"); err == nil {
		t.Errorf("a stream without heartbeats gets %q", line)
	}
	for range heartbeats { // twice the proxy's patience and more
		if _, err := stays.until(":"); err != nil {
			t.Fatal(err)
		}
	}
	quick.publish("quiet", "at last")
	stays.expect("data: at last")
}

// While no replica is there a page is told to come again: an EventSource would give up
// for ever on nginx's own 502.
//
// Symptoms of what this once was: one of another origin gave up all the same, as its page
// could not read the answer; and a blank line had the others forget their positions.
func TestPageIsToldToComeAgain(t *testing.T) {
	nginx := start(t, upstreams{})
	retries := map[string]bool{}
	for range 40 {
		s := open(t, nginx.http, "")
		if s.response.StatusCode != http.StatusOK || s.response.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("the answer is %s, %v", s.response.Status, s.response.Header)
		}
		if origin := s.response.Header.Get("Access-Control-Allow-Origin"); origin != "" {
			t.Errorf("pages of %q may read it, and none asks", origin)
		}
		body, err := io.ReadAll(s.response.Body)
		if err != nil || !onlyRetry.Match(body) {
			t.Fatalf("the answer is %q, %v", body, err)
		}
		retries[string(body)] = true
	}
	if len(retries) < 2 {
		t.Errorf("all pages come at the same moment: %v", retries)
	}
	foreign, err := http.NewRequestWithContext(bounded(t), http.MethodGet, "http://"+nginx.http+"/v1/streams/orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign.Header.Set("Origin", "https://app.example.com")
	answer, err := http.DefaultClient.Do(foreign)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if h := answer.Header; answer.StatusCode != http.StatusOK || h.Get("Access-Control-Allow-Origin") != "https://app.example.com" || h.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("a page of another origin is answered %s, %v", answer.Status, h)
	}
	response, err := http.Get("http://" + nginx.http + "/v1/stream?channel=orders")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusBadGateway {
		t.Errorf("other requests are answered %s", response.Status)
	}
}

// onlyRetry is an answer with a wait, and no block, which would have a position.
var onlyRetry = regexp.MustCompile(`^retry: [0-9]+\n$`)

// A refusal is final: it reaches the page as it is.
func TestRefusalPassesThrough(t *testing.T) {
	edge := newEdge(t, newReplica(t), sse.Config{Authorize: func(*http.Request, []clientlib.Stream) (sse.Grant, error) {
		return sse.Grant{}, &sse.Refusal{Status: http.StatusForbidden, Message: "not yours"}
	}})
	nginx := start(t, upstreams{http: []string{edge.address}})
	if s := open(t, nginx.http, ""); s.response.StatusCode != http.StatusForbidden {
		t.Errorf("the answer is %s", s.response.Status)
	}
}

// The replicas learn who asks, and not what somebody says about it.
func TestReplicaLearnsTheClientsAddress(t *testing.T) {
	headers := make(chan http.Header, 1)
	replica := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		headers <- r.Header
	}))
	defer replica.Close()
	nginx := start(t, upstreams{http: []string{strings.TrimPrefix(replica.URL, "http://")}})
	request, err := http.NewRequestWithContext(bounded(t), http.MethodGet, "http://"+nginx.http+"/v1/streams", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Forwarded-For", "203.0.113.7")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	got := <-headers
	if got.Get("X-Forwarded-For") != "127.0.0.1" || got.Get("X-Forwarded-Proto") != "http" || got.Get("Host") != nginx.http {
		t.Errorf("the replica is told %v", got)
	}
}

// gRPC has a port of its own at the replicas; its relatives for browsers go over HTTP.
func TestKindsOfCallsAreToldApart(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Seen", r.Header.Get("Content-Type"))
	}))
	defer web.Close()
	nginx := start(t, upstreams{http: []string{strings.TrimPrefix(web.URL, "http://")}})
	for contentType, status := range map[string]int{
		"application/json":           http.StatusOK,
		"application/proto":          http.StatusOK,
		"application/connect+proto":  http.StatusOK,
		"application/grpc-web":       http.StatusOK,
		"application/grpc-web+proto": http.StatusOK,
		// No replica is there for these.
		"application/grpc":       http.StatusBadGateway,
		"application/grpc+proto": http.StatusBadGateway,
		"application/grpc;x=y":   http.StatusBadGateway,
	} {
		response, err := http.Post("http://"+nginx.http+"/fanfare.v1.FanfareService/Publish", contentType, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != status || status == http.StatusOK && response.Header.Get("Seen") != contentType {
			t.Errorf("%s is answered %s, as %q", contentType, response.Status, response.Header.Get("Seen"))
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
