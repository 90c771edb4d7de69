package main

import (
	"strings"
	"testing"
)

// On a terminal, where a position is missed, it is said that there is none.
func TestEphemeralOnATerminal(t *testing.T) {
	s := startEmbedded(t)
	for _, c := range []struct{ stdin, args, want string }{
		{"", "--data x", "published, not stored\n"},
		{"a\nb\n", "--lines", "2 lines published, not stored\n"},
		{"", "--lines", ""},
		{"", "--data x --json", `{"type":"published","position":null,"duplicate":false}` + "\n"},
	} {
		console := newConsole(t, 80)
		args := append([]string{"publish", "c", "s", "--ephemeral", "--server", s.address}, strings.Fields(c.args)...)
		r := onConsole(t, console, terminals{stdout: true, stderr: true}, []string{"NO_COLOR=1"}, strings.NewReader(c.stdin), args...)
		if got := console.text(); r.code != exitOK || got != c.want {
			t.Errorf("%s: exit code %d, a terminal shows %q, want %q", c.args, r.code, got, c.want)
		}
	}
}
