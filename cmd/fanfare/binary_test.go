package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
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
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// binaryCommand is a command line of the built binary.
func binaryCommand(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// process is a running fanfare serve of the built binary.
type process struct {
	t       testing.TB
	command *exec.Cmd
	address string
	ended   chan error
	stdout  *transcript
	stderr  *transcript
}

// startEmbeddedProcess starts a server on an embedded store of its own and waits
// until it is ready.
func startEmbeddedProcess(t testing.TB, args ...string) *process {
	t.Helper()
	return startProcess(t, append([]string{"--data-dir", t.TempDir()}, args...)...)
}

// startProcess starts a server and waits until it is ready.
func startProcess(t testing.TB, args ...string) *process {
	t.Helper()
	p := startUnreadyProcess(t, args...)
	p.awaitReady()
	return p
}

// startUnreadyProcess starts a server on free ports and returns at once.
func startUnreadyProcess(t testing.TB, args ...string) *process {
	t.Helper()
	return launch(t, binaryCommand(t, append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...))
}

// launch starts a server's command line.
func launch(t testing.TB, command *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, command: command, ended: make(chan error, 1), stdout: newTranscript(), stderr: newTranscript()}
	p.command.Stdout, p.command.Stderr = p.stdout, p.stderr
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.ended <- p.command.Wait()
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill() // if it has not ended
		<-ended
		if t.Failed() {
			t.Logf("the server's log:\n%s", p.stderr)
		}
	})
	return p
}

func (p *process) awaitReady() {
	p.t.Helper()
	p.address = p.stdout.await(p.t, `serving on (\S+); try: `)[1]
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

// Scenario S149, symptom: each deploy ended in a kill, which lost what had been
// acknowledged. SIGTERM under load, to a process of its own: exit code 0 well
// before a supervisor's 10 s are over, every acknowledged frame is stored, a
// subscriber gets a position to go on from, and the next server delivers the rest.
func TestTermUnderLoad(t *testing.T) {
	t.Run("postgresql", func(t *testing.T) { termUnderLoad(t, "--store", pgtest.NewDatabase(t)) })
	t.Run("sqlite", func(t *testing.T) { termUnderLoad(t, "--data-dir", t.TempDir()) })
}

func termUnderLoad(t *testing.T, store ...string) {
	a := startProcess(t, append(store, "--drain-delay", "100ms", "--backlog", "1000000")...)
	subscriber := start(t, nil, "subscribe", "c", "s", "--server", a.address)
	subscriber.stderr.await(t, "caught up")
	lines := newLoad()
	t.Cleanup(lines.stop)
	publisher := start(t, lines, "publish", "c", "s", "--lines", "--server", a.address)
	publisher.stdout.await(t, `-1000\n`)

	began := time.Now()
	a.signal(syscall.SIGTERM)
	if err := a.end(); err != nil {
		t.Fatalf("the server ended with %v", err)
	}
	// A second or two, but on a busy machine; the whole grace of 15 s if a subscriber is not
	// told to go.
	if took := time.Since(began); took > 13*time.Second {
		t.Errorf("the server ended %s after the signal", took)
	}
	if regexp.MustCompile("level=ERROR|closed pool|database is closed").MatchString(a.stderr.String()) {
		t.Error("the server logged an error")
	}
	if code := publisher.end(); code != exitFailed {
		t.Errorf("the publisher's exit code is %d", code)
	}
	if code := subscriber.end(); code != exitFailed {
		t.Errorf("the subscriber's exit code is %d", code)
	}
	resume := subscriber.stderr.await(t, `continue with --from (\S+)\n`)[1]

	b := startProcess(t, store...)
	acknowledged := strings.Fields(publisher.stdout.String())
	stored := headOf(t, b.address, "c", "s")
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

// headOf returns the sequence of a stream's newest frame.
func headOf(t *testing.T, address, channel, scope string) int {
	t.Helper()
	c := connection{server: address, timeout: patience}
	var head uint64
	err := c.call(t.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := fanfarev1.NewFanfareServiceClient(conn).GetStream(ctx, &fanfarev1.GetStreamRequest{Channel: channel, Scope: scope})
		head = answer.GetStream().GetHead().GetSequence()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return int(head)
}

// A second signal does not wait for the drain.
func TestSecondSignal(t *testing.T) {
	p := startEmbeddedProcess(t, "--drain-delay", "1h")
	p.signal(os.Interrupt)
	p.stderr.await(t, "a second signal ends it at once")
	p.stderr.await(t, "draining")
	p.signal(os.Interrupt)
	if err := p.end(); err == nil {
		t.Error("the server ended as if it had drained")
	}
	if log := p.stderr.String(); !strings.HasSuffix(log, "fanfare: ended at once by a second signal\n") {
		t.Errorf("the log ends with %q", log)
	}
}

// What others use to ask about health understands the answers: ready, not ready
// while the listener is cut off, ready again, not ready while draining.
func TestHealthProbe(t *testing.T) {
	probe := healthProbe(t)
	database := pgtest.NewDatabase(t)
	proxy := pgtest.Proxy(t, database)
	p := startProcess(t, "--store", database, "--listen-database-url", proxy.URL(database), "--drain-delay", "1h")
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
