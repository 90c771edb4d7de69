package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

func (p *program) closeCommand() *cobra.Command {
	var c connection
	cmd := &cobra.Command{
		Use:   "close CHANNEL SCOPE",
		Short: "Close a stream: its subscribers end after the last frame",
		Long: `Closes a stream and prints its last position. Its subscribers get every frame up
to it, then end. The next publish opens the stream again, numbered from 1.
Closing a stream that is closed or does not exist does nothing and is no error.`,
		Example: `  fanfare close orders 4711`,
		Args:    streamArguments,
		RunE: action(func(cmd *cobra.Command, args []string) error {
			stream := streamOf(args)
			err := c.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				answer, err := fanfarev1.NewFanfareServiceClient(conn).CloseStream(ctx, &fanfarev1.CloseStreamRequest{Channel: stream.Channel, Scope: stream.Scope})
				if err != nil {
					return err
				}
				if answer.GetAlreadyClosed() {
					fmt.Fprintln(p.stderr, "the stream was closed before, or does not exist")
				}
				if _, err := fmt.Fprintln(p.stdout, positionText(answer.GetLast())); err != nil {
					return fmt.Errorf("%w; the stream is closed", &outputError{err})
				}
				return nil
			})
			return orUnanswered(err, "the stream may have been closed, and closing it again does no harm")
		}),
	}
	c.addFlags(cmd)
	c.addTimeoutFlag(cmd, defaultTimeout, "how long to wait for the answer")
	return cmd
}
