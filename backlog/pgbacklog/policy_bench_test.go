package pgbacklog

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// newCrowd makes 1,000 streams, each of a channel of its own, and policies, two
// thirds of which match none of them. It returns the requests for their states.
func newCrowd(t testing.TB, url string, policies int) []backlog.LoadRequest {
	t.Helper()
	conn := pgtest.Dial(t, url)
	pgtest.Exec(t, conn, `
		insert into fanfare.policies
		select 'shop/' || case n % 3 when 0 then 'orders/' when 1 then 'carts/' else '' end || left(md5(n::text), 3 + n % 4), n % 2 = 0, n
		  from generate_series(1, $1) n on conflict do nothing`, policies)
	pgtest.Exec(t, conn, `
		select fanfare.publish_batch(array_agg('shop/orders/' || md5(n::text)), array_agg('4711'::text), array_agg('x'::bytea)) from generate_series(1, 1000) n`)
	pgtest.Exec(t, conn, "analyze fanfare.policies, fanfare.streams, fanfare.channel_frames")
	rows, _ := conn.Query(t.Context(), "select channel, scope from fanfare.streams")
	requests, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (backlog.LoadRequest, error) {
		r := backlog.LoadRequest{MaxFrames: 10, MaxBytes: 1 << 20}
		return r, row.Scan(&r.Stream.Channel, &r.Stream.Scope)
	})
	if err != nil || len(requests) != backlog.MaxLoadRequests {
		t.Fatalf("%d streams, %v", len(requests), err)
	}
	return requests
}

// BenchmarkLoadWithPolicies measures a load of 1,000 streams of 1,000 channels,
// without policies and with as many as may be.
func BenchmarkLoadWithPolicies(b *testing.B) {
	for _, policies := range []int{0, 1, 10, 100, backlog.MaxPolicies} {
		b.Run(fmt.Sprint("policies=", policies), func(b *testing.B) {
			url := newSchema(b)
			s := startPublisher(b, url)
			requests := newCrowd(b, url, policies)
			for b.Loop() {
				if _, err := s.Load(b.Context(), 0, requests); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestManyPoliciesAreNotScanned: a read of many streams looks their policies up.
// Going through all policies for each stream would take a fifth of a second of
// the server for every 1,000 streams.
func TestManyPoliciesAreNotScanned(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	requests := newCrowd(t, s.url, backlog.MaxPolicies)
	for what, statement := range map[string]struct {
		sql  string
		args []any
	}{
		"load":       {s.sql.load, loadArguments(requests)},
		"list":       {s.sql.listAll, []any{"", "", 1000}},
		"candidates": {s.sql.janitor.candidates, []any{"", "", sweepPage}},
	} {
		rows := scannedPolicies(t, s.url, statement.sql, statement.args)
		// Once all of them, for their lengths.
		if rows > 5*backlog.MaxPolicies {
			t.Errorf("%s looked at %d rows of policies for 1,000 streams", what, rows)
		}
	}
}

// scannedPolicies executes a statement and returns how many rows of the table of
// policies it looked at.
func scannedPolicies(t *testing.T, url, sql string, args []any) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn := pgtest.Dial(t, url)
	rows, _ := conn.Query(ctx, "explain (analyze, format json) "+sql, args...)
	plans, err := pgx.CollectRows(rows, pgx.RowTo[[]struct{ Plan plan }])
	if err != nil {
		t.Fatal(err)
	}
	return plans[0][0].Plan.rowsOf("policies")
}

// plan is a node of an executed plan.
type plan struct {
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Actual Rows"` // the average of the loops
	Removed  float64 `json:"Rows Removed by Filter"`
	Loops    float64 `json:"Actual Loops"`
	Plans    []plan
}

func (p plan) rowsOf(relation string) int {
	n := 0
	if strings.EqualFold(p.Relation, relation) {
		n = int((p.Rows + p.Removed) * p.Loops)
	}
	for _, child := range p.Plans {
		n += child.rowsOf(relation)
	}
	return n
}
