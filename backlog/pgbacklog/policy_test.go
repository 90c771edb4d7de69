package pgbacklog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// TestPolicyIsBoundsOf: the schema resolves policies as backlog.BoundsOf does,
// which other parts of a replica use.
func TestPolicyIsBoundsOf(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	conn := pgtest.Dial(t, s.url)
	letters := []string{"a", "b", "A", "é", "e\u0301", "日", "😀", "%", "_", `\`, " ", "/", "'"}
	name := func(most int) string {
		var b strings.Builder
		for range rand.IntN(most + 1) {
			b.WriteString(letters[rand.IntN(min(len(letters), 2+rand.IntN(len(letters))))])
		}
		return b.String()
	}
	for round := range 60 {
		pgtest.Exec(t, conn, "truncate fanfare.policies")
		for range rand.IntN(40) {
			p := randomPolicy(name(4))
			pgtest.Exec(t, conn, "select fanfare.set_policy($1, $2, $3, $4, $5)", p.Channel, p.Prefix, p.Backlog, p.RetentionAge, p.StreamRetention)
		}
		policies, err := s.Policies(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		channels := make([]string, 200)
		for i := range channels {
			channels[i] = "a" + name(5)
			if i%3 == 0 && len(policies) > 0 {
				channels[i] = policies[rand.IntN(len(policies))].Channel + name(1)
			}
		}
		for i, got := range bounds(t, conn, channels) {
			if want := backlog.BoundsOf(policies, channels[i], false); got != want {
				t.Fatalf("round %d: the bounds of %q are %v, want %v", round, channels[i], got, want)
			}
		}
	}
}

// randomPolicy sets some of the fields, or none.
func randomPolicy(channel string) backlog.Policy {
	p := backlog.Policy{Channel: channel, Prefix: channel == "" || rand.IntN(3) > 0}
	if rand.IntN(2) == 0 {
		n := rand.Uint64N(3)
		p.Backlog = &n
	}
	for _, age := range []**time.Duration{&p.RetentionAge, &p.StreamRetention} {
		if rand.IntN(2) == 0 {
			d := time.Duration(1+rand.Int64N(backlog.MaxPolicyAge.Microseconds())) * time.Microsecond
			*age = &d
		}
	}
	if rand.IntN(4) == 0 {
		p.RetentionAge = new(time.Duration)
	}
	return p
}

// bounds asks the schema for the bounds of channels.
func bounds(t testing.TB, conn *pgx.Conn, channels []string) []backlog.Bounds {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `
		select p.backlog, coalesce((extract(epoch from p.retention_age) * 1000000)::bigint, 0), (extract(epoch from p.stream_retention) * 1000000)::bigint
		  from unnest($1::text[]) with ordinality c(channel, n) cross join lateral fanfare._policy(c.channel) p order by c.n`, channels)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (backlog.Bounds, error) {
		var n, age, retention int64
		err := row.Scan(&n, &age, &retention)
		return backlog.Bounds{Backlog: uint64(n), RetentionAge: microseconds(age), StreamRetention: microseconds(retention)}, err
	})
	if err != nil || len(all) != len(channels) {
		t.Fatalf("%d bounds for %d channels: %v", len(all), len(channels), err)
	}
	return all
}

// TestPublishesTrimByPolicy: a publish trims its stream to what the policy of its
// channel keeps, by the way for one frame and by that for many.
func TestPublishesTrimByPolicy(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	execute(t, s.url, `update fanfare.settings set grace = '0'; select fanfare.set_policy('short', true, 3); select fanfare.set_policy('long', false, 50)`)
	for _, channel := range []string{"short/1", "long", "other"} {
		stream := backlog.StreamName{Channel: channel}
		for range 65 {
			mustPublish(t, s.Store, backlog.Publication{Stream: stream})
		}
		batch := make([]backlog.Publication, 64)
		for i := range batch {
			batch[i].Stream = backlog.StreamName{Channel: channel, Scope: "batch"}
		}
		if _, err := s.PublishBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	for channel, want := range map[string]int{"short/1": 64 - 3, "long": 64 - 50, "other": 0} {
		for _, scope := range []string{"", "batch"} {
			if floor := query[int](t, s.url, "select floor from fanfare.streams where channel = $1 and scope = $2", channel, scope); floor != want {
				t.Errorf("the floor of %q %q is %d, want %d", channel, scope, floor, want)
			}
		}
	}
}

// TestSetPolicyBySQL: an application's policies are those that replicas see.
func TestSetPolicyBySQL(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app := newApplication(t, s)
	role := query[string](t, s.url, "select current_database() || '_app'")
	execute(t, s.url, "grant execute on function fanfare.set_policy to "+role)
	hour := time.Hour
	for _, c := range []struct {
		call string
		want *backlog.Policy // nil: none is left
	}{
		{"'a'", nil},
		{"'a', backlog => 7", &backlog.Policy{Channel: "a", Backlog: uint64Of(7)}},
		{"'a', true, 0", &backlog.Policy{Channel: "a", Prefix: true, Backlog: uint64Of(0)}},
		{"'', true, retention_age => '0'", &backlog.Policy{Prefix: true, RetentionAge: new(time.Duration)}},
		{"'é%', retention_age => '1 hour', stream_retention => '3600 seconds'", &backlog.Policy{Channel: "é%", RetentionAge: &hour, StreamRetention: &hour}},
		// A month has 30 days, a year 365.25, a day 24 hours.
		{"'a', retention_age => '1 month 2 days', stream_retention => '2 years'",
			&backlog.Policy{Channel: "a", RetentionAge: durationOf(32 * 24 * time.Hour), StreamRetention: durationOf(2 * 8766 * time.Hour)}},
		{"'a', retention_age => '876000 hours', stream_retention => '0.000001 seconds', backlog => 9223372036854775807",
			&backlog.Policy{Channel: "a", Backlog: uint64Of(backlog.MaxPositionValue), RetentionAge: durationOf(backlog.MaxPolicyAge), StreamRetention: durationOf(time.Microsecond)}},
	} {
		pgtest.Exec(t, app, "select fanfare.set_policy("+c.call+")")
		policies, err := s.Policies(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.want == nil {
			if len(policies) != 0 {
				t.Errorf("set_policy(%s): there are %d policies, want none", c.call, len(policies))
			}
			continue
		}
		if len(policies) != 1 || showPolicy(policies[0]) != showPolicy(*c.want) {
			t.Errorf("set_policy(%s): the policies are %v, want %s", c.call, policies, showPolicy(*c.want))
		}
		// Set again by a replica it is the same, and then it is removed.
		if err := s.SetPolicy(t.Context(), *c.want); err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, app, "select fanfare.set_policy($1, $2)", c.want.Channel, c.want.Prefix)
	}
	if n := query[int](t, s.url, "select count(*) from fanfare.policies"); n != 0 {
		t.Errorf("%d policies are left", n)
	}
}

func uint64Of(n uint64) *uint64 { return &n }

func durationOf(d time.Duration) *time.Duration { return &d }

func showPolicy(p backlog.Policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %v", p.Channel, p.Prefix)
	if p.Backlog != nil {
		fmt.Fprintf(&b, " backlog %d", *p.Backlog)
	}
	if p.RetentionAge != nil {
		fmt.Fprintf(&b, " retention age %v", *p.RetentionAge)
	}
	if p.StreamRetention != nil {
		fmt.Fprintf(&b, " stream retention %v", *p.StreamRetention)
	}
	return b.String()
}

// TestSetPolicyBySQLRefuses: what is outside a limit is refused by its name, as
// by RPC.
func TestSetPolicyBySQLRefuses(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	conn := pgtest.Dial(t, s.url)
	for call, want := range map[string]string{
		"''":                       "channel must not be empty",
		"null":                     "channel must not be null",
		"null, true":               "channel must not be null",
		"'a', null":                "prefix must not be null",
		"repeat('é', 128)":         "channel has 256 bytes, the limit is 255",
		"repeat('x', 256), true":   "channel has 256 bytes, the limit is 255",
		"E'a\\n'":                  "channel contains a control character",
		"E'a\\u0085', true, 1":     "channel contains a control character",
		"'a', backlog => -1":       "backlog must not be negative",
		"'a', false, 1, '-1 hour'": "retention_age must not be negative",
		"'a', retention_age => '876000 hours 1 microsecond'": "retention_age must be at most 876000 hours",
		"'a', retention_age => '1 day -25 hours'":            "retention_age must not be negative",
		"'a', stream_retention => '0'":                       "stream_retention must not be 0",
		"'a', stream_retention => '1 month -30 days'":        "stream_retention must not be 0",
		"'a', stream_retention => '-1 us'":                   "stream_retention must not be negative",
		"'a', stream_retention => '1000 years'":              "stream_retention must be at most 876000 hours",
	} {
		_, err := conn.Exec(t.Context(), "select fanfare.set_policy("+call+")")
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "22023" || !strings.HasPrefix(pg.Message, "fanfare: "+want) {
			t.Errorf("set_policy(%s): %v, want SQLSTATE 22023 %q", call, err, want)
		}
	}
	execute(t, s.url, "insert into fanfare.policies select n::text, false, 1 from generate_series(1, 1000) n")
	_, err := conn.Exec(t.Context(), "select fanfare.set_policy('one more', false, 1)")
	if !hasCode(err, codeTooManyPolicies) {
		t.Errorf("one policy more than may be: %v, want SQLSTATE FN005", err)
	}
	pgtest.Exec(t, conn, "select fanfare.set_policy('1', false, 2)")
	pgtest.Exec(t, conn, "select fanfare.set_policy('1')")
	pgtest.Exec(t, conn, "select fanfare.set_policy('one more', false, 1)")
}

// TestSetPolicyIsTransactional: a policy and its announcement come with the
// commit of the application's transaction, and nothing is announced of what
// changes nothing.
func TestSetPolicyIsTransactional(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	listener := pgtest.Dial(t, s.url)
	pgtest.Exec(t, listener, `listen "fanfare_fanfare"`)
	app := pgtest.Dial(t, s.url)
	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "select fanfare.set_policy('undone', false, 1)")
	pgtest.Exec(t, app, "rollback")
	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "select fanfare.set_policy('kept', false, 1, '1 day')")
	pgtest.Exec(t, app, "commit")
	for _, same := range []string{"'kept', false, 1, '24 hours'", "'undone'", "'undone', true"} {
		pgtest.Exec(t, app, "select fanfare.set_policy("+same+")")
	}
	pgtest.Exec(t, app, "select fanfare.set_policy('kept')")
	pgtest.Exec(t, app, "select fanfare.publish('marker', '', '')")
	var kinds []string
	for len(kinds) < 3 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		n, err := listener.WaitForNotification(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		_, entry, _ := strings.Cut(n.Payload, "\n")
		kinds = append(kinds, entry[:1])
		if entry[:1] == "H" && entry != "H" {
			t.Errorf("the entry is %q, want H alone", entry)
		}
	}
	if got := strings.Join(kinds, ""); got != "HHD" {
		t.Errorf("announced were %q, want one H for each change and the marker", got)
	}
}

// TestOpenSetsTheBacklog: the default's backlog is changed and logged, and
// nothing else of it.
func TestOpenSetsTheBacklog(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	migrate(t, u, "")
	logged := func(n *int64) string {
		var log bytes.Buffer
		s, err := Open(t.Context(), Config{URL: u, Backlog: n, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if !strings.Contains(log.String(), "default backlog") {
			return ""
		}
		return log.String()
	}
	stored := func() string {
		return query[string](t, u, `select coalesce(string_agg(concat_ws(' ', channel, prefix, backlog, retention_age, stream_retention), ','), '') from fanfare.policies`)
	}
	seven, none := int64(7), int64(0)
	for _, step := range []struct {
		before  string
		backlog *int64
		want    string
		logged  bool
	}{
		{"", nil, "", false},
		{"", &seven, " t 7", true},
		{"", &seven, " t 7", false},
		{"", nil, " t 7", false},
		{"select fanfare.set_policy('', true, null, '1 hour', '2 days')", &none, " t 0 01:00:00 48:00:00", true},
		{"", &none, " t 0 01:00:00 48:00:00", false},
		{"select fanfare.set_policy('', true, 8, '1 hour')", &seven, " t 7 01:00:00", true},
	} {
		if step.before != "" {
			execute(t, u, step.before)
		}
		log := logged(step.backlog)
		if (log != "") != step.logged {
			t.Errorf("the log is %q, want a line: %v", log, step.logged)
		}
		if step.logged && !strings.Contains(log, fmt.Sprint("backlog=", *step.backlog)) {
			t.Errorf("the log %q does not name the backlog", log)
		}
		if got := stored(); got != step.want {
			t.Errorf("the policies are %q, want %q", got, step.want)
		}
	}

	execute(t, u, "truncate fanfare.policies; insert into fanfare.policies select n::text, false, 1 from generate_series(1, 1000) n")
	err := openError(t, Config{URL: u, Backlog: &seven})
	if !errors.Is(err, backlog.ErrTooManyPolicies) {
		t.Errorf("with as many policies as may be: %v", err)
	}
}
