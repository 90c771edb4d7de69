// Command chat is a chat with rooms. Its servers write messages by SQL transactions
// that publish them, and its pages subscribe to Fanfare.
//
//	chat serve --database URL  # one server of the application
//	chat demo  --database URL  # everything: three replicas, two servers, nginx
//
// README.md in this directory shows a run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage:
  chat serve --database URL [--listen 127.0.0.1:8081] [--name chat] [--demo]
  chat demo  --database URL [--site 127.0.0.1:8080] [--fanfare bin/fanfare] [--nginx nginx]
             [--nginx-config deploy/nginx] [--restart 5s]
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 all went well, 1 something failed, 2 the command
// line was wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	commands := map[string]func(context.Context, []string, io.Writer, io.Writer) error{"serve": runServe, "demo": runDemo}
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprint(stderr, usage)
		return 2
	}
	err := commands[args[0]](ctx, args[1:], stdout, stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, usage)
		return 2
	default:
		fmt.Fprintf(stderr, "chat %s: %v\n", args[0], err)
		return 1
	}
}

var errUsage = errors.New("wrong usage")

// parse refuses unknown flags, which flags then complains about, and arguments.
func parse(flags *flag.FlagSet, args []string, stderr io.Writer) error {
	flags.SetOutput(stderr)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if err != nil || flags.NArg() > 0 {
		return errUsage
	}
	return nil
}

func runServe(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("chat serve", flag.ContinueOnError)
	database := flags.String("database", os.Getenv("FANFARE_STORE"), "postgres://… of the user that fanfare serve has")
	listen := flags.String("listen", "127.0.0.1:8081", "where to serve")
	name := flags.String("name", "chat", "tells this server from others in what it writes")
	demo := flags.Bool("demo", false, "show the replicas of chat demo in the page")
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	if *database == "" || *name == "" {
		return errUsage
	}
	if err := setUp(ctx, *database); err != nil {
		return err
	}
	pool, err := connect(ctx, *database)
	if err != nil {
		return err
	}
	defer pool.Close()
	lis, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "listening on %s\n", lis.Addr())
	w := &web{pool: pool, name: *name, demo: *demo, logger: slog.New(slog.NewTextHandler(stderr, nil))}
	return serveHTTP(ctx, lis, w.handler())
}

// serveHTTP serves until ctx ends, then lets the answers under way out.
func serveHTTP(ctx context.Context, lis net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		// Longer than nginx keeps a connection that it does not use.
		IdleTimeout: 2 * time.Minute,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := server.Shutdown(ending)
	<-served
	return err
}
