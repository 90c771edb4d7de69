//go:build unix

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// nobody is the user that tests run the program as when they run as root.
const nobody = 65534

// publicDir is a temporary directory that nobody can reach, as they cannot reach
// that of a test.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fanfare-public-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// giveAway gives a file to whom unprivileged runs as.
func giveAway(t *testing.T, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

// unprivileged runs a command line of the built binary to its end, as a user who
// is not root.
func unprivileged(t *testing.T, args ...string) result {
	t.Helper()
	command := binaryCommand(t, args...)
	if os.Getuid() == 0 {
		// Where nobody may execute it.
		path := filepath.Join(publicDir(t), "fanfare")
		if err := os.Link(command.Path, path); err != nil {
			t.Fatal(err)
		}
		command = exec.Command(path, args...)
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		command.Dir = "/"
	}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// A data directory without the rights to use it is named, with what to do.
func TestPlacesWithoutRights(t *testing.T) {
	for name, mode := range map[string]os.FileMode{"read only": 0o555, "no access": 0o000} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(publicDir(t), "data")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			giveAway(t, dir)
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
			checkRefusal(t, unprivileged(t, "serve", "--data-dir", dir), exitFailed, []string{dir})
			below := filepath.Join(dir, "below")
			checkRefusal(t, unprivileged(t, "serve", "--data-dir", below), exitFailed, []string{below, "permission denied", "--data-dir"})
		})
	}
}
