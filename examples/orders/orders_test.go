package main

import (
	"bytes"
	"context"
	"errors"
	"log"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

// newDatabase returns a database on a server of the test's own, because roles
// belong to the server and the example creates one. It records when transactions
// committed, which is an order that Fanfare has no part in.
func newDatabase(t *testing.T) string {
	t.Helper()
	return pgtest.Start(t, "track_commit_timestamp=on").NewDatabase(t)
}

// newShop sets up the shop, where a replica has created Fanfare's schema, and
// returns the application's connections.
func newShop(t *testing.T, database string) *pgxpool.Pool {
	t.Helper()
	if err := setUp(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	pool, err := connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// committed returns the shop's own log in commit order.
func committed(t *testing.T, database string) []change {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `select order_id, version, status, cents, receipt from shop.order_log
		order by pg_xact_commit_timestamp(xmin), log_id`)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[change])
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

// following is a running watcher.
type following struct {
	t       *testing.T
	changes chan change
	// stop ends the watcher and returns what it logged.
	stop func() string
}

// follow runs a watcher on the first address that answers.
func follow(t *testing.T, addresses ...string) *following {
	t.Helper()
	servers := manual.NewBuilderWithScheme("replicas")
	var state resolver.State
	for _, a := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: a})
	}
	servers.InitialState(state)
	conn, err := dial("replicas:///", grpc.WithResolvers(servers))
	if err != nil {
		t.Fatal(err)
	}
	f := &following{t: t, changes: make(chan change, 1000)} // more than any test makes
	var logged bytes.Buffer
	w := &watcher{
		client: fanfarev1.NewFanfareServiceClient(conn),
		log:    log.New(&logged, "", 0),
		gap:    func(g *fanfarev1.Gap) error { return errors.New("gap: " + g.String()) },
		seen: func(_ *fanfarev1.Position, c change) error {
			f.changes <- c
			return nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		defer close(f.changes)
		ended <- w.run(ctx)
	}()
	f.stop = func() string {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the watcher ended: %v", err)
		}
		_ = conn.Close()
		return logged.String()
	}
	return f
}

// until receives changes up to the first one that is the last wanted.
func (f *following) until(last func(change) bool) []change {
	f.t.Helper()
	deadline := time.After(patience)
	var changes []change
	for {
		select {
		case c, ok := <-f.changes:
			if !ok {
				f.t.Fatalf("the watcher ended after %d changes: %s", len(changes), f.stop())
			}
			if changes = append(changes, c); last(c) {
				return changes
			}
		case <-deadline:
			f.t.Fatalf("the change waited for did not come in %v, %d others did", patience, len(changes))
		}
	}
}

func hasReceipt(receipt string) func(change) bool {
	return func(c change) bool { return c.Receipt == receipt }
}

// mark commits a last change. As a stream is in order, whatever has not come
// before it never will.
func mark(t *testing.T, pool *pgxpool.Pool, receipt string) {
	t.Helper()
	if err := (&till{pool: pool}).order(t.Context(), receipt); err != nil {
		t.Fatal(err)
	}
}

// Tills commit and roll back concurrently. Two subscribers, one from before the
// first order and one that comes late, see what the shop's own log says that
// committed, in commit order, and nothing else, although the first one's replica
// goes away in the middle.
func TestSubscribersSeeExactlyWhatCommitted(t *testing.T) {
	database := newDatabase(t)
	a, b := servicetest.Start(t, database), servicetest.Start(t, database)
	pool := newShop(t, database)

	early := follow(t, a.Addr, b.Addr)
	var before, after tally
	selling, ctx := errgroup.WithContext(t.Context())
	selling.Go(func() (err error) {
		if before, err = sell(ctx, pool, 4, 21); err == nil {
			after, err = sell(ctx, pool, 4, 21)
		}
		return err
	})
	seen := early.until(func(c change) bool { return c.OrderID >= 10 })
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := selling.Wait(); err != nil {
		t.Fatal(err)
	}
	mark(t, pool, "marker")
	late := follow(t, b.Addr)
	seen = append(seen, early.until(hasReceipt("marker"))...)
	seenLate := late.until(hasReceipt("marker"))
	late.stop()
	if logged := early.stop(); !strings.Contains(logged, "subscribing after") {
		t.Errorf("the watcher never resumed; it logged %q", logged)
	}

	want := committed(t, database)
	if len(want) < 100 {
		t.Fatalf("only %d changes committed", len(want))
	}
	wantSame(t, "the early subscriber", seen, want)
	wantSame(t, "the late subscriber", seenLate, want)
	wantNoneRolledBack(t, seen, append(before.rolledBack, after.rolledBack...))
	wantAll(t, seen, append(before.committed, after.committed...))
}

