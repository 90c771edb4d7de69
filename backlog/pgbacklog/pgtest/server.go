package pgtest

import (
	"bytes"
	"context"
	"errors"
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
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
)

// settings of every server; those of Start come after them and win. Nothing
// that makes commits faster than they are: tests of the committer rely on what
// a flush does.
var settings = []string{
	"listen_addresses=127.0.0.1",
	"unix_socket_directories=",
	"max_connections=200",
	"fsync=on",
	"shared_buffers=64MB",
	"log_line_prefix=%m [%p] %a ",
}

// Server is a PostgreSQL server of a test's own. Its methods that change it are
// for the test's goroutine.
type Server struct {
	t testing.TB // nil for the shared server

	place   *place
	port    int
	process *exec.Cmd
	exited  chan struct{} // closed when process has been reaped
}

// Start starts a server with settings ("name=value", as in postgresql.conf).
// It is removed when t ends.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := launch(settings)
	if err != nil {
		t.Fatal(err)
	}
	s.attach(t)
	return s
}

func (s *Server) attach(t testing.TB) {
	s.t = t
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the server's log:\n%s", s.logTail())
		}
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
}

// URL returns the URL of a database of the server.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// NewDatabase creates an empty database and returns its URL. It is dropped when
// t ends, if the server runs then.
func (s *Server) NewDatabase(t testing.TB) string {
	t.Helper()
	return newDatabase(t, s.URL("postgres"))
}

// Stop stops the server and waits for its end. Modes are those of pg_ctl:
// smart waits for all sessions to leave, fast ends them, immediate ends all
// processes at once, so that the next start recovers from the log as after a
// crash.
func (s *Server) Stop(mode string) {
	s.t.Helper()
	if err := s.stop(mode); err != nil {
		s.t.Fatal(err)
	}
}

// Restart stops the server in a mode and starts it again.
func (s *Server) Restart(mode string) {
	s.t.Helper()
	s.Stop(mode)
	s.StartAgain()
}

// StartAgain starts a stopped server, on the same port.
func (s *Server) StartAgain() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
}

// PID returns the process id of the postmaster.
func (s *Server) PID() int { return s.process.Process.Pid }

// Standby starts a hot standby of the server, which follows it from now on. It
// is removed when the server's test ends.
func (s *Server) Standby(settings ...string) *Server {
	s.t.Helper()
	standby, err := s.standby(settings)
	if err != nil {
		s.t.Fatalf("start a standby: %v", err)
	}
	standby.attach(s.t)
	return standby
}

// launch makes and starts a server.
func launch(own []string) (*Server, error) {
	base, err := template()
	if err != nil {
		return nil, err
	}
	p, err := newPlace()
	if err != nil {
		return nil, err
	}
	if err := p.run("cp", "-R", base.data(), p.data()); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p.serve(own)
}

// serve starts a server on the data directory of p; p is removed if it fails.
func (p *place) serve(own []string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	s := &Server{place: p, port: port}
	if err := p.configure(append(append([]string{fmt.Sprintf("port=%d", port)}, settings...), own...)); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	if err := p.watch(); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

func (s *Server) running() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// start starts the postmaster and waits until it accepts connections.
func (s *Server) start() error {
	if s.running() {
		return errors.New("the PostgreSQL server is running already")
	}
	log, err := os.OpenFile(s.place.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	process := s.place.command(filepath.Join(s.place.bin, "postgres"), "-D", s.place.data())
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		_ = process.Wait() // how it ended is in its log
		close(exited)
	}()
	s.process, s.exited = process, exited
	return s.awaitReady()
}

// awaitReady reads the status that the postmaster keeps for pg_ctl in the last
// line of its pid file.
func (s *Server) awaitReady() error {
	deadline := time.After(startTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.exited:
			return fmt.Errorf("postgres ended while starting:\n%s", s.logTail())
		case <-deadline:
			return fmt.Errorf("postgres was not ready within %s:\n%s", startTimeout, s.logTail())
		}
		lines := strings.Split(readFile(s.place.pidFile()), "\n")
		if len(lines) >= 8 && lines[0] == fmt.Sprint(s.PID()) && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
	}
}

func (s *Server) stop(mode string) error {
	if !s.running() {
		return nil
	}
	signals := map[string]syscall.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}
	signal, ok := signals[mode]
	if !ok {
		return fmt.Errorf("stop mode %q is none of smart, fast, immediate", mode)
	}
	if err := s.process.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("postgres did not stop (%s) within %s:\n%s", mode, stopTimeout, s.logTail())
	}
}

// remove ends the server and removes its files.
func (s *Server) remove() error {
	err := s.stop("immediate")
	return errors.Join(err, s.place.remove())
}

func (s *Server) logTail() string {
	log := readFile(s.place.log())
	const limit = 4000
	if len(log) > limit {
		log = "…" + log[len(log)-limit:]
	}
	return log
}

// standby copies the server's files as a base backup does.
func (s *Server) standby(own []string) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	p, err := newPlace()
	if err != nil {
		return nil, err
	}
	if err := s.backUp(ctx, conn, p); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	primary := fmt.Sprintf("primary_conninfo=host=127.0.0.1 port=%d user=postgres", s.port)
	return p.serve(append([]string{primary, "hot_standby=on"}, own...))
}

func (s *Server) backUp(ctx context.Context, conn *pgx.Conn, p *place) error {
	if _, err := conn.Exec(ctx, "select pg_backup_start('pgtest', true)"); err != nil {
		return err
	}
	if err := p.run("cp", "-R", s.place.data(), p.data()); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, "select labelfile from pg_backup_stop(false)").Scan(&label); err != nil {
		return err
	}
	if err := os.Remove(p.pidFile()); err != nil {
		return err
	}
	if err := p.write("backup_label", label); err != nil {
		return err
	}
	return p.write("standby.signal", "")
}

// template returns the place of a data directory that servers copy: initdb
// takes seconds.
var template = sync.OnceValues(func() (*place, error) {
	p, err := newPlace()
	if err != nil {
		return nil, err
	}
	// The watchdog alone removes it, at the end of the process.
	if err := p.watch(); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	// Unsynced files are safe: they only have to outlive the process.
	err = p.run(filepath.Join(p.bin, "initdb"), "-D", p.data(), "-U", "postgres", "--auth=trust",
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p, nil
})

func readFile(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "" // not written yet
	}
	return string(bytes.TrimRight(content, "\n"))
}
