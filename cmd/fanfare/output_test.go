package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
)

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestOutputThatBreaks(t *testing.T) {
	s := startEmbedded(t)
	for _, args := range [][]string{
		{"publish", "c", "s", "--data", "x"}, {"publish", "c", "s", "--lines"}, {"subscribe", "c", "s"}, {"streams"}, {"health"}, {"close", "c", "s"},
	} {
		var stderr bytes.Buffer
		code := run(t.Context(), append(args, "--server", s.address), nil, strings.NewReader("a\n"), brokenWriter{}, &stderr)
		if code != exitFailed || !strings.Contains(stderr.String(), "standard output") {
			t.Errorf("fanfare %q: exit code %d, stderr %q", args, code, &stderr)
		}
	}
}

// A publish whose position cannot be printed said only so: a retry stored the frame
// twice.
func TestPositionsThatCannotBePrinted(t *testing.T) {
	s := startEmbedded(t)
	broken := func(stdin string, args ...string) string {
		t.Helper()
		var stderr bytes.Buffer
		if code := run(t.Context(), append(args, "--server", s.address), nil, strings.NewReader(stdin), brokenWriter{}, &stderr); code != exitFailed {
			t.Errorf("fanfare %q: exit code %d", args, code)
		}
		return stderr.String()
	}
	said := broken("", "publish", "c", "s", "--data", "x", "--key", "k")
	head := strings.TrimSpace(mustRun(t, "", "publish", "c", "s", "--data", "x", "--key", "k", "--server", s.address))
	if want := "; the frame is stored, at " + head + "\n"; !strings.HasPrefix(said, "fanfare publish: writing to standard output: ") || !strings.HasSuffix(said, want) {
		t.Errorf("stored: %q, want %q", said, want)
	}
	if said, want := broken("", "publish", "c", "s", "--data", "x", "--key", "k", "--json"), "nothing was stored, the first publish is at "+head+"\n"; !strings.HasSuffix(said, want) {
		t.Errorf("a known key: %q, want %q", said, want)
	}
	if said := broken("a\nb\n", "publish", "c", "s", "--lines"); !regexp.MustCompile(`^fanfare publish: writing to standard output: [^;]*; lines? 1(-2)? (was|were) stored(;|\n)`).MatchString(said) {
		t.Errorf("lines: %q", said)
	}
	if said := broken("", "close", "c", "s"); !strings.HasSuffix(said, "; the stream is closed\n") {
		t.Errorf("close: %q", said)
	}
	if said := broken("", "policy", "set", "c", "--backlog", "5"); !strings.HasSuffix(said, "; the policy is changed\n") {
		t.Errorf("policy: %q", said)
	}
}
