package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// benchSettings keep checkpoints, whose rate differs between what is compared,
// out of the measurements, and count statements. What a commit does is left as it
// is.
var benchSettings = []string{
	"max_connections=300",
	"shared_buffers=512MB",
	"max_wal_size=8GB",
	"checkpoint_timeout=1h",
	"shared_preload_libraries=pg_stat_statements",
}

type postgresOptions struct {
	settings []string
	flush    time.Duration
}

func postgresCommand() *cobra.Command {
	var o postgresOptions
	cmd := &cobra.Command{
		Use:   "postgres [flags] -- COMMAND [ARGUMENT…]",
		Short: "Run a command with a throwaway PostgreSQL server",
		Long: `Runs a command with FANFARE_STORE set to the URL of a new PostgreSQL server on
127.0.0.1, and ends the server with it. Its files are in the directory for
temporary ones (TMPDIR), which should be on the disk that is meant. The binaries
are those of FANFARE_TEST_POSTGRES_BIN or of PATH.

With --flush, a flush of the log takes so much longer: PostgreSQL waits for
commit_delay before each, with the log's lock held and those who commit
meanwhile waiting for it, just as for a slower disk. One flush then serves them
all.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	cmd.Flags().StringArrayVar(&o.settings, "setting", nil, "a setting of the server, name=value; may be repeated")
	cmd.Flags().DurationVar(&o.flush, "flush", 0, "how much longer a flush takes than this disk needs, up to 100ms")
	return cmd
}

func (o *postgresOptions) run(cmd *cobra.Command, args []string) error {
	settings := append(append([]string(nil), benchSettings...), o.settings...)
	// PostgreSQL waits only if this many other transactions are under way.
	settings = append(settings, fmt.Sprintf("commit_delay=%d", o.flush.Microseconds()), "commit_siblings=0")
	l := &lifetime{}
	var url string
	if err := l.do(func() { url = pgtest.Start(l, settings...).URL("postgres") }); err != nil {
		return err
	}
	command := exec.CommandContext(cmd.Context(), args[0], args[1:]...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.Env = append(os.Environ(), "FANFARE_STORE="+url)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr()
	err := command.Run()
	return errors.Join(err, l.do(l.end))
}

// lifetime is to pgtest what a test is: it ends what was started in it, and takes
// failures, which do turns into errors.
type lifetime struct {
	testing.TB // nil: has what pgtest does not call
	ends       []func()
}

// failure is what a lifetime panics with.
type failure struct{ text string }

func (f failure) Error() string { return f.text }

// do returns the failure of what is done.
func (l *lifetime) do(what func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(failure)
			if !ok {
				panic(p)
			}
			err = f
		}
	}()
	what()
	return nil
}

// end ends what was started, the last first, each once.
func (l *lifetime) end() {
	for len(l.ends) > 0 {
		last := l.ends[len(l.ends)-1]
		l.ends = l.ends[:len(l.ends)-1]
		last()
	}
}

func (l *lifetime) Cleanup(end func()) { l.ends = append(l.ends, end) }
func (l *lifetime) Error(args ...any)  { panic(failure{fmt.Sprint(args...)}) }
func (l *lifetime) Fatal(args ...any)  { panic(failure{fmt.Sprint(args...)}) }
func (l *lifetime) Failed() bool       { return false }
func (l *lifetime) Helper()            {}
