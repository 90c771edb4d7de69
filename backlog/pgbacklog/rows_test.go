package pgbacklog

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// What a store reads in binary form, which it decodes itself, equals what pgx decodes
// for one whose sessions have no prepared statements and answer in text form.
func TestBinaryAndTextAreTheSame(t *testing.T) {
	t.Parallel()
	url := newSchema(t)
	prepared := startPublisher(t, url)
	long := strings.Repeat("x", 2*maxChunk)
	for i, payload := range []string{"", "\x00\xff", "x", strings.Repeat("y", maxChunk/8), long, "z"} {
		p := backlog.Publication{
			Stream: backlog.StreamName{Channel: "c", Scope: "é"}, Payload: []byte(payload),
			ContentType: []string{"", "text/plain", "äöü"}[i%3], EventType: strconv.Itoa(i / 3),
		}
		if i%2 == 0 {
			p.Headers = map[string]string{"ü": `"\` + strconv.Itoa(i), "empty": ""}
		}
		mustPublish(t, prepared, p)
	}
	mustPublish(t, prepared, publication("again", "1"))
	if err := closeStream(t.Context(), prepared, "again"); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, prepared, publication("again", "2"))
	if err := prepared.SetPolicy(t.Context(), backlog.Policy{Channel: "c", Backlog: uint64Of(10), RetentionAge: durationOf(36 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	read := func(s *Store) (all struct {
		Load   backlog.LoadResult
		Page   backlog.Page
		States []backlog.StreamState
	}) {
		t.Helper()
		request := func(scope string, frames int, verify ...uint64) backlog.LoadRequest {
			return backlog.LoadRequest{Stream: backlog.StreamName{Channel: "c", Scope: scope}, MaxFrames: frames, MaxBytes: 1 << 20, Verify: verify}
		}
		var err error
		all.Load, err = s.Load(t.Context(), 0, []backlog.LoadRequest{
			request("é", 10, 0, 3, 99), request("none", 10, 1), request("again", 10), request("é", 2, 6), request("é", 0),
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range all.Load.Streams {
			l := &all.Load.Streams[i]
			if ago := time.Since(l.NotBefore).Round(time.Hour); l.State.Exists && ago != 36*time.Hour {
				t.Errorf("frames are too old after %v", ago)
			}
			l.NotBefore = time.Time{} // it goes on
		}
		if all.Page, err = s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: request("é", 0).Stream, MaxFrames: 9, MaxBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if all.States, err = s.ListStreams(t.Context(), "", backlog.StreamName{}, 9); err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := read(startPublisher(t, url+"&default_query_exec_mode=exec"))
	if n := len(want.Load.Streams[0].Frames); n != 6 || len(want.Page.Frames) != 6 || len(want.States) != 2 {
		t.Fatalf("%d frames loaded, %d in the page, %d streams", n, len(want.Page.Frames), len(want.States))
	}
	if got := read(prepared); !reflect.DeepEqual(got, want) {
		t.Errorf("binary:\n%+v\ntext:\n%+v", got, want)
	}
}

// Payloads that share an allocation are apart from each other.
func TestChunksKeepPayloadsApart(t *testing.T) {
	var c chunks
	var copies, wants [][]byte
	for i := range 300 {
		want := slices.Repeat([]byte{byte(i)}, []int{i, 0, maxChunk / 8, maxChunk, 100}[i%5])
		copies, wants = append(copies, c.copyOf(want)), append(wants, want)
	}
	for i := range copies {
		if copies[i] == nil {
			t.Errorf("copy %d is nil", i)
		}
		_ = append(copies[i], 0xff) // no room: it would write into the next one
	}
	for i := range copies {
		if string(copies[i]) != string(wants[i]) {
			t.Errorf("copy %d of %d bytes was written over", i, len(wants[i]))
		}
	}
}

// A list that ends early, or has something else in it, is no list.
func TestDamagedNumbersAreRefused(t *testing.T) {
	whole := binary.BigEndian.AppendUint32(nil, 1)
	for _, n := range []uint32{1, pgtype.Int8OID, 3, 1} {
		whole = binary.BigEndian.AppendUint32(whole, n)
	}
	for _, n := range []uint64{7, 8} {
		whole = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(whole, 8), n)
	}
	whole = binary.BigEndian.AppendUint32(whole, 1<<32-1)
	want := []pgtype.Int8{{Int64: 7, Valid: true}, {Int64: 8, Valid: true}, {}}
	if got, ok := appendNumbers(nil, whole); !ok || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, ok)
	}
	if got, ok := appendNumbers(nil, make([]byte, 12)); !ok || len(got) != 0 {
		t.Errorf("an empty list: %v, %v", got, ok)
	}
	for n := range whole {
		if _, ok := appendNumbers(nil, whole[:n]); ok {
			t.Errorf("the first %d bytes were taken for a list", n)
		}
	}
	if _, ok := appendNumbers(nil, append(slices.Clone(whole), 0)); ok {
		t.Error("a list with more behind it was taken for a list")
	}
	whole[3] = 2
	if _, ok := appendNumbers(nil, append(whole, 0)); ok {
		t.Error("a matrix was taken for a list")
	}
}

// A load of many streams goes through each stream's rows once. Symptom: from the
// sixth on in a session, a load of a thousand streams took PostgreSQL four times as
// long. Cause: the plan for all parameters, which the server then takes, expects ten
// requests, and joined two parts of the statement by comparing each stream with each.
func TestLoadsGoThroughEachStreamOnce(t *testing.T) {
	t.Parallel()
	const streams, frames = 300, 3
	s := openStore(t)
	requests := make([]backlog.LoadRequest, streams)
	for i := range requests {
		requests[i] = backlog.LoadRequest{Stream: backlog.StreamName{Channel: "c", Scope: strconv.Itoa(i)}, MaxFrames: 9, MaxBytes: 9, Verify: []uint64{1, 2}}
	}
	execute(t, s.url, fmt.Sprintf(`select count(*) from generate_series(0, %d) i, generate_series(1, %d), fanfare.publish('c', i::text, 'xxxx')`, streams-1, frames))
	conn := pgtest.Dial(t, s.url)
	pgtest.Exec(t, conn, "begin")
	pgtest.Exec(t, conn, planSQL)
	// The plan of a statement that is explained with its parameters would be for these.
	if _, err := conn.Prepare(t.Context(), "load", s.sql.load); err != nil {
		t.Fatal(err)
	}
	var lists []string
	for _, list := range loadArguments(requests) {
		lists = append(lists, fmt.Sprintf("'{%s}'", strings.Join(strings.Fields(strings.Trim(fmt.Sprint(list), "[]")), ",")))
	}
	rows, err := conn.Query(t.Context(), "explain (analyze, costs off) execute load("+strings.Join(lists, ",")+")", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	for rows.Next() {
		fmt.Fprintf(&plan, "%s\n", rows.RawValues()[0])
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	touched := 0
	for _, m := range regexp.MustCompile(`rows=(\d+)(?:\.\d+)? loops=(\d+)`).FindAllStringSubmatch(plan.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		loops, _ := strconv.Atoi(m[2])
		touched += n * loops
	}
	for _, m := range regexp.MustCompile(`Rows Removed by .*: (\d+)`).FindAllStringSubmatch(plan.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		touched += n * streams // at least of one loop
	}
	if most := 20 * streams * (1 + frames); touched < streams*frames || touched > most {
		t.Errorf("the parts of the plan had %d rows, of which %d are due at most:\n%s", touched, most, plan.String())
	}
}

// Sessions do not plan reads anew: that takes longer than to read a stream.
func TestReadsAreNotPlannedAnew(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	p := s.publishPayloads(t, "1", "2")
	for range 3 {
		if _, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: failoverStream, MaxFrames: 9, MaxBytes: 9}}); err != nil {
			t.Fatal(err)
		}
		wantPage(t, s, p[0], "2")
	}
	for sql, pool := range map[string]*pgxpool.Pool{s.sql.load: s.loading, s.sql.page: s.paging} {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := pgtest.Query[int](t, conn.Conn(), `select coalesce(sum(custom_plans), -1) from pg_prepared_statements where statement = $1`, sql)
		conn.Release()
		if n != 0 {
			t.Errorf("%d plans were made for parameters of%s", n, sql)
		}
	}
}
