//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// example is a command line of a document and what it prints there.
type example struct{ command, output string }

// examplesOf returns the command lines of a section of a Markdown document.
func examplesOf(t *testing.T, document, section string) (examples []example) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", document, section)
	}
	content, _, _ := strings.Cut(after, "\n## ")
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(content, -1) {
		for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
			command, output, _ := strings.Cut(part, "\n")
			examples = append(examples, example{command, output})
		}
	}
	return examples
}

// varying are parts of what servers print that are others each time.
var varying = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`[1-9][0-9]{15,18}`), "EPOCH"},
	{regexp.MustCompile(`[0-9-]{10}T[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`retry: [0-9]+`), "retry: TIME"},
}

// constant is a text without what varies.
func constant(text string) string {
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.name)
	}
	return strings.TrimSpace(text)
}

// The commands of README.md's section on HTTP print what stands there, in their order,
// with a server as make run starts one.
func TestReadmeCurlExamples(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatal("this test runs the examples of README.md with curl: install it (apt-get install curl)")
	}
	site := siteURL(t, startEmbedded(t).stdout)
	examples := examplesOf(t, filepath.Join("..", "..", "README.md"), "Over HTTP")
	seen := map[string]bool{}
	for _, e := range examples {
		for _, path := range []string{"/v1/publish", "/v1/frames", "/v1/streams", "/v1/close"} {
			seen[path] = seen[path] || strings.Contains(e.command, "http://"+defaultHTTPAddress+path)
		}
		command := strings.ReplaceAll(e.command, "http://"+defaultHTTPAddress, site)
		want := constant(e.output)
		if got := printedUntil(t, command, want); got != want {
			t.Errorf("%s\nprints\n%s\nand in README.md\n%s", e.command, got, want)
		}
	}
	for path, there := range seen {
		if !there {
			t.Errorf("there is no example of %s", path)
		}
	}
}

// printedUntil runs a command line of a shell until it has printed what is wanted, but
// for what varies, or ends, and returns what it printed without that.
func printedUntil(t *testing.T, command, want string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-c", command)
	// The shell's children, too.
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	shell.WaitDelay = time.Second
	stdout, stderr := newTranscript(), new(bytes.Buffer)
	shell.Stdout, shell.Stderr = stdout, stderr
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = shell.Wait() // it may have been killed
	}()
	for waiting := true; waiting; {
		stdout.mu.Lock()
		printed, changed := string(stdout.text), stdout.changed
		stdout.mu.Unlock()
		if constant(printed) == want {
			break
		}
		select {
		case <-changed:
		case <-ended:
			waiting = false
		}
	}
	cancel()
	<-ended
	if constant(stdout.String()) != want {
		t.Logf("%s: %s", command, stderr)
	}
	return constant(stdout.String())
}
