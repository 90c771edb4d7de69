package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

func contextWithTimeout(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 300*time.Millisecond)
}

// newApplication returns a session of a role that may call the public functions
// and nothing else, on a store's database.
func newApplication(t *testing.T, s *testStore) *pgx.Conn {
	t.Helper()
	role := query[string](t, s.url, "select current_database() || '_app'")
	execute(t, s.url, fmt.Sprintf(`
		create role %[1]s login password 'x';
		grant usage on schema fanfare to %[1]s;
		grant execute on function fanfare.publish, fanfare.publish_batch, fanfare.close_stream to %[1]s;
		create table orders (id bigint primary key, state text);
		grant all on orders to %[1]s`, role))
	t.Cleanup(func() { execute(t, s.url, "drop owned by "+role+"; drop role "+role) })
	return pgtest.Dial(t, withUser(t, s.url, role, "x"))
}

func (s *testStore) payloads(t *testing.T, channel string) []string {
	t.Helper()
	result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: backlog.StreamName{Channel: channel}, MaxFrames: 1000, MaxBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	var payloads []string
	for i, f := range result.Streams[0].Frames {
		if f.Position.Sequence != uint64(i)+1 {
			t.Fatalf("frame %d of %q has sequence %d", i, channel, f.Position.Sequence)
		}
		payloads = append(payloads, string(f.Payload))
	}
	return payloads
}

func wantPayloads(t *testing.T, s *testStore, channel string, want ...string) {
	t.Helper()
	if got := s.payloads(t, channel); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s holds %q, want %q", channel, got, want)
	}
}

// TestSQLPublish: a frame published by SQL is part of the application's
// transaction, and numbered and stored like any other.
func TestSQLPublish(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app := newApplication(t, s)
	const channel = "orders"

	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "insert into orders values (1, 'new')")
	pgtest.Exec(t, app, "select fanfare.publish('orders', '', 'committed', 'text/plain', 'created', '{\"a\":\"b\"}')")
	pgtest.Exec(t, app, "commit")

	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "insert into orders values (2, 'new')")
	pgtest.Exec(t, app, "select fanfare.publish('orders', '', 'rolled back')")
	pgtest.Exec(t, app, "rollback")

	pgtest.Exec(t, app, "begin")
	pgtest.Exec(t, app, "select fanfare.publish('orders', '', 'before the savepoint')")
	pgtest.Exec(t, app, "savepoint s")
	pgtest.Exec(t, app, "select fanfare.publish('orders', '', 'undone')")
	pgtest.Exec(t, app, "rollback to s")
	pgtest.Exec(t, app, "select fanfare.publish('orders', '', 'after the savepoint')")
	pgtest.Exec(t, app, "commit")

	if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: backlog.StreamName{Channel: channel}, Payload: []byte("by RPC")}); err != nil {
		t.Fatal(err)
	}
	wantPayloads(t, s, channel, "committed", "before the savepoint", "after the savepoint", "by RPC")
	result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: backlog.StreamName{Channel: channel}, MaxFrames: 10, MaxBytes: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	f := result.Streams[0].Frames[0]
	if f.ContentType != "text/plain" || f.EventType != "created" || f.Headers["a"] != "b" {
		t.Errorf("the frame is %+v", f)
	}

	var epoch, sequence uint64
	var closed bool
	if err := app.QueryRow(t.Context(), "select * from fanfare.close_stream('orders', '')").Scan(&epoch, &sequence, &closed); err != nil {
		t.Fatal(err)
	}
	if last := (backlog.Position{Epoch: epoch, Sequence: sequence}); last != result.Streams[0].State.Head || closed {
		t.Errorf("closed after %s (already %v), want %s", last, closed, result.Streams[0].State.Head)
	}
}

