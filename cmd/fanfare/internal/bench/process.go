package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

// Server is a server that is measured: one that runs, or a process that was
// started.
type Server struct {
	// Address is host:port or unix:///PATH.
	Address string
	// PID is its process; 0 if it is not known.
	PID int

	// shows is what calls to it show; nil: nothing.
	shows credentials.PerRPCCredentials
	// process is nil for a running server.
	process *process
	// start starts it again.
	start func(context.Context) (*process, error)
}

// Fanfare returns a server to measure: the running one, or a new process with
// these further flags of fanfare serve and a store of its own. It is stopped at the
// case's end, or by Stop.
func (r *Run) Fanfare(ctx context.Context, flags ...string) (*Server, error) {
	if r.Running() {
		return &Server{Address: r.Server, PID: r.PID, shows: r.Credentials}, nil
	}
	env, err := r.ownStore(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "off", "--drain-delay", "0s", "--log-level", "warn"}, flags...)
	return r.startServer(ctx, func(ctx context.Context) (*process, error) { return start(ctx, r.Executable, env, args...) })
}

// ownStore makes a place for a started server's store, and returns the
// environment that names it: a URL may hold a password, which a command line would
// show to everybody. Variables of this program's own are left out, so that what
// is measured does not depend on them. In a database all servers of a case share
// one place.
func (r *Run) ownStore(ctx context.Context) ([]string, error) {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "FANFARE_") {
			env = append(env, entry)
		}
	}
	if r.Database != "" {
		return append(env, "FANFARE_STORE="+r.Database, "FANFARE_SCHEMA="+Schema), r.clearSchema(ctx)
	}
	dir, err := os.MkdirTemp("", "fanfare-bench-")
	if err != nil {
		return nil, err
	}
	r.AtEnd(func(context.Context) error { return os.RemoveAll(dir) })
	return append(env, "FANFARE_STORE=sqlite:"+filepath.Join(dir, "fanfare.db")), nil
}

// Schema is where started servers keep their tables in a PostgreSQL database.
const Schema = "fanfare_bench"

// clearSchema has a case begin without what an earlier one left in the database,
// and leave nothing. Without a reference program nobody here speaks SQL.
func (r *Run) clearSchema(ctx context.Context) error {
	if r.cleared {
		return nil
	}
	r.cleared = true
	if r.Config.Reference == "" {
		r.Notef("the schema %s stays in the database: drop it when you have measured all you want", Schema)
		return nil
	}
	drop := func(ctx context.Context) error {
		return r.AskReference(ctx, &struct{}{}, "drop", "--database", r.Database, "--schema", Schema)
	}
	r.AtEnd(drop)
	return drop(ctx)
}

// ReferenceServer returns a server of the reference program, started with these
// arguments of "limits serve". It may only be called if there is one.
func (r *Run) ReferenceServer(ctx context.Context, args ...string) (*Server, error) {
	args = append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)
	return r.startServer(ctx, func(ctx context.Context) (*process, error) {
		return start(ctx, r.Config.Reference, os.Environ(), args...)
	})
}

