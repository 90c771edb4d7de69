package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/bench"
)

// Deliveries are compared with other servers', and with those of servers of another
// size; frames without subscribers, and latency, with reading the notifications alone.
func TestBenchOfDeliveriesAgainstReferences(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits")
	if out, err := exec.Command("go", "build", "-o", limits, "../../bench/limits").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	database := pgtest.NewDatabase(t)
	with := []string{"--reference", limits, "--rounds", "1", "--time", "100ms", "--json", "--subscribers", "200", "--connections", "4"}
	var lines []bench.Line
	for _, args := range [][]string{
		{"fanout", "1000-subscribers", "1000-paced", "behind", "--self"},
		{"fanout", "growth", "--database", database},
		// The reference, a process that is started meanwhile, must hear some of what is published.
		{"fanout", "unheard", "--database", database, "--time", "1s"},
		{"fanout", "resident-streams", "--streams", "2000", "--database", database},
		{"latency", "--database", database},
	} {
		r := benchBinary(t, nil, slices.Concat(args[:1], with, args[1:])...)
		lines = append(lines, benchLines(t, r)...)
		if r.stderr != "" {
			t.Errorf("%q: %s", args, r.stderr)
		}
	}
	for _, c := range []struct{ name, what, reference string }{
		{"1000-subscribers", "server CPU", "bare grpc-go"},
		{"1000-subscribers", "server CPU", "grpc-go, encoding"},
		{"1000-paced", "p99", "bare grpc-go"},
		{"behind", "deliveries", "grpc-go, encoding"},
		{"growth", ": 200 subscribers", "20 subscribers"},
		{"growth", ": 200 subscribers", "2 subscribers"},
		{"resident-streams", "upkeep included: 2000 streams", "2 streams"},
		{"unheard", "the same", "reading the announcements alone"},
		{"one-subscriber", "p50", "pgx commit"},
	} {
		l := find(t, lines, c.name, c.what, c.reference)
		if l.Ratio == nil || l.Ratio.Median <= 0 || l.Target != nil {
			t.Errorf("%+v: the line is %+v", c, l)
		}
	}
}

// Where frames are published through the server that is measured, growth has no
// target, and unheard frames there are none.
func TestBenchOfDeliveriesOnTheEmbeddedStore(t *testing.T) {
	for name, want := range map[string]string{
		"growth":       "the measured server also publishes",
		"unheard":      "this takes two replicas",
		"unheard-busy": "this takes two replicas",
	} {
		r := benchBinary(t, nil, "fanout", name, "--self", "--rounds", "1", "--time", "50ms", "--json", "--subscribers", "100", "--connections", "1")
		lines := benchLines(t, r)
		if !strings.Contains(r.stderr, want) || name != "growth" && len(lines) > 0 {
			t.Errorf("%s: %d lines, %q", name, len(lines), r.stderr)
		}
	}
}
