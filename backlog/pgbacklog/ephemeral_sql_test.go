package pgbacklog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// newEphemeralApplication is newApplication for a role that may publish ephemeral
// frames, too.
func newEphemeralApplication(t *testing.T, s *testStore) *pgx.Conn {
	t.Helper()
	app := newApplication(t, s)
	execute(t, s.url, "grant execute on function fanfare.publish_ephemeral to "+query[string](t, s.url, "select current_database() || '_app'"))
	return app
}

// wantAnnounced fails the test unless the next announcements are the wanted ones:
// a payload for a durable frame, one with a ~ for an ephemeral frame, each with the
// sequence of its position.
func wantAnnounced(t *testing.T, conn *pgx.Conn, want ...string) {
	t.Helper()
	var got []string
	for _, a := range announced(t, conn, len(want)) {
		mark := ""
		if a.Frame.Ephemeral {
			mark = "~"
		}
		got = append(got, fmt.Sprintf("%s%s %d", mark, a.Frame.Payload, a.Frame.Position.Sequence))
	}
	if !slices.Equal(got, want) {
		t.Errorf("announced were %q, want %q", got, want)
	}
}

// An ephemeral frame published by SQL is part of the application's transaction:
// announced if that commits, in the order of the calls, and not stored.
func TestSQLPublishEphemeral(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app, conn := newEphemeralApplication(t, s), listen(t, s.Store, s.url)
	call := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			pgtest.Exec(t, app, sql)
		}
	}
	call("begin", "insert into orders values (1, 'new')",
		"select fanfare.publish_ephemeral('orders', '', 'a', 'text/plain', 'typing', '{\"k\":\"v\"}')",
		"select fanfare.publish('orders', '', 'b')",
		"select fanfare.publish_ephemeral('orders', '', 'c')",
		"select fanfare.publish_ephemeral('orders', '', 'c')", // equal ones are announced each
		"commit")
	wantAnnounced(t, conn, "~a 0", "b 1", "~c 1", "~c 1")

	call("begin", "select fanfare.publish_ephemeral('orders', '', 'rolled back')", "select fanfare.publish_ephemeral('undone', '', 'x')", "rollback")
	call("begin", "select fanfare.publish_ephemeral('orders', '', 'd')",
		"savepoint s", "select fanfare.publish_ephemeral('orders', '', convert_to(repeat('x', 100000), 'UTF8'))", "select fanfare.publish('orders', '', 'undone')", "rollback to s",
		"select fanfare.publish_ephemeral('orders', '', convert_to(repeat('e', 20000), 'UTF8'))", "commit")
	wantAnnounced(t, conn, "~d 1", "~"+strings.Repeat("e", 20000)+" 1")
	if n := query[int](t, s.url, "select count(*) from fanfare.streams where channel = 'undone'"); n != 0 {
		t.Error("a rolled back frame has left a stream")
	}

	call("select fanfare.publish_ephemeral('orders', '', '', headers => '{}')", "select fanfare.publish('orders', '', 'f')")
	wantAnnounced(t, conn, "~ 1", "f 2")
	wantPayloads(t, s, "orders", "b", "f")

	call("select fanfare.close_stream('orders', '')", "select fanfare.publish_ephemeral('orders', '', 'g')")
	all := announced(t, conn, 2)
	if all[0].Kind != backlog.AnnounceClosed || all[1].Kind != backlog.AnnounceEphemeral || all[1].OwnEpoch == all[0].OwnEpoch {
		t.Errorf("after a close %+v were announced", all)
	}
}

// An ephemeral frame is not held against its transaction's snapshot, unless the
// stream has changed since.
func TestSQLPublishEphemeralInRepeatableRead(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app, conn := newEphemeralApplication(t, s), listen(t, s.Store, s.url)
	mustPublish(t, s.Store, ephemeral(publication("s", "first")))
	pgtest.Exec(t, app, "begin isolation level repeatable read")
	pgtest.Exec(t, app, "select count(*) from orders") // takes the snapshot
	mustPublish(t, s.Store, ephemeral(publication("s", "between")))
	pgtest.Exec(t, app, "select fanfare.publish_ephemeral('c', 's', 'second')")
	pgtest.Exec(t, app, "commit")
	pgtest.Exec(t, app, "begin isolation level repeatable read")
	pgtest.Exec(t, app, "select count(*) from orders")
	mustPublish(t, s.Store, publication("s", "durable"))
	_, err := app.Exec(t.Context(), "select fanfare.publish_ephemeral('c', 's', 'stale')")
	if !hasCode(err, codeSerializationFailure) {
		t.Errorf("a publish with an old snapshot ended with %v", err)
	}
	pgtest.Exec(t, app, "rollback")
	wantAnnounced(t, conn, "~first 0", "~between 0", "~second 0", "durable 1")
}

