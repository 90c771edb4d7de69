package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// probeVersion is the version of grpc-health-probe that the tests ask with.
const probeVersion = "v0.4.63"

// binary is the path of the program, built as a release is.
var binary = sync.OnceValues(func() (string, error) {
	var err error
	if binaryDir, err = os.MkdirTemp("", "fanfare-binary-"); err != nil {
		return "", err
	}
	path := filepath.Join(binaryDir, "fanfare")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// process is a running fanfare serve of the built binary.
type process struct {
	t       *testing.T
	command *exec.Cmd
	address string
	ended   chan error
	stderr  *transcript
}

// startProcess starts a server and waits until it is ready.
func startProcess(t *testing.T, databaseURL string, args ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, ended: make(chan error, 1), stderr: newTranscript()}
	stdout := newTranscript()
	p.command = exec.Command(path, append([]string{"serve", "--grpc", "127.0.0.1:0"}, args...)...)
	p.command.Env = append(os.Environ(), "FANFARE_STORE="+databaseURL)
	p.command.Stdout, p.command.Stderr = stdout, p.stderr
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.command.Wait() }()
	t.Cleanup(func() {
		_ = p.command.Process.Kill() // if it has not ended
		if t.Failed() {
			t.Logf("the server's log:\n%s", p.stderr)
		}
	})
	p.address = stdout.await(t, `serving on (\S+); try: `)[1]
	return p
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end waits for the process's end.
func (p *process) end() error {
	p.t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(patience):
		p.t.Fatalf("the server did not end within %s", patience)
		return nil
	}
}

// SIGTERM under load: exit code 0 well within the grace period, every
// acknowledged frame is stored, a subscriber gets a position to go on from, and
// a second server delivers the rest.
func TestTermUnderLoad(t *testing.T) {
	database := pgtest.NewDatabase(t)
	a := startProcess(t, database, "--drain-delay", "100ms")
	b := startServer(t, database, "--backlog", "1000000")

	subscriber := start(t, nil, "subscribe", "c", "s", "--server", a.address)
	subscriber.stderr.await(t, "caught up")
	lines := newLoad()
	t.Cleanup(lines.stop)
	publisher := start(t, lines, "publish", "c", "s", "--lines", "--server", a.address)
	publisher.stdout.await(t, `-1000\n`)

	a.signal(syscall.SIGTERM)
	if err := a.end(); err != nil {
		t.Fatalf("the server ended with %v", err)
	}
	if strings.Contains(a.stderr.String(), "level=ERROR") || strings.Contains(a.stderr.String(), "closed pool") {
		t.Error("the server logged an error")
	}
	if code := publisher.end(); code != exitFailed {
		t.Errorf("the publisher's exit code is %d", code)
	}
	if code := subscriber.end(); code != exitFailed {
		t.Errorf("the subscriber's exit code is %d", code)
	}
	resume := subscriber.stderr.await(t, `continue with --from (\S+)\n`)[1]

	acknowledged := strings.Fields(publisher.stdout.String())
	stored := storedFrames(t, database)
	if stored < len(acknowledged) {
		t.Fatalf("%d frames were acknowledged, %d are stored", len(acknowledged), stored)
	}
	received := strings.Fields(subscriber.stdout.String())
	if rest := stored - len(received); rest > 0 {
		out := mustRun(t, "", "subscribe", "c", "s", "--from", resume, "--count", fmt.Sprint(rest), "--server", b.address)
		received = append(received, strings.Fields(out)...)
	}
	for i, payload := range received {
		if payload != fmt.Sprint(i) {
			t.Fatalf("frame %d is %s", i, payload)
		}
	}
}

// load is an endless input of numbered lines.
type load struct {
	next    int
	pending []byte
	ended   chan struct{}
	once    sync.Once
}

func newLoad() *load { return &load{ended: make(chan struct{})} }

func (l *load) Read(p []byte) (int, error) {
	select {
	case <-l.ended:
		return 0, os.ErrClosed
	default:
	}
	for len(l.pending) < len(p) {
		l.pending = fmt.Appendf(l.pending, "%d\n", l.next)
		l.next++
	}
	n := copy(p, l.pending)
	l.pending = append([]byte(nil), l.pending[n:]...)
	return n, nil
}

func (l *load) stop() { l.once.Do(func() { close(l.ended) }) }

func storedFrames(t *testing.T, databaseURL string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), `select coalesce(max(head), 0) from fanfare.streams`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A second signal does not wait for the drain.
func TestSecondSignal(t *testing.T) {
	p := startProcess(t, pgtest.NewDatabase(t), "--drain-delay", "1h")
	p.signal(os.Interrupt)
	p.stderr.await(t, "draining")
	p.signal(os.Interrupt)
	if err := p.end(); err == nil {
		t.Error("the server ended as if it had drained")
	}
}

// What others use to ask about health understands the answers: ready, not ready
// while the listener is cut off, ready again, not ready while draining.
func TestHealthProbe(t *testing.T) {
	probe := healthProbe(t)
	database := pgtest.NewDatabase(t)
	proxy := pgtest.Proxy(t, database)
	p := startProcess(t, database, "--listen-database-url", proxy.URL(database), "--drain-delay", "1h")
	status := func(service string) string {
		out, err := exec.Command(probe, "-addr", p.address, "-connect-timeout", "5s", "-rpc-timeout", "5s", "-service", service).CombinedOutput()
		if err == nil != strings.Contains(string(out), "status: SERVING") {
			t.Fatalf("the probe printed %q and ended with %v", out, err)
		}
		return string(out)
	}
	await := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return strings.Contains(status(""), want) })
	}
	await("status: SERVING")
	proxy.Refuse()
	proxy.Cut()
	await("NOT_SERVING")
	if out := status("liveness"); !strings.Contains(out, "status: SERVING") {
		t.Errorf("liveness without a listener: %s", out)
	}
	proxy.Restore()
	await("status: SERVING")
	p.signal(syscall.SIGTERM)
	await("NOT_SERVING")
}

// healthProbe returns the path of grpc-health-probe.
func healthProbe(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("FANFARE_TEST_HEALTH_PROBE"); path != "" {
		return path
	}
	dir := t.TempDir()
	install := exec.Command("go", "install", "github.com/grpc-ecosystem/grpc-health-probe@"+probeVersion)
	install.Env = append(os.Environ(), "GOBIN="+dir)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("install grpc-health-probe: %v: %s", err, out)
	}
	return filepath.Join(dir, "grpc-health-probe")
}
