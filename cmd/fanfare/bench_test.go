package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/bench"
)

func TestBenchUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "SCENARIO is needed: publish, "},
		{[]string{"publihs"}, `there is no scenario "publihs": publish, `},
		{[]string{"publihs"}, `did you mean publish?`},
		{[]string{"publish", "one-caler"}, `publish has no case "one-caler": 64-callers, `},
		{[]string{"publish", "one-caler"}, `did you mean one-caller?`},
		{[]string{"publish", "storm"}, `publish has no case "storm"`},
		{[]string{"publish", "--rounds", "0"}, "--rounds must be from 1 to 1000"},
		{[]string{"publish", "--time", "0"}, "--time must be from 10ms to 1h"},
		{[]string{"publish", "--time", "61m"}, "--time must be from 10ms to 1h"},
		{[]string{"publish", "--pid", "-1"}, "--pid must be the number of a process"},
		{[]string{"publish", "--self", "--pid", "1"}, "--pid is for a running server"},
		{[]string{"publish", "--self", "--token-file", "t"}, "--token-file is for a running server"},
		{[]string{"publish", "--database", "postgres://h/d", "--token-file", "t"}, "--token-file is for a running server"},
		{[]string{"publish", "--token-file", "/nowhere/t"}, "--token-file /nowhere/t: no such file"},
		{[]string{"publish", "--callers", "-1"}, "--callers must be from 0 to 10000000"},
		{[]string{"publish", "--bytes", "10000001"}, "--bytes must be from 0 to 10000000"},
		{[]string{"publish", "--self", "--server", "127.0.0.1:1"}, "--self and --server exclude each other"},
		{[]string{"publish", "--database", "postgres://h/d", "--server", "127.0.0.1:1"}, "--database and --server exclude each other"},
		{[]string{"publish", "--database", "mysql://u:secret@h/d"}, "--database must have the form postgres://"},
		{[]string{"publish", "--database", "postgres://u:secret@h:port/d"}, "--database: "},
		{[]string{"publish", "--server", "http://127.0.0.1:1"}, "is not an address"},
	} {
		r := command(t, "", append([]string{"bench"}, c.args...)...)
		if r.code != exitUsage || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, c.want) {
			t.Errorf("fanfare bench %q: %+v, want %q", c.args, r, c.want)
		}
		if strings.Contains(r.stderr, "secret") {
			t.Errorf("fanfare bench %q repeats a password: %s", c.args, r.stderr)
		}
	}
}

func TestBenchCompletion(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"s", "storm\n"}, {"replay ", "10000-frames\n"}, {"nothing ", ""}, {"publish --database ", "postgres://\n"},
	} {
		got := completed(t, nil, append([]string{"bench"}, strings.Split(c.words, " ")...)...)
		if !strings.Contains("\n"+got, "\n"+c.want) || strings.Contains(got, ":0\n") {
			t.Errorf("%q: got %q, want %q", c.words, got, c.want)
		}
	}
	if help := mustRun(t, "", "bench", "--help"); !strings.Contains(help, "one-caller") || !strings.Contains(help, "own-connections") {
		t.Errorf("the help does not list the cases:\n%s", help)
	}
}

// Errors that have nothing to do with the load are told before it begins.
func TestBenchThatCannotBegin(t *testing.T) {
	s := startEmbedded(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"publish", "--server", deadServer}, "no server answers at " + deadServer},
		{[]string{"idle", "--server", s.address}, "idle shared-connections: this is about the server's processor time or memory: name its process with --pid"},
		{[]string{"publish", "--server", s.address, "--pid", "2000000000"}, "there is no process 2000000000"},
		{[]string{"storm", "--server", s.address, "--connections", "9999999"}, "raise the limit with ulimit -n"},
		{[]string{"publish", "one-caller", "--server", s.address, "--bytes", "2000000", "--time", "10ms"}, "publish"},
	} {
		r := command(t, "", append([]string{"bench"}, c.args...)...)
		if r.code != exitFailed || r.stdout != "" || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("fanfare bench %q: %+v, want %q", c.args, r, c.want)
		}
	}
}

