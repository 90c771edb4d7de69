// Package conformance_test holds clients in any language to the protocol: it runs
// the cases against an agent, a small program that uses the client, as README.md
// says.
package conformance_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// agentVariable names a command, its words separated by spaces, that is tested
// instead of the agents here.
const agentVariable = "FANFARE_CONFORMANCE_AGENT"

func TestMain(m *testing.M) {
	code := pgtest.Run(m)
	os.RemoveAll(programDir)
	os.Exit(code)
}

// numbers make the names of channels.
var numbers atomic.Int64

func TestConformance(t *testing.T) {
	all, err := scripts()
	if err != nil {
		t.Fatal(err)
	}
	ofTokens := maps.Clone(all)
	maps.DeleteFunc(all, func(_ string, s script) bool { return len(s.Tokens) > 0 })
	maps.DeleteFunc(ofTokens, func(_ string, s script) bool { return len(s.Tokens) == 0 })
	program := built(t, "fanfare", "../../cmd/fanfare")
	for name, command := range agents(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runCases(t, newFleet(t, program), command, all)
		})
		// Apart, since they wait for tokens to expire.
		t.Run(name+" with tokens", func(t *testing.T) {
			t.Parallel()
			runCases(t, newFleet(t, program, guarded(t)...), command, ofTokens)
		})
	}
}

// runCases runs cases one after another, and again with sessions if the agent has them.
func runCases(t *testing.T, f *fleet, command []string, all map[string]script) {
	session := false
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { session = runCase(t, f, command, all[name], false) })
	}
	if !session {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run("session/"+name, func(t *testing.T) { runCase(t, f, command, all[name], true) })
	}
}

// runCase runs a case, and reports whether the agent offers sessions.
func runCase(t *testing.T, f *fleet, command []string, s script, session bool) bool {
	f.t = t // the cases of an agent follow one another
	f.start()
	a := startAgent(t, command, f.addresses(), session, s.Tokens)
	r := &run{
		t: t, fleet: f, agent: a, renewsInTime: session && len(s.Tokens) > 0,
		channel:   fmt.Sprintf("conformance/%d", numbers.Add(1)),
		published: make(map[string][]published),
		scopes:    make(map[string]string),
		closed:    make(map[string]bool),
		away:      make(map[string]bool),
	}
	defer r.publishers.Wait()
	for _, step := range s.Steps {
		r.do(step)
	}
	return a.offers("session")
}

// agents returns the commands of the agents to test, by language.
func agents(t *testing.T) map[string][]string {
	if command := os.Getenv(agentVariable); command != "" {
		return map[string][]string{"own": strings.Fields(command)}
	}
	return map[string][]string{
		"go":             {built(t, "goagent", "./goagent")},
		"python":         {"../python/agent.sh"},
		"python asyncio": {"../python/agent.sh", "asyncio"},
		"typescript":     {"../typescript/agent.sh"},
	}
}
