package browser_test

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func TestMain(m *testing.M) {
	inBrowser := run(func() int { return browsertest.Run(run(func() int { return pgtest.Run(m) })) })
	goleak.VerifyTestMain(run(func() int { defer servicetest.RemoveProgram(); return inBrowser() }))
}

// run is what goleak wants of a testing.M.
type run func() int

func (r run) Run() int { return r() }

// lobby is the stream of most tests; source is its name in JavaScript.
var lobby = clientlib.Stream{Channel: "chat/messages", Scope: "lobby"}

const (
	source = `{channel: "chat/messages", scope: "lobby"}`
	// address is the stream's for pages without the module.
	address = "/v1/streams?channel=chat/messages&scope=lobby"
)

//go:embed testdata/page.html
var pageHTML string

// world is a server on the embedded store, with event streams, the module and a page.
type world struct {
	t       testing.TB
	url     string
	replica *servicetest.Replica
	client  *clientlib.Client
	events  *sse.Handler
	// serving is whose streams pages get: events, unless a test has put another one
	// in its place.
	serving atomic.Pointer[sse.Handler]
	server  *httptest.Server
	// pages are for what else pages need.
	pages *http.ServeMux
}

// options change a world before it starts.
type options struct {
	events  sse.Config
	replica func(*servicetest.Config)
	// tls has the server speak HTTP/2 over TLS.
	tls bool
}

func newWorld(t testing.TB, change func(*options)) *world {
	t.Helper()
	o := options{events: sse.Config{Retry: 50 * time.Millisecond, Linger: time.Second}, replica: func(*servicetest.Config) {}}
	if change != nil {
		change(&o)
	}
	w := &world{t: t, pages: http.NewServeMux(), replica: servicetest.Start(t, "sqlite::memory:", o.replica)}
	w.client = newClient(t, w.replica.Addr)
	w.events = sse.New(w.client, o.events)
	w.serving.Store(w.events)
	streams := func(rw http.ResponseWriter, r *http.Request) { w.serving.Load().ServeHTTP(rw, r) }
	w.pages.HandleFunc("/v1/streams", streams)
	w.pages.HandleFunc("/v1/streams/", streams)
	w.pages.Handle("/fanfare.js", browser.Handler())
	w.pages.HandleFunc("/{$}", servePage)
	w.server = httptest.NewUnstartedServer(w.pages)
	if o.tls {
		w.server.EnableHTTP2 = true
		w.server.StartTLS()
	} else {
		w.server.Start()
	}
	w.url = w.server.URL
	t.Cleanup(w.server.Close)
	t.Cleanup(w.events.Close)
	return w
}

func servePage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, pageHTML)
}

func newClient(t testing.TB, address string) *clientlib.Client {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := clientlib.New(conn, clientlib.WithSession())
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// open opens the page in a browser of its own.
func open(t testing.TB, url string, options ...browsertest.Option) *browsertest.Page {
	t.Helper()
	page := browsertest.Start(t, options...).Open(url)
	page.Wait("the module", "window.ready")
	return page
}

// publish publishes durable frames and returns the last one's position.
func publish(t testing.TB, client *clientlib.Client, payloads ...string) (last clientlib.Position) {
	t.Helper()
	for _, payload := range payloads {
		last = publishFrame(t, client, clientlib.NewFrame{Stream: lobby, Payload: []byte(payload)})
	}
	return last
}

func publishFrame(t testing.TB, client *clientlib.Client, frame clientlib.NewFrame) clientlib.Position {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), browsertest.Patience)
	defer cancel()
	published, err := client.Publish(ctx, frame)
	if err != nil {
		t.Fatalf("publish %.40q: %v", frame.Payload, err)
	}
	return published.Position
}

func (w *world) publish(payloads ...string) clientlib.Position {
	w.t.Helper()
	return publish(w.t, w.client, payloads...)
}

// awaitLast waits until a page has got a payload, and returns all.
func awaitLast(page *browsertest.Page, last string) []string {
	page.Wait("the frame "+last, fmt.Sprintf("got.at(-1) === %q", last), "told")
	return browsertest.Eval[[]string](page, "got")
}

// numbers are the decimal numbers of a range, both included.
func numbers(from, to int) []string {
	var all []string
	for n := from; n <= to; n++ {
		all = append(all, strconv.Itoa(n))
	}
	return all
}

func expect[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// awaitConnections waits until so many browsers are connected for streams.
func (w *world) awaitConnections(n int) {
	w.t.Helper()
	deadline := time.Now().Add(browsertest.Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for int(w.events.Stats().Connections) != n {
		if time.Now().After(deadline) {
			w.t.Fatalf("there are %v connections, and not %d", w.events.Stats().Connections, n)
		}
		<-tick.C
	}
}
