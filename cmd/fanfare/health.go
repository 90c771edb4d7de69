package main

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func (p *program) healthCommand() *cobra.Command {
	var c connection
	cmd := &cobra.Command{
		Use:   "health [SERVICE]",
		Short: "Ask a server whether it is ready",
		Long: `Asks a server's grpc.health.v1 service and prints the answer. Exits with 0 if it
is SERVING, with 1 otherwise.

Without SERVICE it asks for readiness: the store answers and, on PostgreSQL, the
listener listens. The service "liveness" is SERVING as long as the process runs.`,
		Example: `  fanfare health
  fanfare health liveness --server 127.0.0.1:7421`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("at most one SERVICE can be asked for, got %d arguments", len(args))
			}
			if len(args) == 1 && !utf8.ValidString(args[0]) {
				return usagef("SERVICE %q is not valid UTF-8", args[0])
			}
			return nil
		},
		RunE: action(func(cmd *cobra.Command, args []string) error {
			service := ""
			if len(args) == 1 {
				service = args[0]
			}
			return p.checkHealth(cmd.Context(), &c, service)
		}),
	}
	c.addFlags(cmd)
	c.addTimeoutFlag(cmd, healthTimeout, "how long to wait for the answer")
	return cmd
}

// healthTimeout is short: a server that does not answer is not healthy.
const healthTimeout = 5 * time.Second

func (p *program) checkHealth(ctx context.Context, c *connection, service string) error {
	return c.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := healthgrpc.NewHealthClient(conn).Check(ctx, &healthgrpc.HealthCheckRequest{Service: service})
		if status.Code(err) == codes.NotFound {
			return fmt.Errorf("the server at %s has no service %q", c.server, service)
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(p.stdout, answer.GetStatus()); err != nil {
			return &outputError{err}
		}
		if answer.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
			return errors.New("the server is not ready; its log says why")
		}
		return nil
	})
}
