// Command fanfare runs a Fanfare server and speaks to one: it publishes,
// subscribes, lists and closes streams from a shell.
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
	"os/signal"
	"strings"
	"syscall"

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

// watchSignals asks for an orderly end at the first signal and ends the process
// at the second. It does not rely on the signals' default, which is to be ignored
// for the first process of a container and for a shell's background jobs.
func watchSignals(cancel context.CancelFunc) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	<-signals
	cancel()
	<-signals
	os.Exit(exitFailed)
}

// run executes the command line args (without the program's name) with the
// environment env ("NAME=value" each) and returns the exit code. The end of ctx
// is what a signal is: it drains a server and ends a subscription.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{env: parseEnvironment(env), stdin: stdin, stdout: stdout, stderr: stderr}
	root := p.rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var failed *failure
	if errors.As(err, &failed) {
		p.complain(cmd, oneLine(failed.Error()))
		return exitFailed
	}
	if message := oneLine(err.Error()); message != "" {
		p.complain(cmd, fmt.Sprintf("%s; see %s --help", message, cmd.CommandPath()))
	}
	return exitUsage
}

// program is what the commands share: the streams and the environment they were
// started with.
type program struct {
	env    map[string]string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "fanfare",
		Short: "Frames published in a PostgreSQL transaction reach every subscriber, in order, once",
		Long: `Fanfare delivers what is published in a PostgreSQL transaction to every
subscriber of its stream, on every replica, in order, once.

Every flag may also be given as an environment variable: --listen-database-url
is FANFARE_LISTEN_DATABASE_URL. Flags come before the environment. Exit codes:
0 all went well, 1 something failed, 2 the command line was wrong.`,
		Example: `  fanfare serve --store postgres://localhost/app
  fanfare subscribe chat/messages lobby
  fanfare publish chat/messages lobby --data 'hello'`,
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true,
		PersistentPreRunE:  func(cmd *cobra.Command, _ []string) error { return p.applyEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
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
	root.AddCommand(
		p.serveCommand(), p.publishCommand(), p.subscribeCommand(), p.closeCommand(),
		p.streamsCommand(), p.migrateCommand(), p.healthCommand(), p.versionCommand(),
	)
	return root
}

// complain writes one line to standard error.
func (p *program) complain(cmd *cobra.Command, message string) {
	fmt.Fprintf(p.stderr, "%s: %s\n", cmd.CommandPath(), message)
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
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// oneLine keeps a message of many lines, such as a driver's, on one.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
