package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

const short = 200 * time.Millisecond

// migrated returns the URL of a database with Fanfare's schema.
func migrated(t *testing.T) string {
	t.Helper()
	url := pgtest.NewDatabase(t)
	if err := pgbacklog.Migrate(patient(t), url, "fanfare", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return url
}

// ask runs a command that prints JSON.
func ask[Answer any](t *testing.T, args ...string) (a Answer) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(patient(t), args, &stdout, &stderr); code != 0 {
		t.Fatalf("limits %s: %d: %s", strings.Join(args, " "), code, stderr.String())
	}
	decoder := json.NewDecoder(&stdout)
	if err := decoder.Decode(&a); err != nil || !errors.Is(decoder.Decode(new(any)), io.EOF) {
		t.Fatalf("limits %s does not print one JSON value (%v)", strings.Join(args, " "), err)
	}
	return a
}

// Rows with fewer columns or another index would be another amount of work.
func TestRowsAreStoredAsFanfareStoresFrames(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := pgtest.Dial(t, url)
	s, err := newScratch(patient(t), url)
	if err != nil {
		t.Fatal(err)
	}
	const describe = `
select concat_ws(E'\n',
  (select string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage, a.attcollation), E'\n' order by a.attnum)
     from pg_attribute a where a.attrelid = c.oid and a.attnum > 0),
  (select string_agg(pg_get_constraintdef(k.oid), E'\n' order by k.conname) from pg_constraint k where k.conrelid = c.oid),
  (select string_agg(replace(pg_get_indexdef(i.indexrelid), i.indexrelid::regclass::text, ''), E'\n') from pg_index i where i.indrelid = c.oid and not i.indisprimary),
  c.reloptions, (select t.reloptions from pg_class t where t.oid = c.reltoastrelid))
  from pg_class c where c.oid = $1::regclass`
	product := pgtest.Query[string](t, conn, describe, "fanfare.channel_frames")
	if got := pgtest.Query[string](t, conn, describe, s.schema+".rows"); got != product {
		t.Errorf("the table is\n%s\nand Fanfare's is\n%s", got, product)
	}
}

func TestEveryPublishIsARow(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	conn := pgtest.Dial(t, url)
	for _, o := range []publishOptions{
		{connections: 64, callers: 3, streams: 5, bytes: 200, length: short, rows: 512, mode: "row-notify"},
		{connections: 20, callers: 100, streams: 1, bytes: 0, length: short, rows: 512, mode: "row-notify", newStreams: true},
		{callers: 100, streams: 7, bytes: 200, length: short, rows: 512, mode: "rows"},
		{callers: 100, streams: 7, bytes: 200, length: short, rows: 30, mode: "rows", newStreams: true},
	} {
		s, err := newScratch(patient(t), url)
		if err != nil {
			t.Fatal(err)
		}
		publish := map[string]func(context.Context, *scratch) (figures, error){"row-notify": o.rowNotify, "rows": o.setsOfRows}[o.mode]
		f, err := publish(patient(t), s)
		if err != nil {
			t.Fatal(err)
		}
		var stored struct{ Rows, Streams, Bytes, Holes int }
		text := pgtest.Query[[]byte](t, conn, `select json_build_object('rows', count(*), 'streams', count(distinct stream_id), 'bytes', max(size),
			'holes', sum(case when sequence < 1 then 1 else 0 end) + (select count(*) from (select max(sequence) - count(*) as n from `+s.schema+`.rows group by stream_id) h where n <> 0))
			from `+s.schema+`.rows`)
		if err := json.Unmarshal(text, &stored); err != nil {
			t.Fatal(err)
		}
		// What prepares the connections is stored as well.
		prepared := map[string]int{"row-notify": min(o.callers, o.connections), "rows": 2 * min(o.callers, o.rows)}[o.mode]
		streams := o.streams
		if o.newStreams {
			streams = stored.Rows
		}
		if f.Publishes < 1 || stored.Rows != f.Publishes+prepared || stored.Streams != streams || stored.Bytes != o.bytes || stored.Holes != 0 {
			t.Errorf("%+v: %+v, and after %d for preparation stored %+v", o, f, prepared, stored)
		}
		if f.P50 <= 0 || f.P99 < f.P50 || f.Seconds < short.Seconds() {
			t.Errorf("%+v: %+v", o, f)
		}
	}
}

