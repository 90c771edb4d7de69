package sqlitebacklog

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// Tests that need another process, other rights or other limits run the test's
// binary again, which then plays one of these roles instead of testing.
const (
	childRole = "FANFARE_TEST_CHILD"
	childPath = "FANFARE_TEST_PATH"
	// childRights, if it is set, makes the child give up root's.
	childRights = "FANFARE_TEST_RIGHTS"
)

var childRoles = map[string]func(path string) error{
	"count":   childCounts,
	"open":    childOpens,
	"hold":    childHolds,
	"publish": childPublishes,
}

func init() {
	role := os.Getenv(childRole)
	if role == "" {
		return
	}
	play := childRoles[role]
	var err error
	if play == nil { // testing would make more children
		err = fmt.Errorf("there is no role %q", role)
	} else if os.Getenv(childRights) != "" {
		err = dropRights()
	}
	if err == nil {
		err = play(os.Getenv(childPath))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// addRole is for initializing a variable, which comes before every init.
func addRole(role string, play func(path string) error) struct{} {
	childRoles[role] = play
	return struct{}{}
}

// child makes the command of a child. It is killed when the test ends.
func child(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), binary)
	c.Env = append(os.Environ(), childRole+"="+role, childPath+"="+path)
	return c
}

// runChild runs a child to its end and returns what it said on standard error.
func runChild(t *testing.T, c *exec.Cmd) (said string, failed bool) {
	t.Helper()
	var stderr strings.Builder
	c.Stderr = &stderr
	err := c.Run()
	if err != nil && c.ProcessState == nil {
		t.Fatalf("run a child: %v", err)
	}
	return stderr.String(), err != nil
}

// unprivileged makes a child give up root's rights, which file modes do not apply
// to.
func unprivileged(c *exec.Cmd) { c.Env = append(c.Env, childRights+"=none") }

// startChild starts a child and returns the lines that it prints. It must be
// waited for.
func startChild(t *testing.T, c *exec.Cmd) *bufio.Scanner {
	t.Helper()
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(stdout)
}

// childOpens opens a store and closes it.
func childOpens(path string) error {
	s, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		return err
	}
	s.Close()
	return nil
}

// childHolds keeps a store open until its standard input ends.
func childHolds(path string) error {
	s, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		return err
	}
	fmt.Println("open")
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Close()
	return err
}

// openInChild opens a store that runs until stop.
func openInChild(cfg Config) (s *Store, stop func(), err error) {
	if s, err = Open(context.Background(), cfg); err != nil {
		return nil, nil, err
	}
	return s, runInChild(s), nil
}

// runInChild runs a store until stop, which closes it.
func runInChild(s *Store) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
		s.Close()
	}
}

func publishText(s *Store, stream backlog.StreamName, payload string) (backlog.Outcome, error) {
	return backlog.Publish(context.Background(), s, backlog.Publication{Stream: stream, Payload: []byte(payload)})
}
