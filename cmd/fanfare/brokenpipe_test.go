//go:build unix

package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// fanfare publish --lines … | head -1 ended by SIGPIPE, without a word about what
// it had stored.
func TestLinesIntoABrokenPipe(t *testing.T) {
	s := startEmbedded(t)
	input := newLoad()
	t.Cleanup(input.stop)
	publish := binaryCommand(t, "publish", "c", "s", "--lines", "--server", s.address)
	stderr := newTranscript()
	publish.Stderr = stderr
	stdin, err := publish.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	reader, err := publish.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := publish.Start(); err != nil {
		t.Fatal(err)
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		_, _ = bufio.NewReader(input).WriteTo(stdin) // until the command ends
	}()
	if line, err := bufio.NewReader(reader).ReadString('\n'); err != nil || !strings.HasSuffix(line, "-1\n") {
		t.Errorf("printed %q, %v", line, err)
	}
	reader.Close()
	mustFail(t, publish.Wait())
	<-fed
	groups := regexp.MustCompile(`^fanfare publish: writing to standard output: [^;]*broken pipe; lines 1-(\d+) were stored; what follows line (\d+) was not sent; to go on: tail -n \+(\d+) FILE \| fanfare publish …\n$`).FindStringSubmatch(stderr.String())
	if groups == nil {
		t.Fatalf("said %q", stderr)
	}
	if stored := headOf(t, s.address, "c", "s"); groups[1] != strconv.Itoa(stored) || groups[2] != groups[1] || groups[3] != strconv.Itoa(stored+1) {
		t.Errorf("%d lines are stored, said %q", stored, stderr)
	}
}

func TestPublishIntoABrokenPipe(t *testing.T) {
	s := startEmbedded(t)
	publish := binaryCommand(t, "publish", "c", "s", "--data", "x", "--server", s.address)
	publish.Stdout = brokenPipe(t)
	stderr := newTranscript()
	publish.Stderr = stderr
	mustFail(t, publish.Run())
	if !regexp.MustCompile(`broken pipe; the frame is stored, at \d+-1\n$`).MatchString(stderr.String()) || headOf(t, s.address, "c", "s") != 1 {
		t.Errorf("said %q", stderr)
	}
}

// What only prints ends by the signal, without a word.
func TestPrintIntoABrokenPipe(t *testing.T) {
	s := startEmbedded(t)
	streams := binaryCommand(t, "streams", "--server", s.address)
	streams.Stdout = brokenPipe(t)
	stderr := newTranscript()
	streams.Stderr = stderr
	var exit *exec.ExitError
	if err := streams.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE || stderr.String() != "" {
		t.Errorf("ended with %v and %q", err, stderr)
	}
}

// brokenPipe is a pipe that nobody reads.
func brokenPipe(t *testing.T) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	t.Cleanup(func() { writer.Close() })
	return writer
}

// mustFail checks that a command ended by itself, as one that failed.
func mustFail(t *testing.T, err error) {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed {
		t.Errorf("the command ended with %v", err)
	}
}
