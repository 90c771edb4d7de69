package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// binaryDir is where tests build the program. It is removed at their end.
var binaryDir string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testRun(func() int { return pgtest.Run(m) }), goleak.Cleanup(func(code int) {
		os.RemoveAll(binaryDir)
		os.Exit(code)
	}))
}

// testRun is what goleak wants of a testing.M.
type testRun func() int

func (r testRun) Run() int { return r() }

// result is what a command that ended left.
type result struct {
	code           int
	stdout, stderr string
}

// command runs a command line to its end.
func command(t testing.TB, stdin string, args ...string) result {
	t.Helper()
	return commandWith(t, nil, stdin, args...)
}

// commandWith runs a command line with an environment ("NAME=value").
func commandWith(t testing.TB, env []string, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, env, strings.NewReader(stdin), &stdout, &stderr)
	if ctx.Err() != nil {
		t.Fatalf("fanfare %q did not end within %s; stdout %q, stderr %q", args, patience, stdout.String(), stderr.String())
	}
	return result{code, stdout.String(), stderr.String()}
}

// mustRun runs a command line that must succeed and returns its output.
func mustRun(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	r := command(t, stdin, args...)
	if r.code != exitOK {
		t.Fatalf("fanfare %q: exit code %d, stderr %q", args, r.code, r.stderr)
	}
	return r.stdout
}

// transcript is output that is written and read at the same time.
type transcript struct {
	mu      sync.Mutex // guards what follows
	text    []byte
	changed chan struct{}
}

func newTranscript() *transcript { return &transcript{changed: make(chan struct{})} }

func (o *transcript) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	close(o.changed)
	o.changed = make(chan struct{})
	return len(p), nil
}

func (o *transcript) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// await waits until the output matches and returns the match's groups.
func (o *transcript) await(t testing.TB, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(patience)
	for {
		o.mu.Lock()
		text, changed := string(o.text), o.changed
		o.mu.Unlock()
		if groups := re.FindStringSubmatch(text); groups != nil {
			return groups
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no %q within %s in:\n%s", pattern, patience, text)
		}
	}
}

// running is a command that goes on until it is interrupted.
type running struct {
	t              testing.TB
	interrupt      context.CancelFunc
	code           chan int
	stdout, stderr *transcript
}

// start starts a command line. It is interrupted and awaited when t ends.
func start(t testing.TB, stdin io.Reader, args ...string) *running {
	t.Helper()
	return startChanged(t, nil, stdin, args...)
}

// startChanged is start of a program that change, unless it is nil, changes before.
func startChanged(t testing.TB, change func(*program), stdin io.Reader, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, interrupt: cancel, code: make(chan int, 1), stdout: newTranscript(), stderr: newTranscript()}
	p := newProgram(nil, stdin, r.stdout, r.stderr)
	if change != nil {
		change(p)
	}
	go func() { r.code <- p.run(ctx, args) }()
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			t.Logf("fanfare %q\nstdout: %s\nstderr: %s", args, r.stdout, r.stderr)
		}
	})
	return r
}

// end waits for the command's end and returns its exit code.
func (r *running) end() int {
	r.t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(patience):
		r.t.Fatalf("the command did not end within %s", patience)
		return -1
	}
}

// server is a running fanfare serve.
type server struct {
	*running
	address string
}

// startEmbedded starts a server on an embedded store of its own and waits until
// it is ready.
func startEmbedded(t testing.TB, args ...string) *server {
	t.Helper()
	return startServer(t, "", append([]string{"--data-dir", t.TempDir()}, args...)...)
}

// startServer starts a server on a store and waits until it is ready.
func startServer(t testing.TB, store string, args ...string) *server {
	t.Helper()
	s := startUnready(t, store, args...)
	s.awaitReady()
	return s
}

// startUnready starts a server on free ports and returns at once.
func startUnready(t testing.TB, store string, args ...string) *server {
	t.Helper()
	return startUnreadyChanged(t, nil, store, args...)
}

// startUnreadyChanged is startUnready with a program that change changes before.
func startUnreadyChanged(t testing.TB, change func(*program), store string, args ...string) *server {
	t.Helper()
	args = append([]string{"serve", "--store", store, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain-delay", "0"}, args...)
	s := &server{running: startChanged(t, change, nil, args...)}
	t.Cleanup(func() {
		s.interrupt()
		// Before its store is deleted. A test may have awaited the end itself.
		select {
		case <-s.code:
		case <-time.After(patience):
			t.Errorf("the server did not drain within %s", patience)
		}
	})
	return s
}

func (s *server) awaitReady() {
	s.t.Helper()
	s.address = s.stdout.await(s.t, `serving on (\S+); try: `)[1]
}

// end waits for the server's end. The exit code stays readable for the cleanup.
func (s *server) end() int {
	s.t.Helper()
	code := s.running.end()
	s.code <- code
	return code
}

// execute runs a statement in a database.
func execute(t testing.TB, databaseURL, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
