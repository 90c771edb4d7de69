//go:build caddy

// Package caddy_test runs this directory's configuration in Caddy, between two replicas
// on PostgreSQL and their clients. FANFARE_TEST_CADDY names the program:
//
//	make test-caddy
package caddy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// patience bounds each wait.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	code := pgtest.Run(m)
	servicetest.RemoveProgram()
	os.Exit(code)
}

// replica is a fanfare serve.
type replica struct {
	process    *servicetest.Process
	http, grpc string
}

func startReplica(t *testing.T, database string) *replica {
	t.Helper()
	process, err := servicetest.StartProcess(exec.Command(servicetest.Program(t), "serve", "--store", database,
		"--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain-delay", "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	address, err := process.AwaitReady(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	banner := regexp.MustCompile(`console on http://(\S+)/`).FindStringSubmatch(process.Log())
	if banner == nil {
		t.Fatalf("the replica serves nothing over HTTP:\n%s", process.Log())
	}
	return &replica{process: process, http: banner[1], grpc: address}
}

// proxy is a running Caddy, with a certificate of its own.
type proxy struct {
	t       *testing.T
	address string
	client  *http.Client
}

// start runs Caddy with the Caddyfile for replicas; a third is one that is never there.
func start(t *testing.T, replicas ...*replica) *proxy {
	t.Helper()
	program := os.Getenv("FANFARE_TEST_CADDY")
	if program == "" {
		t.Fatal("FANFARE_TEST_CADDY names no Caddy")
	}
	text, err := os.ReadFile("Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	address := pgtest.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	edits := []string{"fanfare.example.com {", fmt.Sprintf(
		"{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n\thttps_port %s\n}\nlocalhost {\n\ttls internal\n\tbind 127.0.0.1", port)}
	for i := range 3 {
		at := &replica{http: pgtest.FreeAddress(t), grpc: pgtest.FreeAddress(t)}
		if i < len(replicas) {
			at = replicas[i]
		}
		edits = append(edits, fmt.Sprintf("127.0.0.1:748%d", i), at.http, fmt.Sprintf("127.0.0.1:742%d", i), at.grpc)
	}
	for i := 0; i < len(edits); i += 2 {
		if !bytes.Contains(text, []byte(edits[i])) {
			t.Fatalf("the configuration has no %q", edits[i])
		}
		text = bytes.ReplaceAll(text, []byte(edits[i]), []byte(edits[i+1]))
	}
	place := t.TempDir()
	config := filepath.Join(place, "Caddyfile")
	if err := os.WriteFile(config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "run", "--config", config)
	command.Env = append(os.Environ(), "XDG_DATA_HOME="+place, "XDG_CONFIG_HOME="+place)
	process, err := servicetest.StartProcess(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Kill()
		if t.Failed() {
			t.Logf("Caddy:\n%s", process.Log())
		}
	})
	p := &proxy{t: t, address: net.JoinHostPort("localhost", port), client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
	}}}
	t.Cleanup(p.client.CloseIdleConnections)
	await(t, "Caddy has its certificate", func() bool {
		answer, err := p.client.Get("https://" + p.address + "/")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return true
	})
	return p
}

// answer is the status and the body of an answer.
func (p *proxy) answer(method, path, body string) (int, string) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(bounded(p.t), method, "https://"+p.address+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// publish publishes a frame by JSON.
func (p *proxy) publish(payload string) {
	p.t.Helper()
	frame := fmt.Sprintf(`{"frame": {"channel": "orders", "scope": "1", "payload": "%s"}}`, base64.StdEncoding.EncodeToString([]byte(payload)))
	if status, text := p.answer(http.MethodPost, "/v1/publish", frame); status != http.StatusOK {
		p.t.Fatalf("a publish is answered %d: %s", status, text)
	}
}

// stream is an event stream. lines ends when it does.
type stream struct {
	t     *testing.T
	lines <-chan string
}

func (p *proxy) open(after string) *stream {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	p.t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.address+"/v1/streams?channel=orders&scope=1", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	if after != "" {
		request.Header.Set("Last-Event-ID", after)
	}
	response, err := p.client.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		p.t.Fatalf("an event stream is answered %s", response.Status)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		defer response.Body.Close()
		for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return &stream{t: p.t, lines: lines}
}

// until reads up to a line that begins with prefix, and returns the rest of that line. At
// the end of the stream it returns false.
func (s *stream) until(prefix string) (string, bool) {
	s.t.Helper()
	// Longer than a stream is silent in the long form.
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case line, more := <-s.lines:
			if rest, found := strings.CutPrefix(line, prefix); found && more {
				return rest, true
			}
			if !more {
				return "", false
			}
		case <-timeout:
			s.t.Fatalf("no line %q came", prefix)
		}
	}
}