func (r *Run) startServer(ctx context.Context, start func(context.Context) (*process, error)) (*Server, error) {
	p, err := start(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{Address: p.address, PID: p.command.Process.Pid, process: p, start: start}
	r.AtEnd(func(context.Context) error { return s.Stop() })
	return s, nil
}

// AskReference runs the reference program to its end and decodes the line of
// JSON that it prints.
func (r *Run) AskReference(ctx context.Context, answer any, args ...string) error {
	command := exec.CommandContext(ctx, r.Config.Reference, args...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = stopTimeout
	said := &ending{}
	command.Stderr = said
	out, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", r.Config.Reference, args[0], err, said)
	}
	if err := json.Unmarshal(out, answer); err != nil {
		return fmt.Errorf("%s %s printed no JSON: %w: %q", r.Config.Reference, args[0], err, out)
	}
	return nil
}

// Restart stops the process and starts another one on the same store. A running
// server is left as it is.
func (s *Server) Restart(ctx context.Context) error {
	if s.process == nil {
		return nil
	}
	if err := s.Stop(); err != nil {
		return err
	}
	p, err := s.start(ctx)
	if err != nil {
		return err
	}
	s.process, s.Address, s.PID = p, p.address, p.command.Process.Pid
	return nil
}

// Stop ends a process that was started. A second call does nothing.
func (s *Server) Stop() error {
	if s.process == nil {
		return nil
	}
	return s.process.stop()
}

// Usage is what the server's process uses. It may only be asked if the process
// is known.
func (s *Server) Usage() (Usage, error) { return ReadUsage(s.PID) }

const (
	// startTimeout bounds how long a server may take until it serves; creating a
	// schema is part of it.
	startTimeout = 30 * time.Second
	// stopTimeout is how long a process may take to end by itself.
	stopTimeout = 15 * time.Second
)

// process is a server that was started.
type process struct {
	command *exec.Cmd
	address string
	// said is the end of its standard error.
	said *ending
	// ended is closed when the process has ended, as err says.
	ended chan struct{}
	err   error
	// stopping is true once the end is wanted.
	stopping bool
}

// start starts a program and waits for the line "serving on ADDRESS" on its
// standard output.
func start(ctx context.Context, path string, env []string, args ...string) (*process, error) {
	p := &process{command: exec.Command(path, args...), said: &ending{}, ended: make(chan struct{})}
	p.command.Env, p.command.Stderr = env, p.said
	// A pipe of our own rather than StdoutPipe, which Wait closes under its reader.
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.command.Stdout = writer
	err = p.command.Start()
	writer.Close()
	if err != nil {
		reader.Close()
		return nil, fmt.Errorf("start a server: %w", err)
	}
	serving := make(chan string, 1)
	go func() {
		readAddress(reader, serving)
		reader.Close()
		if p.err = p.command.Wait(); p.err == nil {
			p.err = errors.New("exit status 0")
		}
		close(p.ended)
	}()
	return p, p.await(ctx, serving)
}

// await waits until the process serves; otherwise it is ended.
func (p *process) await(ctx context.Context, serving <-chan string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it does not serve after %s", startTimeout))
	defer cancel()
	select {
	case p.address = <-serving:
		return nil
	case <-p.ended:
		return fmt.Errorf("the server %s ended at its start: %w: %s", p.command.Path, p.err, p.said)
	case <-ctx.Done():
		err := fmt.Errorf("the server %s: %w: %s", p.command.Path, context.Cause(ctx), p.said)
		return errors.Join(err, p.stop())
	}
}

// readAddress reads a process's standard output to its end.
func readAddress(out io.Reader, serving chan<- string) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), "serving on "); ok {
			address, _, _ = strings.Cut(address, ";")
			serving <- strings.TrimSpace(address)
			break
		}
	}
	_, _ = io.Copy(io.Discard, out) // its end is what counts
}

// stop ends the process. That it ended before is an error.
func (p *process) stop() error {
	if p.stopping {
		<-p.ended
		return nil
	}
	p.stopping = true
	select {
	case <-p.ended:
		return fmt.Errorf("the server %s ended by itself: %w: %s", p.command.Path, p.err, p.said)
	default:
	}
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		// It has just ended, or the system has no such signal.
		_ = p.command.Process.Kill()
	}
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.command.Process.Kill()
		<-p.ended
	}
	return nil
}

// ending keeps the end of what is written to it.
type ending struct {
	mu   sync.Mutex // guards text
	text []byte
}

// maxEnding bounds it, in bytes.
const maxEnding = 1500

func (e *ending) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text = append(e.text, p...)
	if over := len(e.text) - maxEnding; over > 0 {
		e.text = append(e.text[:0], e.text[over:]...)
	}
	return len(p), nil
}

// String returns it from the beginning of a line on, if there is one.
func (e *ending) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := strings.TrimSpace(string(e.text))
	if _, lines, cut := strings.Cut(text, "\n"); cut && len(e.text) == maxEnding {
		return lines
	}
	return text
}
