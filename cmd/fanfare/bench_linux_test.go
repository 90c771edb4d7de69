package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/bench"
)

// Each scenario measures a server that it starts, on a store that nothing is left
// of.
func TestBenchOfAServerOfItsOwn(t *testing.T) {
	temporary := t.TempDir()
	for _, c := range []struct{ scenario, name, what string }{
		{"publish", "64-callers", "durable publishes"},
		{"publish", "new-streams", "server CPU"},
		{"publish", "one-caller", "p99"},
		{"idle", "shared-connections", "memory of an idle subscription"},
		{"replay", "10000-frames", "replay of 300 frames"},
		{"storm", "many-streams", "caught up"},
	} {
		lines := benchLines(t, benchBinary(t, []string{"TMPDIR=" + temporary}, append([]string{c.scenario, c.name, "--self", "--rounds", "2", "--json"}, tiny[c.scenario]...)...))
		l := find(t, lines, c.name, c.what, "")
		if l.Rounds != 2 || l.Scenario != c.scenario || l.Ratio != nil || l.Target != nil || l.Parameters["store"] != "sqlite" {
			t.Errorf("%s: the line is %+v", c.scenario, l)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// With the reference program each figure has a ratio, the queries of a storm are
// counted, and nothing is left in the database.
func TestBenchAgainstReferences(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits")
	if out, err := exec.Command("go", "build", "-o", limits, "../../bench/limits").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	database := pgtest.Start(t, "shared_preload_libraries=pg_stat_statements").NewDatabase(t)
	with := []string{"--database", database, "--reference", limits, "--rounds", "1", "--json"}
	var lines []bench.Line
	for _, args := range [][]string{{"publish", "512-callers", "one-caller"}, {"replay"}, {"storm", "one-stream"}, {"idle", "own-connections"}} {
		r := benchBinary(t, nil, slices.Concat(args, tiny[args[0]], with)...)
		lines = append(lines, benchLines(t, r)...)
		if r.stderr != "" {
			t.Errorf("%q: %s", args, r.stderr)
		}
	}
	for _, c := range []struct{ name, what, reference string }{
		{"512-callers", "durable publishes", "row and NOTIFY"},
		{"512-callers", "durable publishes", "the same rows"},
		{"one-caller", "p50", "row and NOTIFY"},
		{"10000-frames", "replay", "the bare SELECT"},
		{"one-stream", "caught up", "bare grpc-go"},
		{"own-connections", "memory", "bare grpc-go"},
	} {
		l := find(t, lines, c.name, c.what, c.reference)
		if l.Ratio == nil || l.Reference == nil || l.Ratio.Median <= 0 || l.Target != nil || l.Parameters["store"] != "postgresql" {
			t.Errorf("%+v: the line is %+v", c, l)
		}
	}
	if queries := find(t, lines, "one-stream", "queries", ""); queries.Value < 1 || queries.Value > 40 {
		t.Errorf("%v queries were counted", queries.Value)
	}
	if schemas := pgtest.Query[int](t, pgtest.Dial(t, database), `select count(*)::int from pg_namespace where nspname not like 'pg\_%' and nspname not in ('information_schema', 'public')`); schemas != 0 {
		t.Errorf("%d schemas are left", schemas)
	}
}

// benchBinary runs the built program, which starts itself as a server, with an
// environment besides this process's.
func benchBinary(t *testing.T, env []string, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	c := binaryCommand(t, append([]string{"bench"}, args...)...)
	c.Stdout, c.Stderr = &stdout, &stderr
	c.Env = append(os.Environ(), env...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	// One that hangs says where. It takes many turns, so it is given more time than one.
	hung := time.AfterFunc(4*patience, func() { _ = c.Process.Signal(syscall.SIGQUIT) })
	defer hung.Stop()
	_ = c.Wait() // its code is the result
	return result{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// An edge is measured beside a server, in the same rounds, so each figure has its ratio.
func TestBenchOfEventStreams(t *testing.T) {
	lines := benchLines(t, benchBinary(t, nil, append([]string{"sse", "10000-connections", "--self", "--rounds", "1", "--json"}, tiny["sse"]...)...))
	for _, what := range []string{"memory of an event stream, its connection included", "CPU of the edge, or the server, for a million deliveries", "publish to receive, p50"} {
		if l := find(t, lines, "10000-connections", what, ""); l.ComparedWith != "gRPC Subscribe" || l.Ratio == nil || l.Value <= 0 {
			t.Errorf("%s: the line is %+v", what, l)
		}
	}
}
