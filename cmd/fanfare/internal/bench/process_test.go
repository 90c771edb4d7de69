//go:build unix

package bench

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// alive reports whether a process runs.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestServersAreStartedAndStopped(t *testing.T) {
	r := &Run{}
	start := func(ctx context.Context) (*process, error) { return start(ctx, executable(t), asRole("server")) }
	server, err := r.startServer(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	if server.Address != "127.0.0.1:4711" || !alive(server.PID) {
		t.Errorf("the server is %+v", server)
	}
	first := server.PID
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(first) || !alive(server.PID) || server.PID == first {
		t.Errorf("process %d was followed by %d", first, server.PID)
	}
	if err := r.end(t.Context()); err != nil {
		t.Error(err)
	}
	if alive(server.PID) {
		t.Error("the server was not stopped at the end")
	}
	if err := server.Stop(); err != nil {
		t.Errorf("stopping again: %v", err)
	}
}

// A server that does not come up, or ends, is an error that has its last words.
func TestServersThatFail(t *testing.T) {
	short, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("not now"))
	defer cancel()
	for _, c := range []struct {
		role string
		ctx  context.Context
		want []string
	}{
		{"refused", t.Context(), []string{"ended at its start", "exit status 1: the file is in use"}},
		{"mute", short, []string{"not now"}},
	} {
		p, err := start(c.ctx, executable(t), asRole(c.role))
		if err == nil {
			t.Fatalf("%s: no error", c.role)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error %q has no %q", c.role, err, want)
			}
		}
		if len(err.Error()) > 3*maxEnding/2 {
			t.Errorf("%s: the error has %d bytes", c.role, len(err.Error()))
		}
		if alive(p.command.Process.Pid) {
			t.Errorf("%s: the process is left", c.role)
		}
	}
	if _, err := start(t.Context(), "/nowhere/fanfare", nil); err == nil || !strings.Contains(err.Error(), "start a server") {
		t.Errorf("a missing program: %v", err)
	}
}

// A server that ended under load must not count as one that was stopped.
func TestServersThatEndByThemselves(t *testing.T) {
	p, err := start(t.Context(), executable(t), asRole("short"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.ended
	err = p.stop()
	if err == nil || !strings.Contains(err.Error(), "ended by itself") || !strings.Contains(err.Error(), "panic: something") {
		t.Errorf("the error is %v", err)
	}
}

func TestReferenceAnswers(t *testing.T) {
	r := &Run{Config: Config{Reference: executable(t)}}
	t.Setenv(roleVariable, "answer")
	var answer struct{ Args string }
	if err := r.AskReference(t.Context(), &answer, "publish", "--callers", "3"); err != nil || answer.Args != "publish --callers 3" {
		t.Errorf("%+v, %v", answer, err)
	}
	t.Setenv(roleVariable, "babble")
	if err := r.AskReference(t.Context(), &answer, "publish"); err == nil || !strings.Contains(err.Error(), `printed no JSON`) {
		t.Errorf("no JSON: %v", err)
	}
	t.Setenv(roleVariable, "refused")
	err := r.AskReference(t.Context(), &answer, "publish")
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(err.Error(), "the file is in use") {
		t.Errorf("an error: %v", err)
	}
}

// What is measured must not depend on variables that are meant for other
// commands, least of all on the name of a database.
func TestStartedServersHaveAStoreOfTheirOwn(t *testing.T) {
	t.Setenv("FANFARE_STORE", "postgres://production/app")
	t.Setenv("FANFARE_BACKLOG", "1")
	r := &Run{}
	env, err := r.ownStore(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(env, "\n")
	if strings.Contains(all, "production") || strings.Contains(all, "FANFARE_BACKLOG") || !strings.Contains(all, "FANFARE_STORE=sqlite:/") {
		t.Errorf("the environment is\n%s", all)
	}
	if err := r.end(t.Context()); err != nil {
		t.Error(err)
	}
}