// A stream whose row did not take its new head kept the frame above it, confirmed and
// sent to nobody: every way of publishing must fail instead, and store nothing.
func TestSQLMissedRow(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.execute(t, `select fanfare.publish('missed', '', 'before')`)
	s.execute(t, `
		create function public.keep() returns trigger language plpgsql as $$ begin return null; end $$;
		create trigger keep before update on fanfare.streams for each row when (old.channel = 'missed') execute function public.keep()`)
	conn := pgtest.Dial(t, s.url)
	for _, statement := range []string{
		`select fanfare.publish('missed', '', 'one')`,
		`select fanfare.publish('missed', '', 'with a key', idempotency_key => 'k')`,
		`select fanfare.publish_batch('{missed,other}', '{"",""}', '{two,two}')`,
		`select fanfare.publish_ephemeral('missed', '', 'ephemeral')`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		if !hasCode(err, "XX000") {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if n := query[int](t, s.url, "select count(*) from fanfare.channel_frames"); n != 1 {
		t.Errorf("%d frames are stored", n)
	}
	s.execute(t, "drop trigger keep on fanfare.streams")
	s.execute(t, `select fanfare.publish('missed', '', 'after')`)
	wantPayloads(t, s, "missed", "before", "after")
}

// TestSQLInRepeatableRead: a transaction whose snapshot is older than the stream's
// newest frame gets a serialization failure, never a wrong sequence.
func TestSQLInRepeatableRead(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			app := newApplication(t, s)
			for _, channel := range []string{"old", "new"} {
				publish := func(payload string) {
					t.Helper()
					_, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: backlog.StreamName{Channel: channel}, Payload: []byte(payload)})
					if err != nil {
						t.Fatal(err)
					}
				}
				var want []string
				if channel == "old" {
					publish("first")
					want = append(want, "first")
				}
				pgtest.Exec(t, app, "begin isolation level "+isolation)
				pgtest.Exec(t, app, "select count(*) from orders") // takes the snapshot
				publish("between")
				want = append(want, "between")
				_, err := app.Exec(t.Context(), "select fanfare.publish($1, '', 'stale')", channel)
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || pg.Code != "40001" {
					t.Errorf("a publish with an old snapshot to the stream %q: %v, want SQLSTATE 40001", channel, err)
				}
				pgtest.Exec(t, app, "rollback")
				pgtest.Exec(t, app, "begin isolation level "+isolation)
				pgtest.Exec(t, app, "select fanfare.publish($1, '', 'retried')", channel)
				pgtest.Exec(t, app, "commit")
				wantPayloads(t, s, channel, append(want, "retried")...)
			}
		})
	}
}

