package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// edgeOptions are the flags of fanfare edge.
type edgeOptions struct {
	servers    []string
	token      clientToken
	web        webOptions
	auth       authOptions
	remote     bool
	drainDelay time.Duration
	logLevel   string
	logFormat  string
}

func (p *program) edgeCommand() *cobra.Command {
	o := edgeOptions{web: webOptions{timeouts: p.webTimeouts}}
	cmd := &cobra.Command{
		Use:   "edge",
		Short: "Serve event streams to browsers, in front of servers",
		Long: `Serves event streams (text/event-stream) to browsers in front of servers.

It subscribes once to each stream that anybody watches, however many browsers do,
at one of the servers, and goes on at another one when that goes away. Browsers
resume at any edge. It keeps nothing on disk, so run as many as you like, near the
browsers; put a proxy in front for TLS.

It only reads: it serves /v1/streams, /v1/signed-url, /fanfare.js, /healthz and
/livez. JSON over HTTP, Connect and gRPC-Web, by which streams are
published to and closed, are served by fanfare serve --http, which decides itself
what their callers may do. /healthz is 200 while a server that is ready is connected
and takes the edge's token.

To the servers the edge has an identity of its own (--token-file, or FANFARE_TOKEN),
which may subscribe to what all browsers together may see. What each of them may see
is decided here: by a token, which the browser shows in the header Authorization or
in a cookie (--http-cookie), and which is verified with --jwt-secret-file,
--jwt-public-key-file or --jwt-jwks-url; or by a signed URL (--signed-url-key-file).
The edge signs URLs for who shows it a token. Where it verifies none, URLs are signed
where browsers sign in, with the same key. With neither tokens nor signed URLs everybody
may see everything, and the edge serves this host only.

SIGTERM and SIGINT drain: /healthz says so, everything is served for --drain-delay,
then browsers are told to come back, to another edge. A second signal ends it at
once.`,
		Example: `  fanfare edge --server 10.0.0.1:7420 --server 10.0.0.2:7420 --http 0.0.0.0:7480 --jwt-jwks-url https://id.example.com/keys
  FANFARE_TOKEN=… fanfare edge --server dns:///fanfare:7420 --http unix:///run/edge.sock --signed-url-key-file /run/secrets/urls
  fanfare edge --http 127.0.0.1:7580`,
		Args: noArguments,
		RunE: action(func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			logger, err := newLogger(p.stderr, o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			defer p.collectLess()()
			return p.edge(cmd.Context(), &o, logger)
		}),
	}
	o.addFlags(cmd)
	return cmd
}

func (o *edgeOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.servers, "server", []string{defaultAddress}, "address of a server: host:port, unix:///PATH, or a name that stands for all as dns:///NAME:PORT; may be repeated")
	o.token.addFlags(cmd)
	f.StringVar(&o.web.http, "http", defaultHTTPAddress, "where to serve: host:port, or unix:///PATH for a socket with mode 0600")
	o.web.addFlags(cmd)
	o.auth.addFlags(cmd)
	f.BoolVar(&o.remote, "insecure-allow-remote", false, "serve other hosts without authentication: whoever reaches the address may see everything")
	f.DurationVar(&o.drainDelay, "drain-delay", 5*time.Second, "how long to go on serving after a signal, so that probes and balancers see it")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// check refuses what cannot be served, and completes the options.
func (o *edgeOptions) check(cmd *cobra.Command) error {
	for _, server := range o.servers {
		if server == "" {
			return usagef("--server must not be empty")
		}
		if err := checkServer(server); err != nil {
			return err
		}
		if advice := portAdvice(server); advice != "" {
			return usagef("--server %s: %s", server, advice)
		}
	}
	if err := o.web.check(cmd, o.auth.configured()); err != nil {
		return err
	}
	if err := o.auth.check(); err != nil {
		return err
	}
	switch {
	case o.drainDelay < 0:
		return usagef("--drain-delay must not be negative")
	case o.web.http == httpOff:
		return usagef("--http off leaves an edge with nothing to do")
	}
	// An edge without a port is none.
	o.web.required = true
	return o.checkHTTP(cmd.Context())
}

func (o *edgeOptions) checkHTTP(ctx context.Context) error {
	return checkAddress(ctx, "http", o.web.http, o.remote || o.authenticates())
}

// authenticates reports whether browsers must show who they are.
func (o *edgeOptions) authenticates() bool { return o.auth.configured() || o.web.signer != nil }
