package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// readyTimeout bounds the wait for a part that was started.
	readyTimeout = time.Minute
	// endTimeout is what a part has to end by itself.
	endTimeout = 10 * time.Second
)

// part is a program that the demonstration runs. It may be started again when it has
// ended.
type part struct {
	name    string
	program string
	args    []string
	env     []string
	// url is answered with 200 when the part is ready.
	url string
	log io.Writer

	mu      sync.Mutex  // guards what follows
	process *os.Process // nil while it does not run
}

// run runs the program to its end. When ctx ends it is asked to end, and then made to;
// that is nil.
func (p *part) run(ctx context.Context) error {
	command := exec.CommandContext(ctx, p.program, p.args...)
	command.Env = p.env
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = endTimeout
	log := &prefixed{to: p.log, prefix: fmt.Sprintf("[%s] ", p.name)}
	command.Stdout, command.Stderr = log, log // one writer: they are written to in turn
	if err := command.Start(); err != nil {
		return err
	}
	p.set(command.Process)
	defer p.set(nil)
	err := command.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s ended", p.name)
	}
	return fmt.Errorf("%s ended: %w", p.name, err)
}

func (p *part) set(process *os.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = process
}

// pid is 0 while the part does not run.
func (p *part) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return 0
	}
	return p.process.Pid
}

// kill ends the part at once, as a crash does. It reports whether it ran.
func (p *part) kill() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process != nil && p.process.Kill() == nil
}

// awaitReady waits until the part answers.
func (p *part) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, ask(ctx, p.url)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return fmt.Errorf("%s is not ready: %w", p.name, err)
	}
	return nil
}

func ask(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

// prefixed writes every line with a prefix, each in one Write. It is for one writer.
type prefixed struct {
	to      io.Writer
	prefix  string
	pending []byte // a line whose end has not come
}

func (w *prefixed) Write(p []byte) (int, error) {
	w.pending = append(w.pending, p...)
	for {
		end := bytes.IndexByte(w.pending, '\n')
		if end < 0 {
			return len(p), nil
		}
		if _, err := w.to.Write(append([]byte(w.prefix), w.pending[:end+1]...)); err != nil {
			return 0, err
		}
		w.pending = w.pending[end+1:]
	}
}