func wantSame(t *testing.T, who string, got, want []change) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s saw %+v as change %d, the log has %+v", who, got[i], i+1, want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s saw %d changes, the log has %d", who, len(got), len(want))
	}
}

func wantNoneRolledBack(t *testing.T, seen []change, rolledBack []string) {
	t.Helper()
	savepoints := 0
	for _, receipt := range rolledBack {
		if strings.HasSuffix(receipt, "/payment") {
			savepoints++
		}
		if slices.ContainsFunc(seen, hasReceipt(receipt)) {
			t.Errorf("receipt %s was rolled back and seen", receipt)
		}
	}
	if savepoints == 0 || savepoints == len(rolledBack) {
		t.Errorf("of %d rollbacks %d were to savepoints; the test needs both kinds", len(rolledBack), savepoints)
	}
}

func wantAll(t *testing.T, seen []change, committed []string) {
	t.Helper()
	for _, receipt := range committed {
		if !slices.ContainsFunc(seen, hasReceipt(receipt)) {
			t.Errorf("receipt %s was committed and not seen", receipt)
		}
	}
}

// Two transactions lock an order each, publish, and want the other's order: one
// has the stream, the other one waits for it, and PostgreSQL ends either. It is
// tried again, and the subscriber sees what the log has.
func TestDeadlockIsRetried(t *testing.T) {
	database := newDatabase(t)
	replica := servicetest.Start(t, database)
	pool := newShop(t, database)
	mark(t, pool, "order 1")
	mark(t, pool, "order 2")

	locked := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var attempts [2]int
	settleBoth := func(tx pgx.Tx, i int) error {
		attempts[i]++
		for _, order := range [2]int{i, 1 - i} {
			c, err := settle(t.Context(), tx, int64(order+1), cancelled, "both")
			if err != nil {
				return err
			}
			if order == i && attempts[i] == 1 {
				close(locked[i])
			}
			<-locked[1-i]
			if err := publish(t.Context(), tx, c); err != nil {
				return err
			}
		}
		return nil
	}
	var both errgroup.Group
	var outcomes [2]error
	for i := range outcomes {
		both.Go(func() error {
			outcomes[i] = transact(t.Context(), pool, func(tx pgx.Tx) error { return settleBoth(tx, i) })
			return nil
		})
	}
	_ = both.Wait()
	late := slices.IndexFunc(outcomes[:], func(err error) bool { return errors.Is(err, errNotOpen) })
	if late < 0 || outcomes[1-late] != nil || attempts[late] < 2 {
		t.Fatalf("outcomes %v after %v attempts, want one success, and one that tries again and comes too late", outcomes, attempts)
	}
	mark(t, pool, "marker")
	f := follow(t, replica.Addr)
	defer f.stop()
	wantSame(t, "the subscriber", f.until(hasReceipt("marker")), committed(t, database))
}

// Of a transaction that took three attempts, each up to its publish, only the
// third is seen.
func TestFailedAttemptsAreNotSeen(t *testing.T) {
	database := newDatabase(t)
	replica := servicetest.Start(t, database)
	pool := newShop(t, database)
	attempts := 0
	err := transact(t.Context(), pool, func(tx pgx.Tx) error {
		attempts++
		opened, err := open(t.Context(), tx, int64(attempts), "retried")
		if err != nil {
			return err
		}
		if err := publish(t.Context(), tx, opened); err != nil || attempts == 3 {
			return err
		}
		_, err = tx.Exec(t.Context(), `do $$ begin raise 'ended for the sake of others' using errcode = '40001'; end $$`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mark(t, pool, "marker")
	f := follow(t, replica.Addr)
	defer f.stop()
	seen := f.until(hasReceipt("marker"))
	wantSame(t, "the subscriber", seen, committed(t, database))
	if len(seen) != 2 || seen[0].Cents != 3 {
		t.Errorf("saw %+v, want the third attempt and the marker", seen)
	}
}

// The application's role can publish and can reach nothing else of Fanfare's.
func TestRoleMayOnlyPublish(t *testing.T) {
	database := newDatabase(t)
	servicetest.Start(t, database)
	pool := newShop(t, database)
	mark(t, pool, "allowed")
	for _, sql := range []string{
		"select * from fanfare.channel_frames",
		"insert into fanfare.streams default values",
		"select * from fanfare.announcement_keys",
		"select fanfare.close_stream('shop/orders', 'berlin')",
		"select fanfare.publish_batch(null, null, null)",
	} {
		_, err := pool.Exec(t.Context(), sql)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "42501" { // insufficient_privilege
			t.Errorf("%s: %v, want a refusal", sql, err)
		}
	}
}
