package main

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
)

// serveOptions are the flags of fanfare serve.
type serveOptions struct {
	storeOptions
	listenURL  string
	migrate    string
	grpc       string
	remote     bool
	drainDelay time.Duration
	instance   string
	logLevel   string
	logFormat  string
	// maxFrameBytes 0 leaves the schema's setting.
	maxFrameBytes int
	backlog       int64
	// setBacklog is true if backlog was given: it then becomes the schema's
	// default.
	setBacklog bool
}

// storeOptions say which store a command works on.
type storeOptions struct {
	store  string
	schema string
}

func (o *storeOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.store, "store", "", "the database, postgres://USER:PASSWORD@HOST:PORT/DATABASE")
	f.StringVar(&o.schema, "schema", pgbacklog.DefaultSchema, "the database schema with Fanfare's tables and functions")
}

// check refuses a store that is missing or of a kind that this version has not,
// and what of a URL and a schema's name is wrong whatever the server says.
func (o *storeOptions) check() error {
	const form = "postgres://USER:PASSWORD@HOST:PORT/DATABASE"
	switch {
	case o.store == "":
		return usagef("--store is needed: the PostgreSQL database, as --store %s or in FANFARE_STORE", form)
	case o.schema == "":
		return usagef("--schema must not be empty")
	case !strings.HasPrefix(o.store, "postgres://") && !strings.HasPrefix(o.store, "postgresql://"):
		// The value is not repeated: it may hold a password.
		return usagef("--store must have the form %s", form)
	}
	if err := (pgbacklog.Config{URL: o.store, Schema: o.schema}).Check(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

func (p *program) serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve publishers and subscribers",
		Long: `Serves publishers and subscribers of one schema of a PostgreSQL database. Any
number of servers may do so: each delivers what was published through any of
them, or by SQL.

SIGTERM and SIGINT drain: the server reports NOT_SERVING, goes on serving for
--drain-delay, tells its subscribers where to resume, and exits with 0. A second
signal ends it at once.

There is no authentication yet, so it serves this host only.`,
		Example: `  fanfare serve --store postgres://localhost/app
  FANFARE_STORE=postgres://fanfare:secret@db/app fanfare serve --migrate off
  fanfare serve --store postgres://localhost/app --grpc unix:///run/fanfare.sock
  # The pool goes through a transaction pooler, LISTEN does not survive one:
  fanfare serve --store postgres://pooler:6432/app --listen-database-url postgres://db:5432/app`,
		Args: noArguments,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			o.setBacklog = cmd.Flags().Changed("backlog")
			if err := o.check(cmd.Context()); err != nil {
				return err
			}
			logger, err := newLogger(p.stderr, o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			return p.serve(cmd.Context(), &o, logger)
		}),
	}
	o.addFlags(cmd)
	return cmd
}

func (o *serveOptions) addFlags(cmd *cobra.Command) {
	o.storeOptions.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.listenURL, "listen-database-url", "", "the database's direct URL for LISTEN and migrations, if --store leads through a pooler")
	f.StringVar(&o.migrate, "migrate", "auto", "auto: create or update the schema first; off: expect fanfare migrate to have done it")
	f.StringVar(&o.grpc, "grpc", defaultAddress, "where to serve: host:port, or unix:///PATH for a socket with mode 0600")
	f.BoolVar(&o.remote, "insecure-allow-remote", false, "serve other hosts too: whoever reaches the address may publish and read everything")
	f.Int64Var(&o.backlog, "backlog", 1000, "how many of a stream's newest frames a new subscriber may replay; if given, it is stored as the schema's default")
	f.IntVar(&o.maxFrameBytes, "max-frame-bytes", 0, "the largest payload; 0: the schema's setting, 1 MiB in a new one")
	f.DurationVar(&o.drainDelay, "drain-delay", 5*time.Second, "how long to go on serving after a signal, so that probes and balancers see NOT_SERVING")
	f.StringVar(&o.instance, "instance", "", "this server's name in logs and pg_stat_activity (default: host name and process id)")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// check refuses what cannot be served, and completes the options.
func (o *serveOptions) check(ctx context.Context) error {
	if err := o.storeOptions.check(); err != nil {
		return err
	}
	switch {
	case o.migrate != "auto" && o.migrate != "off":
		return usagef("--migrate %q is not auto or off", o.migrate)
	case o.setBacklog && o.backlog < 0:
		return usagef("--backlog must not be negative")
	case o.drainDelay < 0:
		return usagef("--drain-delay must not be negative")
	case o.maxFrameBytes < 0 || o.maxFrameBytes > backlog.MaxBatchBytes:
		return usagef("--max-frame-bytes must be from 0 to %d", backlog.MaxBatchBytes)
	}
	if o.listenURL == "" {
		o.listenURL = o.store
	}
	if err := (pgbacklog.Config{URL: o.listenURL}).Check(); err != nil {
		return usagef("--listen-database-url: %v", err)
	}
	if o.instance == "" {
		o.instance = defaultInstance()
	}
	return checkAddress(ctx, o.grpc, o.remote)
}

// defaultInstance tells apart the servers of a host, too.
func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "-" + strconv.Itoa(os.Getpid())
}

// storeConfig is the configuration of the store.
func (o *serveOptions) storeConfig(logger *slog.Logger) pgbacklog.Config {
	config := pgbacklog.Config{
		URL:           o.store,
		Schema:        o.schema,
		Instance:      o.instance,
		Logger:        logger,
		MaxFrameBytes: o.maxFrameBytes,
	}
	if o.setBacklog {
		config.Backlog = &o.backlog
	}
	return config
}
