package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
)

// serveOptions are the flags of fanfare serve.
type serveOptions struct {
	storeOptions
	auth       authOptions
	web        webOptions
	replicas   int
	listenURL  string
	migrate    string
	grpc       string
	remote     bool
	drainDelay time.Duration
	instance   string
	logLevel   string
	logFormat  string
	// pollInterval 0 listens.
	pollInterval time.Duration
	// maxStreamAge 0 is none.
	maxStreamAge time.Duration
	// maxSubscriptions is for all, maxSessionSubscriptions for one Session.
	maxSubscriptions, maxSessionSubscriptions int
	// maxFrameBytes 0 leaves the store's setting.
	maxFrameBytes int
	backlog       int64
	// setBacklog is true if backlog was given: it then becomes the store's
	// default.
	setBacklog bool
}

const (
	defaultMaxSubscriptions        = 100_000
	defaultMaxSessionSubscriptions = 100_000
	// mostSubscriptions is far above what one machine holds.
	mostSubscriptions = 10_000_000
	// minStreamAge keeps clients from doing nothing but begin anew.
	minStreamAge = time.Second
	// minPollInterval and maxPollInterval bound the questions to the database on
	// one side, and how late frames come on the other.
	minPollInterval = 100 * time.Millisecond
	maxPollInterval = time.Hour
)

func (p *program) serveCommand() *cobra.Command {
	o := serveOptions{web: webOptions{timeouts: p.webTimeouts}}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve publishers and subscribers",
		Long: `Serves publishers and subscribers.

With no flag it keeps everything in one file, fanfare.db in the data directory.
One server at a time may use such a file. With --store postgres://… it uses one
schema of a PostgreSQL database, and any number of servers may do so: each
delivers what was published through any of them, or by SQL.

SIGTERM and SIGINT drain: the server reports NOT_SERVING, goes on serving for
--drain-delay, tells its subscribers where to resume, and exits with 0. A second
signal ends it at once.

With --max-stream-age every call of Subscribe and PublishStream is ended when it
is that old, each at a moment of its own within the last tenth, and its client is
told where to resume. With --poll-interval the server asks its database for new
frames instead of holding a connection that listens, for databases and poolers
that cannot LISTEN: frames come up to that much later, and ephemeral ones are
refused.

Over HTTP (--http) it serves the console, event streams for browsers, JSON for
curl and everything else, the Connect protocol and gRPC-Web; /openapi.json
describes it. Put a proxy in front for TLS.

Without authentication it serves this host only. With --jwt-secret-file,
--jwt-public-key-file or --jwt-jwks-url callers need tokens, which say what they may
do, and it may serve other hosts. Connections over a Unix socket need none: the mode
of the socket decides.`,
		Example: `  fanfare serve
  fanfare serve --data-dir /var/lib/fanfare --grpc unix:///run/fanfare.sock --http off
  fanfare serve --store postgres://localhost/app
  FANFARE_STORE=postgres://fanfare:secret@db/app fanfare serve --migrate off --replicas 3
  # The pool goes through a transaction pooler, LISTEN does not survive one:
  fanfare serve --store postgres://pooler:6432/app --listen-database-url postgres://db:5432/app
  # There is only the pooler:
  fanfare serve --store postgres://pooler:6432/app --migrate off --poll-interval 1s`,
		Args: noArguments,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			o.setBacklog = cmd.Flags().Changed("backlog")
			if err := o.web.check(cmd, o.auth.configured()); err != nil {
				return err
			}
			if err := o.check(cmd.Context(), p.env, cmd.Flags()); err != nil {
				return err
			}
			logger, err := newLogger(p.stderr, o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			defer p.collectLess()()
			return p.serve(cmd.Context(), &o, logger)
		}),
	}
	o.addFlags(cmd)
	return cmd
}

