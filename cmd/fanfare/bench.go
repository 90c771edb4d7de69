package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/bench"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// benchOptions are the flags of fanfare bench.
type benchOptions struct {
	connection
	self      bool
	pid       int
	database  string
	reference string
	rounds    int
	time      time.Duration
	sizes     bench.Sizes
	json      bool
}

const (
	defaultRounds    = 7
	defaultBenchTime = 3 * time.Second
	maxRounds        = 1000
	minBenchTime     = 10 * time.Millisecond
	maxBenchTime     = time.Hour
	// maxSize is more of anything than one machine can have.
	maxSize = 10_000_000
)

func (p *program) benchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench SCENARIO [CASE]...",
		Short: "Measure a server",
		Long: `Measures a server, and checks on the way that every frame arrives in order, once.

It puts load on the server at --server, or with --self on one that it starts on
an embedded store in a temporary directory; with --database on one that it
starts on a PostgreSQL database, in the schema ` + bench.Schema + `. On a running server
it publishes to channels that begin with ` + bench.ChannelPrefix + `, and closes their streams
in the end; where that needs a token (--token-file), it must allow admin, and to
publish and subscribe to them. What processor time and memory a server uses is measured on Linux, of a
running one only with --pid.

Each figure is the median of --rounds rounds. With --reference, the program of
bench/limits in Fanfare's repository, each round also measures what Fanfare is
compared with, in an order that alternates; a ratio is the median of those of the
rounds. On a machine that does other work only ratios mean something. Targets are
Fanfare's own, for the sizes that a case has by itself; one that is missed is not
a failure.

` + scenarioTexts(),
		Example: `  fanfare bench publish --self
  fanfare bench storm many-streams --self --subscribers 1000 --streams 1000
  fanfare bench idle --server 127.0.0.1:7420 --pid 4711
  fanfare bench fanout --server 127.0.0.1:7420 --token-file token
  fanfare bench publish 64-callers --database postgres://localhost/bench --reference bin/limits
  fanfare bench replay --self --json | jq .value`,
		Args:              benchArguments,
		ValidArgsFunction: completeBench,
		RunE: action(func(cmd *cobra.Command, args []string) error {
			if err := o.check(onCommandLine(cmd.Flags(), tokenFileFlag)); err != nil {
				return err
			}
			return p.bench(cmd.Context(), cmd, &o, args)
		}),
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.self, "self", false, "start a server of its own, instead of the one at --server")
	f.IntVar(&o.pid, "pid", 0, "the process of the server at --server, on this machine, to measure what it uses")
	f.StringVar(&o.database, "database", "", "start a server of its own on this database: "+postgresForm)
	f.StringVar(&o.reference, "reference", "", "the program to compare with, built from bench/limits")
	f.IntVar(&o.rounds, "rounds", defaultRounds, "how often each side is measured")
	f.DurationVar(&o.time, "time", defaultBenchTime, "how long each side is under load in a round")
	for _, size := range o.benchSizes() {
		f.IntVar(size.value, size.flag, 0, size.usage+"; 0: the case's own number")
	}
	f.BoolVar(&o.json, "json", false, "print a JSON object for each figure")
	return cmd
}

type benchSize struct {
	flag, usage string
	value       *int
}

func (o *benchOptions) benchSizes() []benchSize {
	return []benchSize{
		{"callers", "how many publishers wait for an answer at a time", &o.sizes.Callers},
		{"streams", "how many streams there are", &o.sizes.Streams},
		{"subscribers", "how many subscriptions there are", &o.sizes.Subscribers},
		{"connections", "how many connections they share", &o.sizes.Connections},
		{"frames", "how many frames of each stream are replayed", &o.sizes.Frames},
		{"bytes", "how large payloads are", &o.sizes.Bytes},
		{"rate", "how many frames are published a second", &o.sizes.Rate},
	}
}

// scenarioTexts lists scenarios and their cases for the help.
func scenarioTexts() string {
	var text strings.Builder
	text.WriteString("Scenarios and their cases; without CASE all are measured:\n")
	for _, s := range bench.Scenarios() {
		fmt.Fprintf(&text, "\n  %-9s %s\n", s.Name, s.Short)
		for _, c := range s.Cases {
			fmt.Fprintf(&text, "    %-20s %s\n", c.Name, c.Short)
		}
	}
	return strings.TrimRight(text.String(), "\n")
}

