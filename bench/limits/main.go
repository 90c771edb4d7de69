// Command limits is what Fanfare's speed is compared with: the least work that
// could do the same, and the work that a first try would do. It is not part of the
// product. fanfare bench runs it next to a server, side by side in one run,
// because a figure of one machine says nothing on another.
//
// A reference is only worth something if it is neither a straw man nor a cheat, so
// each does what it must in the best way that is known for it, and whatever a
// client or a database can see of it is the same as with Fanfare.
//
// serve --mode bare is a gRPC server that encodes a frame once, through a codec
// that passes bytes on, and then sends it from a goroutine of each subscription
// that waits at a channel: the obvious good server on grpc-go. serve --mode naive
// differs in one thing, that every subscription encodes the frame for itself, as
// servers that call Send with a message do. Both speak fanfare.v1, so the same
// load generator drives them: the calls, the numbering, the notices and every byte
// of a frame are the product's. They lose nothing, and nobody overtakes: where a
// subscription is full the publisher waits. What they leave out is what Fanfare is
// for: frames are in memory only, there is one server, one slow subscriber stops
// its stream, and nothing is authenticated, observed or bounded. Backlog
// (--backlog) is sent in messages as large as Fanfare's, without copying. All of
// grpc-go's options are its defaults, which trials found best, except that a
// connection may have 100,000 streams.
//
// publish --mode row-notify is what an application does that keeps its frames in
// PostgreSQL and announces them with NOTIFY, a transaction to each. The rows have
// the columns, sizes, storage and primary key of Fanfare's, and the notification
// carries the frame, as Fanfare's does. It is spared the stream's row, which
// numbers frames: callers count by themselves, which only works because nobody
// else publishes to their streams. Row and NOTIFY are one statement, so a publish
// is one round trip. Callers share 64 connections, as the pools of a few
// application servers have together. They only wait for each other there, since
// transactions that notify commit one at a time: on two cores and a fast disk 16
// connections were up to a third faster (--connections). publish --mode rows
// inserts the same rows, hundreds to a statement and a transaction, and notifies
// nobody: the rate at which this database can store frames at all. Its
// transactions come one after the other, as Fanfare's batches do.
//
// latency commits rows with NOTIFY at a steady rate and measures until another
// connection that does nothing but wait has the notification.
//
// replay reads a stream's frames from Fanfare's own table with the shortest
// statement that returns what a replay needs, in the binary format, and scans
// every row.
//
// decode receives announcements that Fanfare's own functions make, decodes them
// and throws them away.
//
// queries counts the statements that read the backlog, and drop removes the schema
// of a server that was measured: fanfare bench itself speaks no SQL.
//
// postgres runs a command with a throwaway PostgreSQL server, optionally with the
// flush of a slower disk.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	os.Exit(code)
}

// run executes the command line args (without the program's name) and returns the
// exit code: 0, or 1 if something failed.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "limits",
		Short:         "Reference points that Fanfare is measured against",
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(serveCommand(), publishCommand(), latencyCommand(), replayCommand(), decodeCommand(), queriesCommand(), dropCommand(), postgresCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "limits:", err)
		return 1
	}
	return 0
}