func (o *serveOptions) addFlags(cmd *cobra.Command) {
	o.storeOptions.addFlags(cmd)
	o.web.addFlags(cmd)
	o.auth.addFlags(cmd)
	f := cmd.Flags()
	f.IntVar(&o.replicas, "replicas", 1, "how many servers share the store: at start each checks whether the database allows the connections of all (PostgreSQL only)")
	f.StringVar(&o.listenURL, "listen-database-url", "", "the database's direct URL for LISTEN and migrations, if --store leads through a pooler (PostgreSQL only)")
	f.StringVar(&o.migrate, "migrate", "auto", "auto: create or update the schema first; off: expect fanfare migrate to have done it (PostgreSQL only)")
	f.StringVar(&o.grpc, "grpc", defaultAddress, "where to serve: host:port, or unix:///PATH for a socket with mode 0600")
	f.StringVar(&o.web.http, "http", defaultHTTPAddress, "where to serve the console, event streams, JSON and health pages over HTTP: as --grpc, or "+httpOff+"; if it is not given and its port is in use, it is off")
	f.BoolVar(&o.remote, "insecure-allow-remote", false, "serve other hosts too: whoever reaches the address may publish and read everything")
	f.Int64Var(&o.backlog, "backlog", 1000, "how many of a stream's newest frames a new subscriber may replay; if given, it is stored as the store's default")
	f.IntVar(&o.maxFrameBytes, "max-frame-bytes", 0, "the largest payload; 0: the store's setting, 1 MiB in a new one")
	f.DurationVar(&o.drainDelay, "drain-delay", 5*time.Second, "how long to go on serving after a signal, so that probes and balancers see NOT_SERVING")
	f.DurationVar(&o.pollInterval, "poll-interval", 0, "ask the database for new frames this often instead of listening; ephemeral frames are then refused; 0: listen (PostgreSQL only)")
	f.DurationVar(&o.maxStreamAge, "max-stream-age", 0, "end each streaming call at this age, and have its client resume; 0: never")
	f.IntVar(&o.maxSubscriptions, "max-subscriptions", defaultMaxSubscriptions, "how many streaming calls, and subscriptions of sessions, to serve at a time; further ones are refused")
	f.IntVar(&o.maxSessionSubscriptions, "max-session-subscriptions", defaultMaxSessionSubscriptions, "how many of them one session may have")
	f.StringVar(&o.instance, "instance", "", "this server's name in logs and pg_stat_activity (default: host name and process id)")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// check refuses what cannot be served, and completes the options. flags
// are those that were given.
func (o *serveOptions) check(ctx context.Context, env map[string]string, flags *pflag.FlagSet) error {
	if o.web.signer != nil && !o.auth.configured() {
		// It would guard event streams beside JSON, by which everybody may do everything.
		return usagef("--signed-url-key-file is for what a token allows, and none is asked for: give --jwt-secret-file, --jwt-public-key-file or --jwt-jwks-url")
	}
	if err := o.storeOptions.check(env, flags); err != nil {
		return err
	}
	if err := o.auth.check(); err != nil {
		return err
	}
	switch {
	case o.migrate != "auto" && o.migrate != "off":
		return usagef("--migrate %q is not auto or off", o.migrate)
	case o.replicas < 1:
		return usagef("--replicas must be at least 1")
	case o.setBacklog && o.backlog < 0:
		return usagef("--backlog must not be negative")
	case o.drainDelay < 0:
		return usagef("--drain-delay must not be negative")
	case o.maxFrameBytes < 0 || o.maxFrameBytes > backlog.MaxBatchBytes:
		return usagef("--max-frame-bytes must be from 0 to %d", backlog.MaxBatchBytes)
	case o.maxStreamAge != 0 && o.maxStreamAge < minStreamAge:
		return usagef("--max-stream-age must be at least %s, or 0 for none", minStreamAge)
	case o.maxSubscriptions < 1 || o.maxSubscriptions > mostSubscriptions:
		return usagef("--max-subscriptions must be from 1 to %d", mostSubscriptions)
	case o.maxSessionSubscriptions < 1 || o.maxSessionSubscriptions > mostSubscriptions:
		return usagef("--max-session-subscriptions must be from 1 to %d", mostSubscriptions)
	}
	checkKind := o.checkPostgreSQL
	if o.embedded() {
		checkKind = o.checkEmbedded
	}
	if err := checkKind(); err != nil {
		return err
	}
	if o.instance == "" {
		o.instance = defaultInstance()
	}
	return o.checkAddresses(ctx)
}

// checkPostgreSQL checks what concerns a store on PostgreSQL only.
func (o *serveOptions) checkPostgreSQL() error {
	if o.pollInterval != 0 && (o.pollInterval < minPollInterval || o.pollInterval > maxPollInterval) {
		return usagef("--poll-interval must be from %s to %s, or 0 to listen", minPollInterval, ageText(maxPollInterval))
	}
	if o.listenURL == "" {
		o.listenURL = o.store
	}
	if err := (pgbacklog.Config{URL: o.listenURL}).Check(); err != nil {
		return usagef("--listen-database-url: %v", err)
	}
	return nil
}

// checkEmbedded refuses what an embedded store cannot do.
func (o *serveOptions) checkEmbedded() error {
	switch {
	case o.replicas > 1:
		return usagef("--replicas %d: the embedded store in %s is for one process; replicas share a PostgreSQL database, named with --store %s", o.replicas, o.path, postgresForm)
	case o.listenURL != "":
		return o.postgreSQLOnly("--listen-database-url")
	case o.migrate == "off":
		return o.postgreSQLOnly("--migrate off")
	case o.pollInterval != 0:
		return o.postgreSQLOnly("--poll-interval")
	}
	return nil
}

// checkAddresses checks where to serve, without opening anything.
func (o *serveOptions) checkAddresses(ctx context.Context) error {
	remote := o.remote || o.auth.configured()
	if err := checkAddress(ctx, "grpc", o.grpc, remote); err != nil {
		return err
	}
	if o.web.http == httpOff {
		return nil
	}
	if err := checkAddress(ctx, "http", o.web.http, remote); err != nil {
		return err
	}
	if o.web.setHTTP && o.web.http == o.grpc && !strings.HasSuffix(o.web.http, ":0") {
		return usagef("--grpc and --http are both %s: each needs an address of its own", o.web.http)
	}
	return nil
}

// defaultInstance tells apart the servers of a host, too.
func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "-" + strconv.Itoa(os.Getpid())
}
