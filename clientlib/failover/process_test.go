package failover_test

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// hubProcess is a hub in a process of its own.
type hubProcess struct {
	*servicetest.Process
	pid int
}

// serveHub runs fanfare serve on a socket, in a process of its own, and waits until it
// is ready.
func serveHub(t testing.TB, database, path string) *hubProcess {
	t.Helper()
	command := exec.Command(servicetest.Program(t), "serve", "--store", database, "--grpc", "unix://"+path, "--http", "off",
		"--drain-delay", "0", "--backlog", "1000000000", "--instance", "hub")
	ownVariables := func(variable string) bool { return strings.HasPrefix(variable, "FANFARE_") }
	command.Env = slices.DeleteFunc(os.Environ(), ownVariables)
	p, err := servicetest.StartProcess(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the hub's log:\n%s", p.Log())
		}
	})
	if _, err := p.AwaitReady(patient(t)); err != nil {
		t.Fatal(err)
	}
	return &hubProcess{p, command.Process.Pid}
}

// startedWorker is a worker process, as the test sees it.
type startedWorker struct {
	t       testing.TB
	cfg     workerConfig
	command *exec.Cmd
	stdin   io.WriteCloser
	ended   chan struct{}

	mu      sync.Mutex // guards what follows
	text    []byte
	err     error
	changed chan struct{} // closed and replaced at every write
}

// startWorker starts a worker. It ends with the test.
func startWorker(t testing.TB, cfg workerConfig) *startedWorker {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return launchWorker(t, cfg, program, func(*exec.Cmd) {})
}

// launchWorker starts a copy of this program as a worker, as change has it.
func launchWorker(t testing.TB, cfg workerConfig, program string, change func(*exec.Cmd)) *startedWorker {
	t.Helper()
	cfg.Record = filepath.Join(t.TempDir(), "run")
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &startedWorker{t: t, cfg: cfg, command: exec.Command(program), ended: make(chan struct{}), changed: make(chan struct{})}
	w.command.Env = append(os.Environ(), workerVariable+"="+string(text))
	w.command.Stdout, w.command.Stderr = w, w
	change(w.command)
	if w.stdin, err = w.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := w.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.ended)
		err := w.command.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
	}()
	t.Cleanup(func() {
		_ = w.command.Process.Kill() // if it has not ended
		<-w.ended
		if t.Failed() {
			t.Logf("%s wrote:\n%s", cfg.Name, w.output())
		}
	})
	return w
}

// Write implements io.Writer, for the process's output.
func (w *startedWorker) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	close(w.changed)
	w.changed = make(chan struct{})
	return len(p), nil
}

func (w *startedWorker) output() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

// await waits until what the worker has written satisfies a condition.
func (w *startedWorker) await(what string, condition func(text string) bool) {
	w.t.Helper()
	ctx := patient(w.t)
	for {
		w.mu.Lock()
		text, changed := string(w.text), w.changed
		w.mu.Unlock()
		if condition(text) {
			return
		}
		select {
		case <-changed:
		case <-w.ended:
			if text := w.output(); !condition(text) {
				w.t.Fatalf("%s ended before it was %s", w.cfg.Name, what)
			}
			return
		case <-ctx.Done():
			w.t.Fatalf("%s is not %s within %s", w.cfg.Name, what, patience)
		}
	}
}

func (w *startedWorker) awaitLine(line string) {
	w.t.Helper()
	w.await(line, func(text string) bool { return strings.Contains("\n"+text, "\n"+line+"\n") })
}

// awaitPublished waits until each of workers has published some more.
func awaitPublished(workers ...*startedWorker) {
	count := func(text string) int { return strings.Count(text, "published ") }
	before := make([]int, len(workers))
	for i, w := range workers {
		before[i] = count(w.output())
	}
	for i, w := range workers {
		w.t.Helper()
		// One line may have been on its way.
		w.await("publishing on", func(text string) bool { return count(text) >= before[i]+2 })
	}
}

// moved are the reasons for which it has left the hub.
func (w *startedWorker) moved() (reasons []string) {
	for line := range strings.Lines(w.output()) {
		if reason, ok := strings.CutPrefix(line, "moved "); ok {
			reasons = append(reasons, strings.TrimSpace(reason))
		}
	}
	return reasons
}

// awaitEnd waits until the worker has ended, and returns what it wrote.
func (w *startedWorker) awaitEnd() (output string) {
	w.t.Helper()
	select {
	case <-w.ended:
	case <-patient(w.t).Done():
		w.t.Fatalf("%s has not ended within %s", w.cfg.Name, patience)
	}
	return w.output()
}

func (w *startedWorker) tell(command string) {
	w.t.Helper()
	if _, err := fmt.Fprintln(w.stdin, command); err != nil {
		w.t.Fatalf("tell %s to %s: %v", w.cfg.Name, command, err)
	}
}

func (w *startedWorker) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.command.Process.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}

// record is what the worker has seen, which has ended.
func (w *startedWorker) record() servicetest.Run {
	w.t.Helper()
	w.awaitEnd()
	if w.err != nil {
		w.t.Fatalf("%s ended with %v", w.cfg.Name, w.err)
	}
	file, err := os.Open(w.cfg.Record)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	var run servicetest.Run
	if err := gob.NewDecoder(file).Decode(&run); err != nil {
		w.t.Fatal(err)
	}
	return run
}

// finish ends workers that have the same streams, after a last frame for each stream,
// and checks every guarantee over what all of them saw.
func finish(t testing.TB, database string, workers ...*startedWorker) {
	t.Helper()
	for _, w := range workers {
		w.tell(workerQuiesce)
	}
	for _, w := range workers {
		w.awaitLine(workerQuiet)
	}
	var run servicetest.Run
	last := workerLast
	for i := range workers[0].cfg.Streams {
		p := publishLast(t, database, workerStream(i))
		run.Publishes = append(run.Publishes, p)
		last += " " + p.Position.String()
	}
	for _, w := range workers {
		w.tell(last)
	}
	for _, w := range workers {
		seen := w.record()
		run.Publishes = append(run.Publishes, seen.Publishes...)
		run.Subscribers = append(run.Subscribers, seen.Subscribers...)
	}
	servicetest.Check(t, run, servicetest.Unbroken)
	t.Logf("%d frames, each received by %d subscribers", len(run.Publishes), len(workers))
}

// publishLast publishes the last frame of a stream, as an application does by SQL.
func publishLast(t testing.TB, database string, s backlog.StreamName) servicetest.Publish {
	t.Helper()
	conn := pgtest.Dial(t, database)
	defer conn.Close(context.Background()) //nolint:errcheck // a connection for one statement
	payload := []byte("the last of " + s.Scope)
	p := servicetest.Publish{Publisher: "last", Stream: s, Began: now(), Content: servicetest.ContentOf(&fanfarev1.NewFrame{Payload: payload})}
	err := conn.QueryRow(patient(t), "select epoch, sequence from fanfare.publish($1, $2, $3)", s.Channel, s.Scope, payload).
		Scan(&p.Position.Epoch, &p.Position.Sequence)
	if err != nil {
		t.Fatal(err)
	}
	p.Ended, p.Result = now(), servicetest.Confirmed
	return p
}
