// Command orders shows a shop whose own SQL transactions publish what they
// change, and a subscriber that sees exactly what was committed, in order.
//
//	orders sell  --database URL    # concurrent transactions, some of them rolled back
//	orders watch --server ADDRESS  # prints every committed change
//
// README.md in this directory shows a run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const usage = `usage:
  orders sell  --database URL [--tills 4] [--transactions 14]
  orders watch [--server 127.0.0.1:7420] [--after POSITION] [--count N]
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
	commands := map[string]func(context.Context, []string, io.Writer, io.Writer) error{"sell": runSell, "watch": runWatch}
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
		fmt.Fprintf(stderr, "orders %s: %v\n", args[0], err)
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

func runSell(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("orders sell", flag.ContinueOnError)
	database := flags.String("database", "", "postgres://… of the user that fanfare serve has")
	tills := flags.Int("tills", 4, "how many write at once")
	transactions := flags.Int("transactions", 14, "how many each tries")
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	if *database == "" || *tills < 1 || *transactions < 1 {
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
	done, err := sell(ctx, pool, *tills, *transactions)
	if err != nil {
		return err
	}
	var logged int
	if err := pool.QueryRow(ctx, "select count(*) from shop.order_log").Scan(&logged); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%d receipts committed; shop.order_log has %d changes\n%d receipts rolled back: %s\n",
		len(done.committed), logged, len(done.rolledBack), strings.Join(done.rolledBack, " "))
	return err
}

func runWatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("orders watch", flag.ContinueOnError)
	server := flags.String("server", "127.0.0.1:7420", "address of fanfare serve")
	after := flags.String("after", "", "position of the last change seen before (default: begin with the oldest)")
	count := flags.Int("count", 0, "end after so many changes; 0: never")
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	if *count < 0 {
		return errUsage
	}
	w := watcher{log: log.New(stderr, "", 0)}
	if *after != "" {
		p, err := backlog.ParsePosition(*after)
		if err != nil {
			return fmt.Errorf("--after: %w", err)
		}
		w.last = &fanfarev1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
	}
	conn, err := dial(*server)
	if err != nil {
		return err
	}
	defer conn.Close()
	w.client = fanfarev1.NewFanfareServiceClient(conn)
	w.seen = printChanges(stdout, *count)
	w.gap = func(g *fanfarev1.Gap) error {
		_, err := fmt.Fprintf(stdout, "changes are missing here (%s), going on after %s\n", g.GetReason(), positionText(g.GetResumeAfter()))
		return err
	}
	if err := w.run(ctx); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// dial connects when it is first used. Pings find a server that went away
// without closing the connection, which a subscriber would else never notice.
func dial(server string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(server, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}))...)
}

var errEnough = errors.New("enough changes seen")

// printChanges prints changes until there were count; 0: for ever.
func printChanges(out io.Writer, count int) func(*fanfarev1.Position, change) error {
	printed := 0
	return func(p *fanfarev1.Position, c change) error {
		_, err := fmt.Fprintf(out, "%-24s order %-3d version %d  %-9s  %3d.%02d  receipt %s\n",
			positionText(p), c.OrderID, c.Version, c.Status, c.Cents/100, c.Cents%100, c.Receipt)
		if err != nil {
			return err
		}
		if printed++; printed == count {
			return errEnough
		}
		return nil
	}
}

// positionText is EPOCH-SEQUENCE, as --after takes it.
func positionText(p *fanfarev1.Position) string {
	return backlog.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}.String()
}
