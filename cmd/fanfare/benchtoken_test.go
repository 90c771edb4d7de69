package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/bench"
)

// Symptom: bench could not measure a server that asks for tokens. It took --token-file, and
// showed the token in its first call alone.
func TestBenchOfAServerThatNeedsTokens(t *testing.T) {
	t.Parallel()
	secret := aSecret(t)
	s := startEmbedded(t, "--jwt-secret-file", secret)
	token := func(args ...string) string {
		return writeFile(t, "token", mustRun(t, "", append([]string{"token", "--jwt-secret-file", secret}, args...)...))
	}
	own := bench.ChannelPrefix + "*"
	enough := token("--admin", "--publish", own, "--subscribe", own)
	at := func(args ...string) []string {
		return slices.Concat([]string{"bench"}, args, tiny[args[0]], []string{"--server", s.address, "--rounds", "1", "--json"})
	}
	for _, args := range runningBench {
		benchLines(t, command(t, "", append(at(args...), "--token-file", enough)...))
	}
	text, err := os.ReadFile(enough)
	if err != nil {
		t.Fatal(err)
	}
	benchLines(t, commandWith(t, []string{"FANFARE_TOKEN=" + strings.TrimSpace(string(text))}, "", at("publish", "one-caller")...))
	if streams := mustRun(t, "", "streams", "--server", s.address, "--token-file", token("--subscribe", "*")); strings.Contains(streams, "open") {
		t.Errorf("streams are left open:\n%s", streams)
	}

	needs := "admin, and to publish and subscribe to channels that begin with " + bench.ChannelPrefix
	for name, c := range map[string]struct {
		shown []string
		want  string
	}{
		"nothing":       {nil, "a token is needed"},
		"no admin":      {[]string{"--token-file", token("--publish", own, "--subscribe", own)}, needs},
		"no publishing": {[]string{"--token-file", token("--admin", "--subscribe", own)}, needs},
	} {
		if r := command(t, "", append(at("publish", "one-caller"), c.shown...)...); r.code != exitFailed || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %+v, want %q", name, r, c.want)
		}
	}
}