// benchArguments requires a scenario, and cases that it has.
func benchArguments(_ *cobra.Command, args []string) error {
	var names []string
	for _, s := range bench.Scenarios() {
		names = append(names, s.Name)
	}
	if len(args) == 0 {
		return usagef("SCENARIO is needed: %s", strings.Join(names, ", "))
	}
	scenario := bench.Find(args[0])
	if scenario == nil {
		return &usageError{fmt.Sprintf("there is no scenario %q: %s", args[0], strings.Join(names, ", ")), didYouMean(closest(args[0], names))}
	}
	names = nil
	for _, c := range scenario.Cases {
		names = append(names, c.Name)
	}
	for _, name := range args[1:] {
		if scenario.Find(name) == nil {
			return &usageError{fmt.Sprintf("%s has no case %q: %s", scenario.Name, name, strings.Join(names, ", ")), didYouMean(closest(name, names))}
		}
	}
	return nil
}

func completeBench(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var words []cobra.Completion
	if len(args) == 0 {
		for _, s := range bench.Scenarios() {
			words = append(words, cobra.CompletionWithDesc(s.Name, s.Short))
		}
	} else if scenario := bench.Find(args[0]); scenario != nil {
		for _, c := range scenario.Cases {
			words = append(words, cobra.CompletionWithDesc(c.Name, c.Short))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// starts reports whether servers are started.
func (o *benchOptions) starts() bool { return o.self || o.database != "" }

// check refuses what cannot be measured. withToken is true if --token-file was given.
func (o *benchOptions) check(withToken bool) error {
	switch {
	case withToken && o.starts():
		return usagef("--%s is for a running server; those that are started need no token", tokenFileFlag)
	case o.rounds < 1 || o.rounds > maxRounds:
		return usagef("--rounds must be from 1 to %d", maxRounds)
	case o.time < minBenchTime || o.time > maxBenchTime:
		return usagef("--time must be from %s to %s", minBenchTime, ageText(maxBenchTime))
	case o.pid < 0:
		return usagef("--pid must be the number of a process")
	case o.pid > 0 && o.starts():
		return usagef("--pid is for a running server; those that are started are known")
	}
	for _, size := range o.benchSizes() {
		if *size.value < 0 || *size.value > maxSize {
			return usagef("--%s must be from 0 to %d", size.flag, maxSize)
		}
	}
	if o.database == "" {
		return nil
	}
	if !strings.HasPrefix(o.database, "postgres://") && !strings.HasPrefix(o.database, "postgresql://") {
		// The value is not repeated: it may hold a password.
		return usagef("--database must have the form %s", postgresForm)
	}
	if err := (pgbacklog.Config{URL: o.database}).Check(); err != nil {
		return usagef("--database: %v", err)
	}
	return nil
}

// config is what is measured, and how. A running server must answer.
func (o *benchOptions) config(ctx context.Context, report func(bench.Line)) (bench.Config, error) {
	config := bench.Config{
		Database: o.database, Reference: o.reference, Rounds: o.rounds, Time: o.time, Sizes: o.sizes,
		Report: report,
	}
	if o.starts() {
		var err error
		config.Executable, err = os.Executable()
		return config, err
	}
	// A call whose error explains itself, before any load.
	o.timeout = healthTimeout
	err := o.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := fanfarev1.NewFanfareServiceClient(conn).ListPolicies(ctx, &fanfarev1.ListPoliciesRequest{})
		return withNeeds(err)
	})
	config.Server, config.PID, config.Credentials = o.server, o.pid, o.token.credentials()
	if err == nil && o.pid != 0 {
		_, err = bench.ReadUsage(o.pid)
	}
	return config, err
}

// withNeeds adds to an error what a token must allow, if this one does not.
func withNeeds(err error) error {
	if status.Code(err) != codes.PermissionDenied {
		return err
	}
	return fmt.Errorf("%v: it must allow admin, and to publish and subscribe to channels that begin with %s", err, bench.ChannelPrefix)
}

// bench measures the scenario and cases that args name.
func (p *program) bench(ctx context.Context, cmd *cobra.Command, o *benchOptions, args []string) error {
	report := p.newBenchReport(o.json)
	config, err := o.config(ctx, report.add)
	if err != nil {
		return err
	}
	progress := p.newProgressLine()
	config.Progress = progress.show
	told := map[string]bool{}
	config.Note = func(text string) {
		if !told[text] { // cases have notes in common
			told[text] = true
			progress.erase()
			p.complain(cmd, text)
		}
	}
	scenario := bench.Find(args[0])
	cases := args[1:]
	if len(cases) == 0 {
		for _, c := range scenario.Cases {
			cases = append(cases, c.Name)
		}
	}
	for _, name := range cases {
		if err = scenario.Measure(ctx, config, scenario.Find(name)); err != nil || report.err != nil {
			break
		}
	}
	progress.erase()
	// What was measured before an error is worth reading.
	if flushing := report.flush(); flushing != nil {
		return flushing
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	return withNeeds(err)
}
