package conformance_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait for an agent or a server.
const patience = 30 * time.Second

// startPatience bounds the start of an agent, which may have what it needs fetched and
// built first.
const startPatience = 5 * time.Minute

// maxLine bounds a line of an agent: a frame of 1 MiB in base64, and more.
const maxLine = 4 << 20

// message is a command or an event.
type message map[string]any

func (m message) text(field string) string {
	text, _ := m[field].(string)
	return text
}

// agent is a client under test: a child process that takes commands and tells
// events, one JSON object a line.
type agent struct {
	t        *testing.T
	command  *exec.Cmd
	stdin    io.WriteCloser
	features []string

	mu sync.Mutex // guards what follows
	// events are those not taken yet, by id, and over says why no more will come.
	events  map[string][]message
	over    error
	changed chan struct{} // closed and replaced at every change
}

// startAgent starts an agent and has it connect to the targets, with tokens that are
// good for so long from then on, if there are any.
func startAgent(t *testing.T, command []string, targets []string, session bool, tokens []duration) *agent {
	t.Helper()
	a := &agent{t: t, command: exec.Command(command[0], command[1:]...), events: make(map[string][]message), changed: make(chan struct{})}
	a.command.Stderr = os.Stderr
	stdin, err := a.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.stdin = stdin
	stdout, err := a.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.command.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		a.end(a.read(stdout))
	}()
	t.Cleanup(func() { a.quit(read) })
	a.send(message{"op": "connect", "targets": targets, "session": session, "tokens": len(tokens) > 0})
	connected := a.nextWithin(startPatience, "")
	if connected.text("event") != "connected" {
		t.Fatalf("the answer to connect is %v", connected)
	}
	features, _ := connected["features"].([]any)
	for _, f := range features {
		a.features = append(a.features, fmt.Sprint(f))
	}
	if len(tokens) > 0 {
		signed := make([]string, len(tokens))
		for i, lifetime := range tokens {
			signed[i] = token(t, time.Duration(lifetime))
		}
		a.send(message{"op": "tokens", "tokens": signed})
	}
	return a
}

func (a *agent) offers(feature string) bool { return slices.Contains(a.features, feature) }

func (a *agent) read(stdout io.Reader) error {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("not a line of JSON: %w: %.200q", err, lines.Text())
		}
		a.mu.Lock()
		a.events[m.text("id")] = append(a.events[m.text("id")], m)
		a.tellLocked()
		a.mu.Unlock()
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

func (a *agent) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = err
	a.tellLocked()
}

func (a *agent) tellLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) send(m message) {
	a.t.Helper()
	line, err := json.Marshal(m)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.stdin.Write(append(line, '\n')); err != nil {
		a.t.Fatalf("the agent takes no command %.200s: %v", line, err)
	}
}

// next waits for the next event with an id.
func (a *agent) next(id string) message {
	a.t.Helper()
	return a.nextWithin(patience, id)
}

func (a *agent) nextWithin(patience time.Duration, id string) message {
	a.t.Helper()
	timeout := time.After(patience)
	for {
		m, changed, over := a.take(id)
		switch {
		case m != nil:
			return m
		case over != nil:
			a.t.Fatalf("the agent ended, waiting for an event of %q: %v", id, over)
		}
		select {
		case <-changed:
		case <-timeout:
			a.t.Fatalf("no event of %q after %v", id, patience)
		}
	}
}

func (a *agent) take(id string) (m message, changed <-chan struct{}, over error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if waiting := a.events[id]; len(waiting) > 0 {
		a.events[id] = waiting[1:]
		return waiting[0], nil, nil
	}
	return nil, a.changed, a.over
}

// quit has the agent end, as it must, by itself.
func (a *agent) quit(read <-chan struct{}) {
	_, _ = io.WriteString(a.stdin, `{"op":"quit"}`+"\n")
	_ = a.stdin.Close()
	select {
	case <-read:
	case <-time.After(patience):
		a.t.Errorf("the agent has not ended %v after quit", patience)
		_ = a.command.Process.Kill()
		<-read
	}
	if err := a.command.Wait(); err != nil && !a.t.Failed() {
		a.t.Errorf("the agent ended with %v", err)
	}
}