// benchLines are the lines of a run with --json that must succeed.
func benchLines(t *testing.T, r result) (lines []bench.Line) {
	t.Helper()
	if r.code != exitOK {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	for text := range strings.Lines(r.stdout) {
		var line bench.Line
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if line.Rounds < 1 || line.Unit != "" && line.Value <= 0 || line.Values.Min > line.Values.Max {
			t.Errorf("a line that says nothing: %s", text)
		}
		lines = append(lines, line)
	}
	return lines
}

// find returns the line of a case whose text contains what, compared with a
// reference of this beginning.
func find(t *testing.T, lines []bench.Line, name, what, reference string) bench.Line {
	t.Helper()
	i := slices.IndexFunc(lines, func(l bench.Line) bool {
		return l.Case == name && strings.Contains(l.What, what) && strings.HasPrefix(l.ComparedWith, reference)
	})
	if i < 0 {
		t.Fatalf("%s has no line %q in comparison with %q: %+v", name, what, reference, lines)
	}
	return lines[i]
}

// tiny are sizes with which a scenario takes a fraction of a second.
var tiny = map[string][]string{
	"publish": {"--callers", "4", "--connections", "2", "--time", "20ms"},
	"idle":    {"--subscribers", "50", "--connections", "5"},
	"replay":  {"--frames", "300"},
	"storm":   {"--subscribers", "40", "--streams", "20", "--connections", "4", "--frames", "30"},
	"fanout":  {"--subscribers", "20", "--connections", "2", "--time", "50ms"},
	"latency": {"--rate", "100", "--time", "50ms"},
	"sse":     {"--subscribers", "20", "--connections", "2", "--time", "100ms"},
}

// runningBench are the scenarios, or cases, that measure a running server of which no
// process is known.
var runningBench = [][]string{{"publish"}, {"replay"}, {"storm"}, {"latency"}, {"fanout", "1000-paced"}}

// A running server has other users: bench publishes to channels of its own, and
// closes what it opened, also when it is interrupted.
func TestBenchOfARunningServer(t *testing.T) {
	s := startEmbedded(t)
	mustRun(t, "", "publish", "orders", "1", "--data", "x", "--server", s.address)
	before := mustRun(t, "", "streams", "--server", s.address, "--json")
	at := []string{"--server", s.address, "--rounds", "1", "--json"}
	for _, args := range runningBench {
		scenario := args[0]
		r := command(t, "", slices.Concat([]string{"bench"}, args, tiny[scenario], at)...)
		for _, l := range benchLines(t, r) {
			if l.Parameters["store"] != "running server" {
				t.Errorf("%s: the line is %+v", scenario, l)
			}
		}
		if scenario == "storm" && !strings.Contains(r.stderr, "a running server is not restarted") {
			t.Errorf("nothing says that the server was not restarted: %s", r.stderr)
		}
	}
	endless := start(t, nil, slices.Concat([]string{"bench", "publish", "one-stream"}, at, []string{"--time", "1h"})...)
	open := func() int {
		return strings.Count(mustRun(t, "", "streams", "--server", s.address, "--json"), `"closed":false`)
	}
	eventually(t, "a stream of bench", func() bool { return open() == 2 })
	endless.interrupt()
	if code := endless.end(); code != exitFailed || endless.stderr.String() != "fanfare bench: interrupted\n" {
		t.Errorf("interrupted: exit code %d, %s", code, endless.stderr)
	}

	if n := open(); n != 1 {
		t.Errorf("%d streams are open in the end", n)
	}
	var others []string
	for line := range strings.Lines(mustRun(t, "", "streams", "--server", s.address, "--json")) {
		if !strings.Contains(line, `"channel":"`+bench.ChannelPrefix) {
			others = append(others, line)
		}
	}
	if got := strings.Join(others, ""); got != before {
		t.Errorf("streams of others were %s, and are %s", before, got)
	}
	if policies := mustRun(t, "", "policy", "--server", s.address); strings.Contains(policies, bench.ChannelPrefix) {
		t.Errorf("policies are left:\n%s", policies)
	}
}

// A server that is killed under load makes the run fail.
func TestBenchOfAServerThatDies(t *testing.T) {
	s := startEmbeddedProcess(t)
	endless := start(t, nil, "bench", "publish", "one-caller", "--server", s.address, "--time", "1h")
	eventually(t, "a stream of bench", func() bool {
		return strings.Contains(mustRun(t, "", "streams", "--server", s.address), bench.ChannelPrefix)
	})
	s.signal(syscall.SIGKILL)
	if code := endless.end(); code != exitFailed || !strings.Contains(endless.stderr.String(), "publish one-caller: publish: ") || endless.stdout.String() != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, endless.stdout, endless.stderr)
	}
}

// People get a table, scripts the same without colours; what there is not is a
// dash.
func TestBenchTable(t *testing.T) {
	three, twelve, yes, no := 3.0, 12.0, true, false
	lines := []bench.Line{
		{Scenario: "publish", Case: "64-callers", What: "durable publishes", Unit: "/s", Value: 12345.6, ComparedWith: "rows (a)", Reference: &twelve,
			Ratio: &bench.Spread{Median: 12.34, Min: 9.876, Max: 14.0}, Target: &twelve, AtLeast: true, Met: &yes},
		{Scenario: "storm", Case: "one", What: "queries", Value: 4, Values: bench.Spread{Min: 0, Max: 5}, Target: &three, Met: &no},
		{Scenario: "idle", Case: "one", What: "memory", Unit: "KiB", Value: 8.5678, Values: bench.Spread{Min: 0.0123, Max: 99.96}},
	}
	var out strings.Builder
	p := newProgram(nil, nil, &out, nil)
	report := p.newBenchReport(false)
	for _, l := range lines {
		report.add(l)
	}
	if err := report.flush(); err != nil {
		t.Fatal(err)
	}
	const want = `CASE                WHAT               MEASURED  COMPARED WITH  REFERENCE  RATIO  SPREAD        TARGET  MET
publish 64-callers  durable publishes  12346/s   rows (a)       12.0/s     12.3×  9.88–14.0     ≥ 12×   yes
storm one           queries            4.00      -              -          -      0–5.00        ≤ 3     no
idle one            memory             8.57 KiB  -              -          -      0.0123–100.0  -       -
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	for value, want := range map[float64]string{0: "0", 0.45: "0.450", 999.6: "1000", 1000: "1000", 1234567: "1234567", 1: "1.00", -2.5: "-2.50"} {
		if got := figureText(value); got != want {
			t.Errorf("%s is shown as %s, want %s", fmt.Sprint(value), got, want)
		}
	}
}
