package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// One stream, many publishers through two stores and by SQL, in transactions of
// varying length: no holes, no position twice, each publisher's order kept, and
// every answer true.
func TestManyPublishersOfOneStream(t *testing.T) {
	const publishers, frames = 16, 60
	url := newSchema(t)
	stores := []*Store{startPublisher(t, url), startPublisher(t, url)}
	admin := pgtest.Dial(t, url)
	var positions sync.Map // payload → backlog.Position
	err := publishAll(t.Context(), publishers, frames, func(ctx context.Context, caller, i int) error {
		payload := fmt.Sprintf("%d %d", caller, i)
		o, err := backlog.Publish(ctx, stores[caller%2], publication("s", payload))
		positions.Store(payload, o.Position)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	conns := []*sqlPublisher{newSQLPublisher(t, url), newSQLPublisher(t, url)}
	err = publishAll(t.Context(), publishers, 20, func(ctx context.Context, caller, i int) error {
		payload := fmt.Sprintf("%d %d", caller, frames+i)
		if caller < len(conns) {
			return conns[caller].publish(ctx, time.Duration(i%5)*time.Millisecond, "s", payload)
		}
		o, err := backlog.Publish(ctx, stores[caller%2], publication("s", payload))
		positions.Store(payload, o.Position)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := stored(t, admin, "s")
	if want := publishers * (frames + 20); len(all) != want {
		t.Errorf("%d frames are stored, want %d", len(all), want)
	}
	next := make(map[string]int)
	for i, payload := range all {
		caller, number, _ := strings.Cut(payload, " ")
		if n, _ := strconv.Atoi(number); n != next[caller] {
			t.Errorf("frame %d of publisher %s comes where %d is due", n, caller, next[caller])
		}
		next[caller]++
		if p, ok := positions.Load(payload); ok && p.(backlog.Position).Sequence != uint64(i+1) {
			t.Errorf("%q was told %v and stands at %d", payload, p, i+1)
		}
	}
}

// One submitter that does not wait for answers keeps its order.
func TestPipelinedPublisherKeepsItsOrder(t *testing.T) {
	url := newSchema(t)
	s := startPublisher(t, url)
	var all []*pending
	for i := range 3000 {
		all = append(all, submit(t.Context(), s, publication("s", strconv.Itoa(i))))
	}
	for i, p := range all {
		if o := p.must(t); o.Position.Sequence != uint64(i+1) {
			t.Fatalf("frame %d has sequence %d", i, o.Position.Sequence)
		}
	}
}

// Sixteen publishers of streams that nobody has published to yet.
func TestFirstFramesOfNewStreams(t *testing.T) {
	url := newSchema(t)
	stores := []*Store{startPublisher(t, url), startPublisher(t, url)}
	var conns []*sqlPublisher
	for range 4 {
		conns = append(conns, newSQLPublisher(t, url))
	}
	err := publishAll(t.Context(), 16, 20, func(ctx context.Context, caller, i int) error {
		scope := fmt.Sprint("new ", i)
		if caller < len(conns) {
			return conns[caller].publish(ctx, 0, scope, "x")
		}
		_, err := backlog.Publish(ctx, stores[caller%2], publication(scope, "x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := pgtest.Dial(t, url)
	for i := range 20 {
		if n := len(stored(t, admin, fmt.Sprint("new ", i))); n != 16 {
			t.Errorf("stream %d has %d frames, want 16", i, n)
		}
	}
}

func TestSameExpectationOneWins(t *testing.T) {
	url := newSchema(t)
	stores := []*Store{startPublisher(t, url), startPublisher(t, url)}
	var head backlog.Position
	for round := range uint64(20) {
		var won atomic.Int64
		var winner atomic.Pointer[backlog.Position]
		var refused sync.Map
		err := publishAll(t.Context(), 16, 1, func(ctx context.Context, caller, _ int) error {
			p := publication("s", fmt.Sprint(caller))
			p.Expected = &backlog.Expectation{Sequence: round}
			if round > 0 {
				p.Expected.Epoch = &head.Epoch
			}
			o, err := backlog.Publish(ctx, stores[caller%2], p)
			var mismatch *backlog.ExpectationError
			if errors.As(err, &mismatch) {
				refused.Store(caller, mismatch.Head)
				return nil
			}
			won.Add(1)
			winner.Store(&o.Position)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if won.Load() != 1 {
			t.Fatalf("round %d has %d winners", round, won.Load())
		}
		head = *winner.Load()
		refused.Range(func(caller, told any) bool {
			if told != head {
				t.Errorf("caller %v was told head %v, it is %v", caller, told, head)
			}
			return true
		})
	}
}

// Three replicas and an application, random overlapping streams, single frames
// and atomic batches: no deadlock reaches anybody.
func TestReplicasShareStreams(t *testing.T) {
	const callers, rounds, streams = 12, 60, 20
	url := newSchema(t)
	stores := []*Store{startPublisher(t, url), startPublisher(t, url), startPublisher(t, url)}
	conns := []*sqlPublisher{newSQLPublisher(t, url), newSQLPublisher(t, url)}
	var published atomic.Int64
	err := publishAll(t.Context(), callers, rounds, func(ctx context.Context, caller, i int) error {
		random := func() string { return fmt.Sprint("s", rand.IntN(streams)) }
		store := stores[caller%3]
		if caller < len(conns) {
			published.Add(1)
			return conns[caller].publish(ctx, time.Millisecond, random(), "sql")
		}
		if caller < 6 {
			var batch []backlog.Publication
			for range 10 {
				batch = append(batch, publication(random(), "batch"))
			}
			published.Add(10)
			_, err := store.PublishBatch(ctx, batch)
			return err
		}
		var all []*pending
		for range 10 {
			all = append(all, submit(ctx, store, publication(random(), "single")))
		}
		published.Add(10)
		for _, p := range all {
			if _, err := p.wait(t); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := pgtest.Dial(t, url)
	total := 0
	for i := range streams {
		total += len(stored(t, admin, fmt.Sprint("s", i)))
	}
	if int64(total) != published.Load() {
		t.Errorf("%d frames are stored, %d were published", total, published.Load())
	}
	if n := pgtest.Query[int](t, admin, `select deadlocks::int from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("the server counted %d deadlocks", n)
	}
}

// A role whose transactions are serializable by default must make no difference.
func TestIsolationLevelOfTheRole(t *testing.T) {
	url := newSchema(t) + "&options=-c%20default_transaction_isolation%3Dserializable"
	stores := []*Store{startPublisher(t, url), startPublisher(t, url)}
	err := publishAll(t.Context(), 8, 30, func(ctx context.Context, caller, i int) error {
		_, err := backlog.Publish(ctx, stores[caller%2], publication(fmt.Sprint("s", i%3), "x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestIdempotencyKeys(t *testing.T) {
	url := newSchema(t)
	s := startPublisher(t, url)
	first := mustPublish(t, s, keyed(publication("s", "1"), "k"))
	again := mustPublish(t, s, keyed(publication("s", "1"), "k"))
	if !again.Duplicate || again.Position != first.Position || first.Duplicate {
		t.Errorf("the retry got %+v, the first %+v", again, first)
	}
	_, err := backlog.Publish(t.Context(), s, keyed(publication("s", "2"), "k"))
	var conflict *backlog.KeyConflictError
	if !errors.As(err, &conflict) || conflict.Position != first.Position {
		t.Errorf("another content ended with %v", err)
	}
	if _, err := s.CloseStream(t.Context(), backlog.StreamName{Channel: "c", Scope: "s"}, nil); err != nil {
		t.Fatal(err)
	}
	if o := mustPublish(t, s, keyed(publication("s", "1"), "k")); !o.Duplicate || o.Position != first.Position {
		t.Errorf("after the close the retry got %+v", o)
	}
	if closed := pgtest.Query[bool](t, pgtest.Dial(t, url), `select closed from fanfare.streams where scope = 's'`); !closed {
		t.Error("a retry has reopened the stream")
	}
}

// Eight callers with the same keys at once: one stores, the others are told so.
func TestSameKeysAtOnce(t *testing.T) {
	url := newSchema(t)
	stores := []*Store{startPublisher(t, url), startPublisher(t, url)}
	var fresh atomic.Int64
	err := publishAll(t.Context(), 8, 30, func(ctx context.Context, caller, i int) error {
		o, err := backlog.Publish(ctx, stores[caller%2], keyed(publication("s", fmt.Sprint(i)), fmt.Sprint("key ", i)))
		if !o.Duplicate {
			fresh.Add(1)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if fresh.Load() != 30 {
		t.Errorf("%d frames were new, want 30", fresh.Load())
	}
	if n := len(stored(t, pgtest.Dial(t, url), "s")); n != 30 {
		t.Errorf("%d frames are stored, want 30", n)
	}
}

// A frame that the database refuses must not fail those that travel with it.
func TestPoisonFailsAlone(t *testing.T) {
	url := newSchema(t)
	admin := pgtest.Dial(t, url)
	pgtest.Exec(t, admin, `alter table fanfare.channel_frames add check (payload <> 'poison')`)
	s := startPublisher(t, url)
	var all []*pending
	for i := range 400 {
		payload := strconv.Itoa(i)
		if i == 123 || i == 124 {
			payload = "poison"
		}
		all = append(all, submit(t.Context(), s, publication(fmt.Sprint("s", i%7), payload)))
	}
	for i, p := range all {
		_, err := p.wait(t)
		if poison := i == 123 || i == 124; poison != (err != nil) {
			t.Errorf("frame %d ended with %v", i, err)
		}
		if errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, backlog.ErrOutcomeUnknown) {
			t.Errorf("a refused frame ended with %v, which asks for a retry", err)
		}
	}
}

// Every byte value, empty and large payloads, and headers arrive unchanged.
func TestContentArrivesUnchanged(t *testing.T) {
	url := newSchema(t)
	s, admin := startPublisher(t, url), pgtest.Dial(t, url)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	headers := map[string]string{"a": `"quoted" \ <tag> & 😀` + "\u2028\r\n\t", "empty": ""}
	for i, payload := range [][]byte{nil, {}, {0}, every, make([]byte, s.MaxFrameBytes())} {
		scope := fmt.Sprint("s", i)
		mustPublish(t, s, backlog.Publication{
			Stream: backlog.StreamName{Channel: "c", Scope: scope}, Payload: payload,
			ContentType: "text/ünïcode", EventType: "e", Headers: headers,
		})
		var gotPayload []byte
		var gotType, gotEvent string
		var gotHeaders map[string]string
		err := admin.QueryRow(t.Context(), `select payload, content_type, event_type, headers
			from fanfare.channel_frames join fanfare.streams using (stream_id) where scope = $1`, scope).
			Scan(&gotPayload, &gotType, &gotEvent, &gotHeaders)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(gotPayload, payload) || gotType != "text/ünïcode" || gotEvent != "e" {
			t.Errorf("payload %d came back as %d bytes, %q, %q", i, len(gotPayload), gotType, gotEvent)
		}
		if len(gotHeaders) != 2 || gotHeaders["a"] != headers["a"] || gotHeaders["empty"] != "" {
			t.Errorf("headers came back as %q", gotHeaders)
		}
	}
}

func TestLimitsAreChecked(t *testing.T) {
	s := startPublisher(t, newSchema(t))
	tooLarge := publication("s", strings.Repeat("x", s.MaxFrameBytes()+1))
	for name, p := range map[string]backlog.Publication{
		"payload": tooLarge,
		"channel": {},
		"scope":   publication("\x00", "x"),
	} {
		var limit *backlog.LimitError
		if _, err := backlog.Publish(t.Context(), s, p); !errors.As(err, &limit) || limit.Field != name {
			t.Errorf("%s: publish ended with %v", name, err)
		}
		if _, err := s.PublishBatch(t.Context(), []backlog.Publication{publication("s", "x"), p}); !errors.As(err, &limit) || limit.Field != name {
			t.Errorf("%s: the batch ended with %v", name, err)
		}
	}
	for name, batch := range map[string][]backlog.Publication{
		"empty":           {},
		"too many frames": make([]backlog.Publication, backlog.MaxBatchFrames+1),
		"too many bytes":  slices.Repeat([]backlog.Publication{publication("s", strings.Repeat("x", 1<<20))}, 5),
	} {
		var limit *backlog.LimitError
		if _, err := s.PublishBatch(t.Context(), batch); !errors.As(err, &limit) || limit.Field != "frames" {
			t.Errorf("%s: the batch ended with %v", name, err)
		}
	}
}

// sqlPublisher is an application that publishes in transactions of its own.
type sqlPublisher struct {
	exec func(ctx context.Context, sql string, args ...any) error
}

func newSQLPublisher(t *testing.T, url string) *sqlPublisher {
	conn := pgtest.Dial(t, url)
	return &sqlPublisher{func(ctx context.Context, sql string, args ...any) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}}
}

// publish keeps the transaction open for a while after publishing.
func (p *sqlPublisher) publish(ctx context.Context, open time.Duration, scope, payload string) error {
	if err := p.exec(ctx, "begin"); err != nil {
		return err
	}
	if err := p.exec(ctx, `select fanfare.publish('c', $1, $2)`, scope, []byte(payload)); err != nil {
		return err
	}
	if err := p.exec(ctx, `select pg_sleep($1)`, open.Seconds()); err != nil {
		return err
	}
	return p.exec(ctx, "commit")
}