func TestNothingIsLeftInTheDatabase(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	conn := pgtest.Dial(t, url)
	for _, args := range [][]string{
		{"publish", "--time", "10ms", "--callers", "2"},
		{"publish", "--time", "10ms", "--mode", "rows"},
		{"latency", "--time", "60ms"},
		{"decode", "--frames", "10"},
	} {
		ask[struct{}](t, append(args, "--database", url)...)
		// A run that is cut off, too.
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		_ = run(ctx, append(args, "--database", url, "--time", "1m"), io.Discard, io.Discard)
		cancel()
		if n := pgtest.Query[int](t, conn, "select count(*) from pg_namespace where nspname like 'fanfare%'"); n != 0 {
			t.Errorf("%s leaves %d schemas", args[0], n)
		}
	}
}

func TestDropRemovesSchemasOfMeasurementsOnly(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	conn := pgtest.Dial(t, url)
	pgtest.Exec(t, conn, `create schema "fanfare_bench'1"; create table "fanfare_bench'1".t(); create schema fanfare`)
	ask[struct{}](t, "drop", "--database", url, "--schema", "fanfare_bench'1")
	ask[struct{}](t, "drop", "--database", url, "--schema", "fanfare_bench'1")
	if code := run(patient(t), []string{"drop", "--database", url, "--schema", "fanfare"}, io.Discard, io.Discard); code != 1 {
		t.Errorf("dropping Fanfare's own schema ended with %d", code)
	}
	if left := pgtest.Query[string](t, conn, "select string_agg(nspname, ' ') from pg_namespace where nspname like 'fanfare%'"); left != "fanfare" {
		t.Errorf("schemas left: %s", left)
	}
}

func TestLatencyIsOfEveryFrame(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	f := ask[figures](t, "latency", "--database", pgtest.NewDatabase(t), "--rate", "5", "--time", (3 * interval).String())
	// With the next frame's arrival it would be an interval more.
	if f.Publishes != 3 || f.P50 <= 0 || f.P50 >= microseconds(interval) || f.P99 < f.P50 || f.Seconds < 0.5 {
		t.Errorf("%+v", f)
	}
}

func TestReplayReadsWhatFanfareStored(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := pgtest.Dial(t, url)
	pgtest.Exec(t, conn, `select from fanfare.publish_batch(
		array_fill('c'::text, array[300]), array_fill('s'::text, array[300]), array_fill('\x0102030405'::bytea, array[300]))`)
	args := []string{"replay", "--database", url, "--channel", "c", "--scope", "s", "--frames"}
	if r := ask[replayed](t, append(args, "250")...); r.Frames != 250 || r.Bytes != 250*5 || r.Seconds <= 0 {
		t.Errorf("%+v", r)
	}
	var stderr bytes.Buffer
	if code := run(patient(t), append(args, "301"), io.Discard, &stderr); code != 1 || !strings.Contains(stderr.String(), "300 frames") {
		t.Errorf("reading more than there is ended with %d: %s", code, stderr.String())
	}
}

func TestDecodeReadsItsOwnAnnouncements(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	for each, notifications := range map[string]int{"1": 1000, "30": 34} {
		d := ask[decoded](t, "decode", "--database", url, "--frames", "1000", "--each", each, "--bytes", "100")
		if d.Frames != 1000 || d.Notifications != notifications || d.CPU <= 0 {
			t.Errorf("--each %s: %+v", each, d)
		}
	}
}

