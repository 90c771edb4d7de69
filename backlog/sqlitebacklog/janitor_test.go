package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// publishTo publishes n frames to each of the scopes of a channel.
func (s *runningStore) publishTo(t *testing.T, channel string, scopes, n int) {
	t.Helper()
	var batch []backlog.Publication
	for i := range scopes * n {
		batch = append(batch, backlog.Publication{Stream: backlog.StreamName{Channel: channel, Scope: fmt.Sprint(i / n)}, Payload: []byte("x")})
		if len(batch) == backlog.MaxBatchFrames || i == scopes*n-1 {
			if _, err := s.PublishBatch(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			batch = batch[:0]
		}
	}
}

func (s *runningStore) count(t *testing.T, table string) int {
	t.Helper()
	return query[int](t, s, "select count(*) from "+table)
}

func (s *runningStore) setPolicy(t *testing.T, p backlog.Policy) {
	t.Helper()
	if err := s.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// TestSweepOfMany has more of everything than one transaction of the janitor takes.
func TestSweepOfMany(t *testing.T) {
	s := openRunning(t, Config{Path: MemoryPath})
	const streams = sweepPage + 200
	s.publishTo(t, "many", streams, 2)
	s.publishTo(t, "long", 1, 3000)
	now := time.Now().UnixMicro()
	s.execute(t, `insert into idempotency_keys with recursive n(i) as (select 1 union all select i + 1 from n where i < ?1)
		select 'c', '', i, x'', 1, i, ?2 from n`, 2*sweepKeys+5, now-(48*time.Hour).Microseconds())
	s.execute(t, `insert into idempotency_keys values ('c', '', 'fresh', x'', 1, 1, ?)`, now)

	// Reopened streams leave numberings behind, one of them long.
	for _, name := range []backlog.StreamName{{Channel: "long", Scope: "0"}, {Channel: "many", Scope: "7"}} {
		if _, err := s.CloseStream(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: name}); err != nil {
			t.Fatal(err)
		}
	}
	s.execute(t, `insert into retired_streams with recursive n(i) as (select 1 union all select i + 1 from n where i < ?1)
		select i, 'r', i, 1, 1, 1, 0, 1, ?2, ?2 from n`, 3*sweepTrims, now)

	// Within the grace nothing is deleted but the keys.
	frames := s.count(t, "channel_frames")
	s.sweep(t)
	if n := s.count(t, "idempotency_keys"); n != 1 {
		t.Errorf("%d keys are left, want 1", n)
	}
	if n := s.count(t, "channel_frames"); n != frames {
		t.Errorf("%d frames are left within the grace, want %d", n, frames)
	}

	s.setPolicy(t, backlog.Policy{Prefix: true, Backlog: pointerTo(uint64(1))})
	s.sweepAfterGrace(t)
	if n := s.count(t, "retired_streams"); n != 0 {
		t.Errorf("%d earlier numberings are left", n)
	}
	if n := s.count(t, "channel_frames"); n != streams+1 {
		t.Errorf("%d frames are left, want one for each of %d streams", n, streams+1)
	}
	if n := query[int](t, s, "select count(*) from streams where floor <> head - 1 or stored_bytes <> (select coalesce(sum(size), 0) from channel_frames f where f.stream_id = streams.stream_id)"); n != 0 {
		t.Errorf("%d streams have a wrong floor or size", n)
	}

	s.setPolicy(t, backlog.Policy{Prefix: true, Backlog: pointerTo(uint64(0)), StreamRetention: pointerTo(time.Hour)})
	s.execute(t, "update streams set updated = updated - ?", (2 * time.Hour).Microseconds())
	s.sweepAfterGrace(t)
	s.sweep(t)
	if n := s.count(t, "streams") + s.count(t, "channel_frames"); n != 0 {
		t.Errorf("%d rows are left of streams past their retention", n)
	}
}

// TestSweepByPolicy: each channel is swept by what applies to it.
func TestSweepByPolicy(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.setPolicy(t, backlog.Policy{Channel: "short", Prefix: true, Backlog: pointerTo(uint64(2))})
	s.setPolicy(t, backlog.Policy{Channel: "shorter", Backlog: pointerTo(uint64(1))})
	s.setPolicy(t, backlog.Policy{Channel: "aged", RetentionAge: pointerTo(time.Hour)})
	for _, channel := range []string{"aged", "kept", "short", "shorter", "shorter still"} {
		s.publishTo(t, channel, 1, 5)
	}
	s.age(t, backlog.StreamName{Channel: "aged", Scope: "0"}, 2*time.Hour)
	s.publishTo(t, "aged", 1, 1)
	s.sweepAfterGrace(t)
	if got := query[string](t, s, "select group_concat(channel || ' ' || floor, ', ') from (select * from streams order by channel)"); got != "aged 5, kept 0, short 3, shorter 4, shorter still 3" {
		t.Errorf("floors: %s", got)
	}
}

// TestGraceIsBounded: frames beyond the backlog are kept for the grace, but no more
// of them than its rows and bytes.
func TestGraceIsBounded(t *testing.T) {
	for _, tt := range []struct {
		setting string
		floor   int
	}{
		{"grace_rows = 20", 100 - 10 - 20},
		{"grace_bytes = 1500", 100 - 10 - 15},
		{"grace_rows = 20, grace_bytes = 100000", 100 - 10 - 20},
	} {
		s := openRunning(t, newFile(t))
		s.setPolicy(t, backlog.Policy{Prefix: true, Backlog: pointerTo(uint64(10))})
		s.execute(t, "update settings set "+tt.setting)
		batch := make([]backlog.Publication, 100)
		for i := range batch {
			batch[i] = backlog.Publication{Stream: testStream, Payload: make([]byte, 100)}
		}
		if _, err := s.PublishBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		err := s.exclusively(t.Context(), func(ctx context.Context, conn *sql.Conn) error {
			for {
				if n, err := s.trim(ctx, conn, testStream.Channel, testStream.Scope); n == 0 || err != nil {
					return err
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if floor := query[int](t, s, "select floor from streams"); floor != tt.floor {
			t.Errorf("%s: the floor is %d, want %d", tt.setting, floor, tt.floor)
		}
	}
}

// TestTrimLimit: a trim deletes no more than its limit, and at least one frame.
func TestTrimLimit(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.setPolicy(t, backlog.Policy{Prefix: true, Backlog: pointerTo(uint64(1))})
	s.execute(t, "update settings set grace = -1, grace_rows = 0")
	batch := make([]backlog.Publication, 50) // fewer than are trimmed by publishing
	for i := range batch {
		batch[i] = backlog.Publication{Stream: testStream, Payload: make([]byte, 100)}
	}
	if _, err := s.PublishBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		most trimLimit
		want int64
	}{
		{trimLimit{frames: 5, bytes: 1 << 20}, 5}, {trimLimit{frames: 100, bytes: 1000}, 10}, {trimLimit{frames: 100, bytes: 1}, 1},
		{trimLimit{frames: 100, bytes: 1 << 20}, 33}, {trimLimit{frames: 100, bytes: 1 << 20}, 0},
	} {
		err := s.exclusively(t.Context(), func(ctx context.Context, conn *sql.Conn) error {
			most := tt.most
			got, err := s.trimUpTo(ctx, conn, testStream.Channel, testStream.Scope, &most)
			if got != tt.want || most != (trimLimit{tt.most.frames - got, tt.most.bytes - 100*got}) {
				t.Errorf("%v: deleted %d, want %d; left %v", tt.most, got, tt.want, most)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestStreamsAreTrimmedByPublishing: a stream that is published to does not grow
// until the janitor comes.
func TestStreamsAreTrimmedByPublishing(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.setPolicy(t, backlog.Policy{Prefix: true, Backlog: pointerTo(uint64(10))})
	s.execute(t, "update settings set grace = -1")
	for range 10 {
		s.publishTo(t, "busy", 1, 500)
	}
	if n := s.count(t, "channel_frames"); n > 500+trimEvery {
		t.Errorf("%d frames are stored", n)
	}
}

// TestJanitorRuns: Run sweeps by itself, also when a sweep has failed, which is
// logged once.
func TestJanitorRuns(t *testing.T) {
	var log logRecorder
	cfg := newFile(t)
	cfg.JanitorInterval = time.Millisecond
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := openRunning(t, cfg)
	s.execute(t, "alter table idempotency_keys rename to hidden")
	s.execute(t, "insert into hidden values ('c', '', 'old', x'', 1, 1, 0)")
	const message = "could not be removed"
	eventually(t, "the failure is logged", func() bool { return strings.Contains(log.take(), message) })
	s.execute(t, "alter table hidden rename to idempotency_keys")
	eventually(t, "the key is removed", func() bool { return s.count(t, "idempotency_keys") == 0 })
	if strings.Contains(log.take(), message) {
		t.Error("the failure was logged twice")
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		<-look.C
	}
}

// TestJanitorRests: after each transaction the janitor leaves 19 times as much time
// to publishers as it took, and it ends with its context at once.
func TestJanitorRests(t *testing.T) {
	s := openRunning(t, newFile(t))
	var rests []time.Duration
	ctx, cancel := context.WithCancel(t.Context())
	j := &janitor{store: s.Store, pause: func(ctx context.Context, d time.Duration) bool {
		rests = append(rests, d)
		if len(rests) == 5 {
			cancel()
		}
		return ctx.Err() == nil
	}}
	var took []time.Duration
	err := j.repeat(ctx, func(ctx context.Context, conn *sql.Conn) (bool, error) {
		began := time.Now()
		defer func() { took = append(took, time.Since(began)) }()
		_, err := conn.ExecContext(ctx, "with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000) select sum(i) from n")
		return true, err
	})
	if !errors.Is(err, context.Canceled) || len(rests) != 5 || len(took) != 5 {
		t.Fatalf("%v after %d transactions and %d rests", err, len(took), len(rests))
	}
	for i := range took {
		if rests[i] < (restRatio-1)*took[i] {
			t.Errorf("a rest of %v after %v", rests[i], took[i])
		}
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if !pause(ctx, time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("a pause of a minute took %v", time.Since(began))
		}
		if pause(ctx, 2*time.Hour) || time.Since(began) != time.Hour {
			t.Errorf("a pause did not end with its context but after %v", time.Since(began))
		}
	})
}

// TestClockJumps: a jump of the clock by hours deletes nothing early, keeps nothing
// for ever, and does not disturb the order of times within a stream.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{5 * time.Hour, -5 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			hand := newHandClock()
			s := openRunningAt(t, newFile(t), &hand.clock)
			s.setPolicy(t, backlog.Policy{Channel: "aged", RetentionAge: pointerTo(time.Hour)})
			s.setPolicy(t, backlog.Policy{Channel: "none", Backlog: pointerTo(uint64(0))})
			grace := 30 * time.Second
			stored := func() [2]int {
				t.Helper()
				s.sweep(t)
				var n [2]int
				for i, channel := range []string{"aged", "none"} {
					n[i] = query[int](t, s, "select count(*) from channel_frames f join streams s using (stream_id) where s.channel = ?", channel)
				}
				return n
			}
			expect := func(when string, want [2]int) {
				t.Helper()
				if got := stored(); got != want {
					t.Errorf("%s: %v frames of aged and none are stored, want %v", when, got, want)
				}
			}
			publish := func() {
				s.publishTo(t, "aged", 1, 1)
				s.publishTo(t, "none", 1, 1)
			}
			publish()
			hand.pass(grace - 5*time.Second)
			publish()
			hand.step(jump)
			expect("after the jump", [2]int{2, 2})
			publish()
			states, err := s.ListStreams(t.Context(), "aged", backlog.StreamName{}, 1)
			if err != nil || states[0].Base.Sequence != 0 {
				t.Errorf("the base is %v, %v: nothing is too old", states[0].Base, err)
			}
			if n := query[int](t, s, "select count(*) from channel_frames f join channel_frames g using (stream_id) where f.sequence < g.sequence and f.created > g.created"); n != 0 {
				t.Errorf("%d times go backwards", n)
			}
			hand.pass(4 * time.Second)
			expect("within the grace", [2]int{3, 3})
			late := max(-jump, 0) // what was stored before a jump back is kept longer
			hand.pass(2*time.Second + late)
			expect("after the first frame's grace", [2]int{3, 2})
			hand.pass(grace)
			expect("after the grace", [2]int{3, 0})
			hand.pass(time.Hour)
			expect("after the retention age", [2]int{0, 0})
			hand.pass(8 * 24 * time.Hour)
			stored()
			if n := s.count(t, "streams"); n != 0 {
				t.Errorf("%d streams are left after their retention", n)
			}
		})
	}
}

// TestSweepMeetsUse: a stream that looked idle when the janitor saw it, and is used
// by an ephemeral frame before it is removed, is left.
func TestSweepMeetsUse(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.setPolicy(t, backlog.Policy{Prefix: true, StreamRetention: pointerTo(time.Hour)})
	used := backlog.Publication{Stream: backlog.StreamName{Channel: "c", Scope: "used"}, Ephemeral: true}
	idle := backlog.Publication{Stream: backlog.StreamName{Channel: "c", Scope: "idle"}, Ephemeral: true}
	publish := func(p backlog.Publication) {
		t.Helper()
		if _, err := backlog.Publish(t.Context(), s, p); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []backlog.Publication{used, idle} {
		publish(p)
		s.age(t, p.Stream, time.Hour+backlog.UseInterval)
	}
	j := &janitor{store: s.Store, pause: func(context.Context, time.Duration) bool { return true }}
	page, err := j.candidates(t.Context(), backlog.StreamName{})
	if err != nil || len(page.remove) != 2 {
		t.Fatalf("the janitor saw %+v, %v, want two streams to remove", page, err)
	}
	publish(used)
	if err := j.remove(t.Context(), page.remove); err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, s, "select group_concat(scope) from streams"); got != "used" {
		t.Errorf("%q are left, want the used one", got)
	}
}