// TestSQLNeedsRights: another role can neither publish nor read what it was not
// granted.
func TestSQLNeedsRights(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app := newApplication(t, s)
	for _, sql := range []string{
		"select * from fanfare.announcement_keys", "select * from fanfare.channel_frames", "select * from fanfare.streams", "select * from fanfare.stream_states",
		"delete from fanfare.streams", "insert into fanfare.policies values ('x', false, 1)", "select * from fanfare.policies", "select fanfare.set_policy('x', false, 1)",
		"select fanfare._set_policy('x', false, 1, null, null, null)", "select fanfare._set_default_backlog(1, null)", "select fanfare._trim('a', 'b')",
		"select fanfare.publish_ephemeral('a', '', 'x')", "select fanfare._announce(array['D'], 1)", "select fanfare._announce_parts('D', 1, 1)", "select fanfare._close('a', 'b', null, null)",
		"select fanfare._publish(array['a'], array[''], array[''::bytea], array[''], array[''], array[null], array[null], array[null]::bigint[], array[null]::bigint[], null, 'lane', null)",
		"select fanfare._publish_one('a', '', '', '', '', null, true, 'lane', 1)", "select * from fanfare.announcing",
		"select fanfare._batch_frame('a', '', '', '', '', null, null, 1)",
		"select fanfare._batch_frames(array['a'], array[''], array[1], array[1], null, array[1], array[1], null, array['a'], array[''], array[''::bytea], array[''], array[''], null, 1)",
	} {
		_, err := app.Exec(t.Context(), sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "42501" {
			t.Errorf("%s: %v, want SQLSTATE 42501", sql, err)
		}
	}
}

// TestSearchPathAttack: what a caller has put in its path or its temporary schema
// is not what the functions, which run with their owner's rights, use.
func TestSearchPathAttack(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	app := newApplication(t, s)
	role := query[string](t, s.url, "select current_database() || '_app'")
	execute(t, s.url, "create schema evil authorization "+role+"; grant execute on function fanfare.set_policy, fanfare.publish_ephemeral to "+role)
	for _, object := range []string{
		"create function evil._origin() returns bigint language sql as 'select 1'",
		"create function evil.clock_timestamp() returns timestamptz language sql as $$ select '2000-01-01'::timestamptz $$",
		"create function evil.sha256(bytea) returns bytea language sql as 'select $1'",
		"create function evil.octet_length(bytea) returns int language sql as 'select 0'",
		"create function evil.evil_eq(text, text) returns boolean language sql as 'select true'",
		"create operator evil.= (leftarg = text, rightarg = text, function = evil.evil_eq)",
		"create table evil.streams (channel text, scope text)",
		"create temporary table streams (channel text, scope text)",
		"create temporary table settings (notify_channel text)",
		"create temporary table policies (channel text)",
		"create function evil.length(text) returns int language sql as 'select 0'",
		"create function evil._policy(text) returns table (backlog bigint, retention_age interval, stream_retention interval) language sql as $$ select 0, null::interval, '1 us'::interval $$",
		"create temporary table announcement_keys (key_id bigint, key bytea)",
		"create temporary table announcing (prefix text)",
		"create temporary table channel_frames (stream_id bigint)",
		"create temporary table idempotency_keys (channel text)",
		"create type pg_temp.uuid as (x int)",
		"set search_path = evil, pg_temp, fanfare, pg_catalog",
	} {
		pgtest.Exec(t, app, object)
	}
	for _, key := range []string{"", "key"} {
		pgtest.Exec(t, app, "select fanfare.publish('attack', '', 'x', idempotency_key => nullif($1::pg_catalog.text, '')::pg_catalog.text)", key)
	}
	pgtest.Exec(t, app, "select fanfare.publish_ephemeral('attack', '', 'x')")
	pgtest.Exec(t, app, "select fanfare.publish_batch(array['attack'], array[''], array['x'::bytea])")
	wantPayloads(t, s, "attack", "x", "x", "x")
	pgtest.Exec(t, app, "select fanfare.set_policy('attack', backlog => 2)")
	if base := query[int](t, s.url, "select base from fanfare.stream_states where channel = 'attack'"); base != 1 {
		t.Errorf("the base is %d, want that of the policy", base)
	}
	pgtest.Exec(t, app, "select fanfare.close_stream('attack', '')")
}

// TestSQLPublishIsFlushed: a role that does not wait for its commits' flush loses
// nothing that was published: the sequences of lost frames would be given to
// others.
func TestSQLPublishIsFlushed(t *testing.T) {
	t.Parallel()
	// Nothing is flushed in the background within the test. wal_writer_flush_after=0
	// would do the opposite: newer servers then flush after every commit.
	server := pgtest.Start(t, "wal_writer_delay=10s", "wal_writer_flush_after=1GB", "autovacuum=off", "bgwriter_delay=10s")
	u := server.URL("postgres")
	migrate(t, u, "")
	execute(t, u, "create table unflushed (n int); alter role postgres set synchronous_commit = off")
	app := pgtest.Dial(t, u)
	const frames = 20
	for n := range frames {
		pgtest.Exec(t, app, "select fanfare.publish('flushed', '', $1)", []byte(fmt.Sprint(n)))
	}
	// The WAL writer flushes when it is first woken, and then not for its delay.
	pgtest.Exec(t, app, "insert into unflushed values (-1)")
	eventually(t, "the WAL writer's first flush", func() bool {
		return query[bool](t, u, "select pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
	})
	for n := range frames {
		pgtest.Exec(t, app, "insert into unflushed values ($1)", n)
	}
	server.Restart("immediate")
	if n := query[int](t, u, "select count(*) from unflushed"); n > frames {
		t.Error("the crash lost nothing, so it proves nothing")
	}
	if head := query[int](t, u, "select head from fanfare.streams"); head != frames {
		t.Errorf("after the crash the head is %d, want %d", head, frames)
	}
}
