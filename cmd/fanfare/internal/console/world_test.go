package console_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	code := browsertest.Run(run(func() int { return pgtest.Run(m) }))
	servicetest.RemoveProgram()
	os.Exit(code)
}

// run is what browsertest wants of a testing.M.
type run func() int

func (r run) Run() int { return r() }

// server is a fanfare serve in a process of its own.
type server struct {
	t       testing.TB
	process *servicetest.Process
	// url is where it serves HTTP, without a slash at its end.
	url    string
	client *clientlib.Client
}

func serve(t testing.TB, db servicetest.Database, args ...string) *server {
	t.Helper()
	return serveAt(t, db, "127.0.0.1:0", args...)
}

// serveAt serves HTTP at an address.
func serveAt(t testing.TB, db servicetest.Database, http string, args ...string) *server {
	t.Helper()
	command := exec.Command(servicetest.Program(t), append([]string{"serve", "--store", db.URL, "--grpc", "127.0.0.1:0", "--http", http, "--drain-delay", "0"}, args...)...)
	command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "FANFARE_") })
	process, err := servicetest.StartProcess(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Kill()
		if t.Failed() {
			t.Logf("the server's log:\n%s", process.Log())
		}
	})
	address, err := process.AwaitReady(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	banner := regexp.MustCompile(`console on (http://\S+)/\n`).FindStringSubmatch(process.Log())
	if banner == nil {
		t.Fatalf("the server does not say where the console is:\n%s", process.Log())
	}
	conn, err := clientlib.Connect([]string{address}, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, process: process, url: banner[1], client: clientlib.New(conn, clientlib.WithSession())}
	t.Cleanup(func() {
		_ = s.client.Close()
		_ = conn.Close()
	})
	return s
}

// patient is a context for what must happen.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (s *server) publish(frame clientlib.NewFrame) {
	s.t.Helper()
	if _, err := s.client.Publish(patient(s.t), frame); err != nil {
		s.t.Fatal(err)
	}
}

// text is a frame with a text.
func text(channel, scope, payload string) clientlib.NewFrame {
	return clientlib.NewFrame{
		Stream: clientlib.Stream{Channel: channel, Scope: scope}, Payload: []byte(payload), ContentType: "text/plain",
	}
}

// subscribe has n subscriptions of a stream that read until the test's end, or until
// what it returns is called.
func (s *server) subscribe(stream clientlib.Stream, n int) (end func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	begun := make(chan struct{}, n)
	for range n {
		group.Go(func() {
			once := sync.OnceFunc(func() { begun <- struct{}{} })
			for event, err := range s.client.Subscribe(ctx, stream, clientlib.Live()).All(ctx) {
				if err != nil {
					return
				}
				if _, ok := event.(*clientlib.Subscribed); ok {
					once()
				}
			}
		})
	}
	end = func() {
		cancel()
		group.Wait()
	}
	s.t.Cleanup(end)
	for range n {
		select {
		case <-begun:
		case <-time.After(patience):
			s.t.Fatalf("%v has not %d subscriptions", stream, n)
		}
	}
	return end
}

// console opens the console at a place behind the #.
func (s *server) console(browser *browsertest.Browser, place string) *browsertest.Page {
	s.t.Helper()
	page := browser.Open(s.url + "/console/" + place)
	page.Wait("the page is there", `document.querySelector("main")`)
	return page
}

// read reads a document of the server.
func (s *server) read(path string, document any) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(patient(s.t), http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(document); err != nil {
		s.t.Fatalf("%s: %v", path, err)
	}
}