// expect reads up to a frame and returns its position.
func (s *stream) expect(payload string) string {
	s.t.Helper()
	for position := ""; ; {
		line, more := s.until("")
		if !more {
			s.t.Fatalf("the stream ended before %q", payload)
		}
		if id, found := strings.CutPrefix(line, "id: "); found {
			position = id
		}
		if line == "data: "+payload {
			return position
		}
	}
}

// Frames are passed on as they come: the next is published when the one before has come.
// In the long form the streams are silent for 70 seconds, longer than Caddy waits for the
// replicas. When a replica is killed its pages go on at the other after their last
// positions, and calls in JSON do not notice.
func TestReplicasBehindCaddy(t *testing.T) {
	database := pgtest.NewDatabase(t)
	a, b := startReplica(t, database), startReplica(t, database)
	p := start(t, a, b)
	// The one with the fewest connections gets the next: each has one of these.
	streams := []*stream{p.open(""), p.open("")}
	for _, s := range streams {
		if _, more := s.until("event: fanfare.caught_up"); !more {
			t.Fatal("a stream ended before it had caught up")
		}
	}
	position := ""
	everybodyGets := func(payload string) {
		t.Helper()
		p.publish(payload)
		for _, s := range streams {
			position = s.expect(payload)
		}
	}
	everybodyGets("one")
	everybodyGets("two")
	if os.Getenv("FANFARE_LONG") != "" {
		<-time.After(70 * time.Second)
	}
	everybodyGets("three")

	a.process.Kill()
	ended := make(chan int, len(streams))
	for i, s := range streams {
		go func() {
			for range s.lines {
			}
			ended <- i
		}()
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("no stream was at the replica that was killed")
	}
	for n := range 10 {
		p.publish(fmt.Sprint("without it ", n))
	}
	again := p.open(position)
	for n := 0; n < 10; {
		got, more := again.until("data: ")
		if strings.HasPrefix(got, "{") {
			continue // of an event of the stream itself
		}
		if !more || got != fmt.Sprint("without it ", n) {
			t.Fatalf("a page that comes back gets %q, want frame %d", got, n)
		}
		n++
	}
	if status, text := p.answer(http.MethodGet, "/v1/frames?channel=orders&scope=1", ""); status != http.StatusOK || strings.Count(text, `"payload"`) != 13 {
		t.Errorf("the frames are answered %d: %s", status, text)
	}
	b.process.Kill()
}

// gRPC goes through the same port, told apart by its content type.
func TestGRPCBehindCaddy(t *testing.T) {
	a := startReplica(t, "sqlite::memory:")
	p := start(t, a)
	unverified := grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))
	conn, err := grpc.NewClient(p.address, append(clientlib.DialOptions(), unverified)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	health, err := healthpb.NewHealthClient(conn).Check(bounded(t), &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health is %v, %v", health.GetStatus(), err)
	}
	client := clientlib.New(conn)
	t.Cleanup(func() { client.Close() })
	orders := clientlib.Stream{Channel: "orders", Scope: "1"}
	next := 0
	for event, err := range client.Subscribe(bounded(t), orders, clientlib.Oldest()).All(bounded(t)) {
		if err != nil {
			t.Fatal(err)
		}
		switch event := event.(type) {
		case *clientlib.Frame:
			if want := fmt.Sprint(next); string(event.Payload[:len(want)]) != want || len(event.Payload) != 1<<20 {
				t.Fatalf("frame %d has %d bytes, %.10q", next, len(event.Payload), event.Payload)
			}
			next++
		case *clientlib.CaughtUp:
		default:
			continue
		}
		if next == 3 {
			return
		}
		// The next one when this one has come.
		payload := make([]byte, 1<<20)
		copy(payload, fmt.Sprint(next))
		if _, err := client.Publish(bounded(t), clientlib.NewFrame{Stream: orders, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the subscription ended")
}

// While no replica is there a page is told to come again, not all of them at the same
// moment, and others hear that something is wrong. What is not passed on is not there.
func TestNoReplicaBehindCaddy(t *testing.T) {
	p := start(t)
	retries := map[string]bool{}
	for range 8 {
		for line := range p.open("").lines {
			if !regexp.MustCompile(`^retry: [1-9][0-9]{3}$`).MatchString(line) {
				t.Fatalf("a page is told %q", line)
			}
			retries[line] = true
		}
	}
	if len(retries) < 2 {
		t.Errorf("all pages come at the same moment: %v", retries)
	}
	for path, want := range map[string]int{
		"/v1/stream?channel=orders": http.StatusBadGateway,
		"/healthz":                  http.StatusNotFound,
		"/console/":                 http.StatusNotFound,
		"/":                         http.StatusNotFound,
	} {
		if got, text := p.answer(http.MethodGet, path, ""); got != want {
			t.Errorf("%s is answered %d, want %d: %s", path, got, want, text)
		}
	}
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
