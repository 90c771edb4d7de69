package sse_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/credentials/insecure"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(run(func() int { return pgtest.Run(m) })) }

// run is what goleak wants of a testing.M.
type run func() int

func (r run) Run() int { return r() }

// patience bounds what tests wait for.
const patience = 20 * time.Second

const embedded = "sqlite::memory:"

// edge is a handler behind an HTTP server.
type edge struct {
	*sse.Handler
	t      testing.TB
	url    string
	client *clientlib.Client
	server *httptest.Server
	// replica is one that it reaches; nil if the test has said none.
	replica *servicetest.Replica
}

func connect(t testing.TB, addresses []string) *grpc.ClientConn {
	t.Helper()
	conn, err := clientlib.Connect(addresses, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// newClient returns a client of replicas with short pauses.
func newClient(t testing.TB, addresses []string, options ...clientlib.Option) *clientlib.Client {
	t.Helper()
	conn := connect(t, addresses)
	options = append([]clientlib.Option{clientlib.WithBackoff(5*time.Millisecond, 100*time.Millisecond)}, options...)
	c := clientlib.New(conn, options...)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// newEdge serves a handler of a client until the test ends. tune may be nil.
func newEdge(t testing.TB, client *clientlib.Client, tune func(*sse.Config, *http.Server)) *edge {
	t.Helper()
	return serveEdge(t, client, tune, (*httptest.Server).Start)
}

// startTLS is start over TLS, where clients speak HTTP/2.
func startTLS(t testing.TB, tune func(*sse.Config, *http.Server)) *edge {
	t.Helper()
	replica := servicetest.Start(t, embedded)
	client := newClient(t, []string{replica.Addr}, clientlib.WithSession())
	return serveEdge(t, client, tune, func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	})
}

func serveEdge(t testing.TB, client *clientlib.Client, tune func(*sse.Config, *http.Server), begin func(*httptest.Server)) *edge {
	t.Helper()
	var config sse.Config
	server := httptest.NewUnstartedServer(nil)
	if tune != nil {
		tune(&config, server.Config)
	}
	h := sse.New(client, config)
	server.Config.Handler = h
	begin(server)
	t.Cleanup(server.Close)
	t.Cleanup(h.Close)
	return &edge{Handler: h, t: t, url: server.URL, client: client, server: server}
}

// start serves an edge on a replica on the embedded store.
func start(t testing.TB, tune func(*sse.Config, *http.Server)) *edge {
	t.Helper()
	replica := servicetest.Start(t, embedded)
	e := newEdge(t, newClient(t, []string{replica.Addr}, clientlib.WithSession()), tune)
	e.replica = replica
	return e
}

func stream(scope string) clientlib.Stream { return clientlib.Stream{Channel: "orders", Scope: scope} }

// publish publishes durable frames and returns the last one's position.
func (e *edge) publish(scope string, payloads ...string) (last clientlib.Position) {
	e.t.Helper()
	for _, p := range payloads {
		last = e.publishFrame(clientlib.NewFrame{Stream: stream(scope), Payload: []byte(p)})
	}
	return last
}

func (e *edge) publishEphemeral(scope string, payloads ...string) {
	e.t.Helper()
	for _, p := range payloads {
		e.publishFrame(clientlib.NewFrame{Stream: stream(scope), Payload: []byte(p), Ephemeral: true})
	}
}

func (e *edge) publishFrame(f clientlib.NewFrame) clientlib.Position {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := e.client.Publish(ctx, f)
	if err != nil {
		e.t.Fatalf("publish %.40q: %v", f.Payload, err)
	}
	return p.Position
}

// closeStream closes a stream.
func (e *edge) closeStream(scope string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := e.replica.Client.CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: stream(scope).Channel, Scope: scope}); err != nil {
		e.t.Fatal(err)
	}
}

// browser reads an event stream as one does: it remembers the last id.
type browser struct {
	t        testing.TB
	response *http.Response
	cancel   context.CancelFunc
	parser   *parser
	// seen are all events, as text.
	seen []string
}

// request sends a request and returns what is answered. The stream ends after patience.
func (e *edge) request(method, target string, headers ...string) (*http.Response, context.CancelFunc) {
	e.t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("nothing came in time"))
	e.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, e.url+target, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := e.server.Client().Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = response.Body.Close() })
	return response, cancel
}

// open opens an event stream.
func (e *edge) open(target string, headers ...string) *browser {
	e.t.Helper()
	response, cancel := e.request(http.MethodGet, target, headers...)
	if got := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || got != "text/event-stream" {
		e.t.Fatalf("GET %s was answered %s, %s", target, response.Status, got)
	}
	b := &browser{t: e.t, response: response, cancel: cancel, parser: newParser(response.Body)}
	return b
}

// status returns what a request is answered.
func (e *edge) status(target string, headers ...string) int {
	e.t.Helper()
	response, cancel := e.request(http.MethodGet, target, headers...)
	defer cancel()
	return response.StatusCode
}

func (b *browser) leave() { b.cancel() }

// id is the last event's id.
func (b *browser) id() string { return b.parser.lastEventID }

// next returns the next event.
func (b *browser) next() (event, error) {
	e, err := b.parser.next()
	if err == nil {
		b.seen = append(b.seen, e.String())
	}
	return e, err
}

// expect reads events and compares them, as text.
func (b *browser) expect(want ...string) {
	b.t.Helper()
	for i, w := range want {
		e, err := b.next()
		if err != nil {
			b.t.Fatalf("event %d is %v, want %q; before: %q", i+1, err, w, b.seen)
		}
		if e.String() != w {
			b.t.Fatalf("event %d is %q, want %q; all: %q", i+1, e, w, b.seen)
		}
	}
}

// until reads up to an event that has a text.
func (b *browser) until(part string) event {
	b.t.Helper()
	for {
		e, err := b.next()
		if err != nil {
			b.t.Fatalf("waiting for %q: %v; before: %q", part, err, b.seen)
		}
		if strings.Contains(e.String(), part) {
			return e
		}
	}
}

// ends reads to the end of the stream.
func (b *browser) ends() {
	b.t.Helper()
	for {
		if _, err := b.next(); err != nil {
			if !errors.Is(err, errEnded) {
				b.t.Fatalf("the stream ended with %v; before: %q", err, b.seen)
			}
			return
		}
	}
}

// String is an event for comparisons.
func (e event) String() string {
	if e.kind == "message" {
		return e.data
	}
	return fmt.Sprintf("%s %s", e.kind, e.data)
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		<-look.C
	}
}
