package servicetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Process is a replica in a process of its own, to be killed, stopped and drained
// as the real ones are.
type Process struct {
	command *exec.Cmd
	output  output // what it wrote, its log and its banner
	ended   chan struct{}
	err     error // set before ended is closed
}

// output is written and read at the same time.
type output struct {
	mu      sync.Mutex // guards what follows
	text    bytes.Buffer
	changed chan struct{} // closed and replaced at every write
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.text.Write(p)
}

func (o *output) read() (text string, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String(), o.changed
}

// StartProcess starts the command line of a fanfare serve, which the caller ends.
func StartProcess(command *exec.Cmd) (*Process, error) {
	p := &Process{command: command, output: output{changed: make(chan struct{})}, ended: make(chan struct{})}
	command.Stdout, command.Stderr = &p.output, &p.output
	if err := command.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = command.Wait()
		close(p.ended)
	}()
	return p, nil
}

var serving = regexp.MustCompile(`serving on (\S+); try: `)

// AwaitReady waits until the replica is ready and returns its address.
func (p *Process) AwaitReady(ctx context.Context) (address string, err error) {
	for {
		text, changed := p.output.read()
		if m := serving.FindStringSubmatch(text); m != nil {
			return m[1], nil
		}
		select {
		case <-changed:
		case <-p.ended:
			return "", fmt.Errorf("the replica ended before it was ready: %w", errors.Join(p.err, errors.New(text)))
		case <-ctx.Done():
			return "", fmt.Errorf("the replica is not ready: %w", ctx.Err())
		}
	}
}

// Signal sends a signal: SIGTERM drains it, SIGKILL ends it, SIGSTOP and SIGCONT
// stop it for a while.
func (p *Process) Signal(s syscall.Signal) error { return p.command.Process.Signal(s) }

// AwaitEnd waits for the end and returns how it ended: nil after a drain.
func (p *Process) AwaitEnd(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("the replica has not ended: %w", ctx.Err())
	}
}

// Kill ends it at once, unless it has ended, and waits for that.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// Log is what it has written.
func (p *Process) Log() string {
	text, _ := p.output.read()
	return text
}

// Memory is its resident set in bytes (proc(5)).
func (p *Process) Memory() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(status))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm of the replica is %q: it has ended", status)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
