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
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command := newCommand()
	err := command.ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{Use: "chat", Short: "A chat over Fanfare", SilenceUsage: true}
	root.AddCommand(serveCommand(), demoCommand())
	return root
}

func serveCommand() *cobra.Command {
	var database, listen, name string
	var demo bool
	command := &cobra.Command{
		Use: "serve", Short: "Run one server of the application", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return serve(command, database, listen, &web{name: name, demo: demo})
		},
	}
	addDatabase(command, &database)
	flags := command.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:8081", "where to serve")
	flags.StringVar(&name, "name", "chat", "tells this server from others in what it writes")
	flags.BoolVar(&demo, "demo", false, "show the replicas of chat demo in the page")
	return command
}

// addDatabase adds the flag that both commands need.
func addDatabase(command *cobra.Command, to *string) {
	command.Flags().StringVar(to, "database", os.Getenv("FANFARE_STORE"), "postgres://… of the user that fanfare serve has (FANFARE_STORE)")
	command.PreRunE = func(*cobra.Command, []string) error {
		if *to == "" {
			return errors.New("--database names no database")
		}
		return nil
	}
}

// serve completes w and serves until the command's context ends.
func serve(command *cobra.Command, database, listen string, w *web) error {
	ctx := command.Context()
	if err := setUp(ctx, database); err != nil {
		return err
	}
	pool, err := connect(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	lis, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(command.OutOrStdout(), "listening on %s\n", lis.Addr())
	w.pool, w.logger = pool, slog.New(slog.NewTextHandler(command.ErrOrStderr(), nil))
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