// The limits are those of durable frames.
func TestSQLPublishEphemeralLimits(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app := newEphemeralApplication(t, s)
	for arguments, field := range map[string]string{
		"'', '', 'x'":               "channel",
		"null, '', 'x'":             "channel",
		"'c', null, 'x'":            "scope",
		"repeat('é', 128), '', 'x'": "channel",
		"'c', E'\\n', 'x'":          "scope",
		"'c', '', null":             "payload",
		"'c', '', convert_to(repeat('x', 1048577), 'UTF8')": "payload",
		"'c', '', 'x', repeat('x', 256)":                    "content_type",
		"'c', '', 'x', '', 'fanfare.status'":                "event_type",
		"'c', '', 'x', headers => '[]'":                     "headers",
		"'c', '', 'x', headers => '{\"a\": 1}'":             "headers",
	} {
		_, err := app.Exec(t.Context(), "select fanfare.publish_ephemeral("+arguments+")")
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "22023" || !strings.HasPrefix(pg.Message, "fanfare: "+field+" ") {
			t.Errorf("(%s): %v, want SQLSTATE 22023 that names %s", arguments, err, field)
		}
	}
	pgtest.Exec(t, app, "select fanfare.publish_ephemeral('c', '', convert_to(repeat('x', 1048576), 'UTF8'))")
	if n := query[int](t, s.url, "select count(*) from fanfare.streams"); n != 1 {
		t.Errorf("there are %d streams", n)
	}
}

// PostgreSQL folds equal notifications of a transaction into one. Ephemeral frames
// with equal content are announced each, however the transaction came to publish
// them, also when some of its parts are undone: then numbers of envelopes are given
// again.
func TestSQLEqualEphemeralFrames(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app, conn := newEphemeralApplication(t, s), listen(t, s.Store, s.url)
	const one = "select fanfare.publish_ephemeral('orders', '', 'x')"
	const large = "select fanfare.publish_ephemeral('orders', '', convert_to(repeat('l', 20000), 'UTF8'))"
	l := "~" + strings.Repeat("l", 20000) + " 0"
	for _, tt := range []struct {
		what       string
		statements []string
		want       []string
	}{
		{"several statements", []string{one, one, one}, []string{"~x 0", "~x 0", "~x 0"}},
		{"one statement", []string{"select fanfare.publish_ephemeral('orders', '', 'x') from generate_series(1, 3)"}, []string{"~x 0", "~x 0", "~x 0"}},
		{"a function's loop", []string{"do $$ begin for i in 1..3 loop perform fanfare.publish_ephemeral('orders', '', 'x'); end loop; end $$"}, []string{"~x 0", "~x 0", "~x 0"}},
		{"released savepoints", []string{one, "savepoint a", one, "savepoint b", one, "release b", one, "release a", one}, []string{"~x 0", "~x 0", "~x 0", "~x 0", "~x 0"}},
		{"undone savepoints", []string{one, "savepoint a", one, one, "rollback to a", one, "savepoint b", one, "rollback to a", one}, []string{"~x 0", "~x 0"}},
		{"undone first", []string{"savepoint a", one, "rollback to a", one, one}, []string{"~x 0", "~x 0"}},
		{"split ones", []string{large, "savepoint a", large, "rollback to a", large, one, large}, []string{l, l, "~x 0", l}},
	} {
		pgtest.Exec(t, app, "begin")
		for _, sql := range tt.statements {
			pgtest.Exec(t, app, sql)
		}
		pgtest.Exec(t, app, "select fanfare.publish_ephemeral('orders', '', 'end of "+strings.ReplaceAll(tt.what, "'", "''")+"')")
		pgtest.Exec(t, app, "commit")
		wantAnnounced(t, conn, append(tt.want, "~end of "+tt.what+" 0")...)
	}
}
