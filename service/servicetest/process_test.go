package servicetest

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell starts a script in place of a replica.
func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := StartProcess(exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestProcessIsDrained(t *testing.T) {
	p := shell(t, `trap 'echo drained; exit 0' TERM; echo 'serving on 127.0.0.1:99; try: something'; while :; do sleep 0.01; done`)
	if address, err := p.AwaitReady(t.Context()); err != nil || address != "127.0.0.1:99" {
		t.Fatalf("ready on %q, %v", address, err)
	}
	if bytes, err := p.Memory(); err != nil || bytes < 100<<10 || bytes > 100<<20 {
		t.Errorf("a shell uses %d bytes, %v", bytes, err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitEnd(t.Context()); err != nil || !strings.HasSuffix(p.Log(), "drained\n") {
		t.Errorf("it ended with %v and wrote %q", err, p.Log())
	}
	if _, err := p.Memory(); err == nil {
		t.Error("what has ended uses memory")
	}
}

func TestProcessEndsBeforeItIsReady(t *testing.T) {
	if _, err := shell(t, "echo no database; exit 1").AwaitReady(t.Context()); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("the error is %v", err)
	}
}

func TestProcessIsKilled(t *testing.T) {
	p := shell(t, "exec sleep 1000")
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.AwaitReady(soon); err == nil {
		t.Error("it is ready and has not said so")
	}
	if err := p.AwaitEnd(soon); err == nil {
		t.Error("it has ended by itself")
	}
	p.Kill()
	if err := p.AwaitEnd(t.Context()); err == nil {
		t.Error("it was killed and has ended well")
	}
}