func TestDecodeReadsFanfaresAnnouncements(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	conn := pgtest.Dial(t, url)
	ended := make(chan decoded, 1)
	go func() {
		defer close(ended)
		ended <- ask[decoded](t, "decode", "--database", url, "--notify-channel", "fanfare_fanfare", "--time", "500ms")
	}()
	for n := 0; ; n++ {
		select {
		case d := <-ended:
			if d.Frames != 3*d.Notifications || d.Notifications < 2 || d.Notifications > n || d.CPU <= 0 {
				t.Errorf("%+v of %d transactions with 3 frames each", d, n)
			}
			return
		default:
			pgtest.Exec(t, conn, `select from fanfare.publish_batch(array['c','c','c'], array['1','2','3'], array['a','b','c']::bytea[])`)
		}
	}
}

func TestWhatIsNoAnnouncementIsAnError(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	conn := pgtest.Dial(t, url)
	ended := make(chan string, 1)
	go func() {
		var stderr bytes.Buffer
		code := run(patient(t), []string{"decode", "--database", url, "--notify-channel", "c", "--time", "300ms"}, io.Discard, &stderr)
		ended <- strings.Repeat("failed: ", code) + stderr.String()
	}()
	for {
		select {
		case said := <-ended:
			if !strings.HasPrefix(said, "failed: ") || !strings.Contains(said, "not a readable envelope") {
				t.Errorf("decode of garbage: %q", said)
			}
			return
		default:
			pgtest.Exec(t, conn, "select pg_notify('c', clock_timestamp()::text)")
		}
	}
}

func TestQueriesOfFramesAreCounted(t *testing.T) {
	t.Parallel()
	if c := ask[counted](t, "queries", "--database", pgtest.NewDatabase(t)); c.Queries != nil {
		t.Errorf("a server that does not count statements has counted %d", *c.Queries)
	}
	url := pgtest.Start(t, benchSettings...).NewDatabase(t)
	if err := pgbacklog.Migrate(patient(t), url, "fanfare", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Dial(t, url)
	before := ask[counted](t, "queries", "--database", url)
	for range 3 {
		pgtest.Exec(t, conn, "select from fanfare.channel_frames")
		pgtest.Exec(t, conn, "select from fanfare.streams")
		pgtest.Exec(t, conn, "select from fanfare.publish('c', 's', 'p')")
	}
	after := ask[counted](t, "queries", "--database", url)
	if before.Queries == nil || after.Queries == nil || *after.Queries-*before.Queries != 3 {
		t.Errorf("3 statements that read frames were counted as %v to %v", before.Queries, after.Queries)
	}
}

func TestCommitWaitsForASlowerFlush(t *testing.T) {
	t.Setenv(asProgram, "yes")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const flush = 10 * time.Millisecond
	publish := `"$0" publish --database "$FANFARE_STORE" --mode rows --time 200ms --callers 1 && "$0" latency --database "$FANFARE_STORE" --time 200ms`
	var stdout, stderr bytes.Buffer
	code := run(patient(t), []string{"postgres", "--flush", flush.String(), "--", "sh", "-c", publish, program}, &stdout, &stderr)
	if code != 0 {
		t.Fatalf("%d: %s", code, stderr.String())
	}
	decoder := json.NewDecoder(&stdout)
	for range 2 {
		var f figures
		if err := decoder.Decode(&f); err != nil {
			t.Fatal(err)
		}
		if f.Publishes < 2 || f.P50 < microseconds(flush) {
			t.Errorf("with flushes of %s and more: %+v", flush, f)
		}
	}
}

func TestServerEndsWithItsCommand(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(patient(t), []string{"postgres", "--", "sh", "-c", "printf %s $FANFARE_STORE; exit 3"}, &stdout, &stderr)
	if code != 1 || !strings.HasPrefix(stdout.String(), "postgres://") || !strings.Contains(stderr.String(), "exit status 3") {
		t.Errorf("%d, %q, %q", code, stdout.String(), stderr.String())
	}
	if conn, err := pgx.Connect(patient(t), stdout.String()); err == nil {
		t.Errorf("the server still runs")
		conn.Close(patient(t))
	}
	if code := run(patient(t), []string{"postgres", "--setting", "nonsense", "--", "true"}, io.Discard, io.Discard); code != 1 {
		t.Errorf("a setting that is none: %d", code)
	}
}
