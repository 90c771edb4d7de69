//go:build unix

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A machine with Go and make alone: make run builds the program and serves.
func TestMakeRun(t *testing.T) {
	bin := t.TempDir()
	run := exec.Command("make", "run", "BIN="+bin, "FLAGS=--grpc 127.0.0.1:0 --http 127.0.0.1:0 --data-dir "+t.TempDir())
	run.Dir = filepath.Join("..", "..")
	run.Env = []string{"PATH=" + onlyTools(t, "go", "make", "bash"), "HOME=" + os.Getenv("HOME")}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOFLAGS", "GOPROXY", "GOTOOLCHAIN"} {
		if value, set := os.LookupEnv(name); set {
			run.Env = append(run.Env, name+"="+value)
		}
	}
	// A terminal sends Ctrl-C to all of them.
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := launch(t, run)
	p.awaitReady()
	position := mustRun(t, "", "publish", "chat/messages", "lobby", "--data", "hello", "--server", p.address)
	if !strings.HasSuffix(position, "-1\n") {
		t.Errorf("published at %q", position)
	}
	if err := syscall.Kill(-run.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = p.end() // make says that it was interrupted
	if log := p.stderr.String(); strings.Contains(log, "level=ERROR") || !strings.Contains(log, "draining") {
		t.Errorf("the end was not orderly")
	}
}

// onlyTools is a PATH with nothing but the named programs.
func onlyTools(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What 100,000 lines go in comes out, byte for byte, through the program that
// users run.
func TestHundredThousandLines(t *testing.T) {
	const lines = 100_000
	dir := t.TempDir()
	file := filepath.Join(dir, "lines")
	input := manyLines(lines)
	if err := os.WriteFile(file, input, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startEmbeddedProcess(t, "--backlog", fmt.Sprint(lines))
	publish := binaryCommand(t, "publish", "files", "lines", "--lines", "--server", s.address)
	stdin, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	publish.Stdin = stdin
	began := time.Now()
	positions, err := publish.Output()
	if err != nil {
		t.Fatalf("publish: %v", err)
	}
	published := time.Since(began)
	if n := bytes.Count(positions, []byte("\n")); n != lines || !bytes.HasSuffix(positions, fmt.Appendf(nil, "-%d\n", lines)) {
		t.Fatalf("%d positions, the last of them %q", n, positions[max(0, len(positions)-40):])
	}
	began = time.Now()
	output, err := binaryCommand(t, "subscribe", "files", "lines", "--from", "oldest", "--count", fmt.Sprint(lines), "--server", s.address).Output()
	if err != nil {
		t.Fatalf("subscribe: %v", err)
	}
	t.Logf("%d lines, %d bytes: published in %s, replayed in %s", lines, len(input), published, time.Since(began))
	if !bytes.Equal(output, input) {
		t.Errorf("%d bytes went in, %d came out, and they differ", len(input), len(output))
	}
}

// manyLines are lines of all kinds: empty, long, not UTF-8, with carriage
// returns and NULs.
func manyLines(n int) []byte {
	source := rand.New(rand.NewPCG(1, 2))
	var text []byte
	for i := range n {
		switch i % 100 {
		case 0: // empty
		case 1:
			text = append(text, "carriage return\r"...)
		case 2:
			for range source.IntN(300) {
				if b := byte(source.Uint32()); b != '\n' {
					text = append(text, b)
				}
			}
		case 3:
			text = append(text, strings.Repeat("long ", source.IntN(1000))...)
		default:
			text = fmt.Appendf(text, "%d %x", i, source.Uint64())
		}
		text = append(text, '\n')
	}
	return text
}

// A server with nothing to recover serves at once.
func TestStartupTime(t *testing.T) {
	dir := t.TempDir()
	for _, state := range []string{"fresh", "existing"} {
		began := time.Now()
		p := startProcess(t, "--data-dir", dir)
		took := time.Since(began)
		t.Logf("%s data directory: serving after %s", state, took)
		if took > 20*time.Second {
			t.Errorf("%s data directory: serving after %s", state, took)
		}
		p.signal(syscall.SIGKILL)
		_ = p.end()
	}
}
