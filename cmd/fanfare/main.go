// Command fanfare runs a Fanfare server and speaks to one: it publishes,
// subscribes, lists and closes streams, and sets policies, from a shell.
//
// Flags come before the environment, the environment before the defaults. The
// exit code is 0 if all went well, 1 if something failed, and 2 if the command
// line was wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/fatih/color"
	"github.com/spf13/cobra"
)

// Exit codes, part of the command line's contract.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	go watchSignals(cancel)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// run executes the command line args (without the program's name) with the
// environment env ("NAME=value" each) and returns the exit code. The end of ctx
// is what a signal is: it drains a server and ends a subscription.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return newProgram(env, stdin, stdout, stderr).run(ctx, args)
}

func (p *program) run(ctx context.Context, args []string) int {
	root := p.rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var failed *failure
	if errors.As(err, &failed) {
		p.print(errorStyle, cmd, failed.Error())
		return exitFailed
	}
	if message := errorText(err); message != "" {
		p.print(errorStyle, cmd, fmt.Sprintf("%s; %ssee %s --help", message, hint(cmd, err), cmd.CommandPath()))
	}
	return exitUsage
}

// program is what the commands share: the streams and the environment they were
// started with.
type program struct {
	// env are the variables of the environment, by name.
	env    map[string]string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// color is the value of --color; empty before the flags are read.
	color colorMode
	// noColor is true if NO_COLOR is set (no-color.org); term is TERM.
	noColor bool
	term    string
	// webTimeouts are those of what is served over HTTP.
	webTimeouts webTimeouts
}

func newProgram(env []string, stdin io.Reader, stdout, stderr io.Writer) *program {
	p := &program{env: parseEnvironment(env), stdin: stdin, stdout: stdout, stderr: stderr, webTimeouts: usualWebTimeouts()}
	for _, entry := range env {
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "NO_COLOR":
			p.noColor = value != ""
		case "TERM":
			p.term = value
		}
	}
	return p
}

// Groups of commands, as the help shows them.
const (
	serverGroup  = "server"
	streamGroup  = "streams"
	settingGroup = "settings"
	otherGroup   = "other"
)

func (p *program) rootCommand() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "fanfare",
		Short: "What is published to a stream reaches every subscriber, in order, once",
		Long: `Fanfare delivers what is published to a stream to every subscriber of it, in
order, once, and says so when it cannot. "fanfare serve" needs nothing else: it
keeps the streams in a file. With --store postgres://… it works on a PostgreSQL
database, with as many servers as you like, and applications publish in their
own transactions.

Every flag may also be given as an environment variable: --listen-database-url
is FANFARE_LISTEN_DATABASE_URL. Flags come before the environment. Exit codes:
0 all went well, 1 something failed, 2 the command line was wrong.`,
		Example: `  # In three terminals:
  fanfare serve
  fanfare subscribe chat/messages lobby
  fanfare publish chat/messages lobby --data 'hello'

  # A file, a frame for each of its lines, and back:
  fanfare publish import run-12 --lines < rows.jsonl
  fanfare subscribe import run-12 --count 1000 > copy.jsonl

  # What is there, and how much of it is kept:
  fanfare streams
  fanfare policy set import --backlog 100000 --retention-age 7d`,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // hint makes them, on the one line
		PersistentPreRunE:  func(cmd *cobra.Command, _ []string) error { return p.applyEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return action(p.printVersion)(cmd, nil)
			}
			cmd.SetOut(p.stderr)
			if err := cmd.Help(); err != nil {
				return &failure{err}
			}
			return errors.New("") // the help says it all
		},
	}
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.PersistentFlags().Var(&p.color, "color", "`WHEN` to use colours: auto, on a terminal unless NO_COLOR is set; always; never (default auto)")
	root.Flags().BoolVar(&version, "version", false, "print the version, as fanfare version does")
	p.addCommands(root)
	return root
}

func (p *program) addCommands(root *cobra.Command) {
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{streamGroup, "Publish and subscribe:", []*cobra.Command{p.publishCommand(), p.subscribeCommand(), p.streamsCommand(), p.closeCommand()}},
		{settingGroup, "Decide what is kept:", []*cobra.Command{p.policyCommand()}},
		{serverGroup, "Run a server:", []*cobra.Command{p.serveCommand(), p.edgeCommand(), p.healthCommand(), p.migrateCommand(), p.benchCommand()}},
		{otherGroup, "More:", []*cobra.Command{p.tokenCommand(), p.versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, command := range group.commands {
			command.GroupID = group.id
			root.AddCommand(command)
		}
	}
	root.SetHelpCommandGroupID(otherGroup)
	root.SetCompletionCommandGroupID(otherGroup)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	p.addCompletion(root)
}

// complain writes one line of warning to standard error.
func (p *program) complain(cmd *cobra.Command, message string) { p.print(warningStyle, cmd, message) }

// print writes a message to standard error, on one line.
func (p *program) print(style *color.Color, cmd *cobra.Command, message string) {
	d := p.display(p.stderr)
	fmt.Fprintf(p.stderr, "%s %s\n", d.paint(style, cmd.CommandPath()+":"), d.clean(oneLine(message)))
}

// failure is an error of what a command did, as opposed to one of how it was
// called.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// action makes a command's function: its errors are failures, unless they are
// usage errors.
func action(do func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := do(cmd, args)
		var usage *usageError
		if err == nil || errors.As(err, &usage) {
			return err
		}
		return &failure{err}
	}
}

// usageError is an error of the command line that only the command itself can
// find.
type usageError struct {
	message string
	// hint is what was probably meant, or "".
	hint string
}

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// oneLine keeps a message of many lines, such as a driver's, on one.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
