package sqlitebacklog

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/backlogtest"
)

func TestConformance(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		runSuite(t, func(t *testing.T) Config { return Config{Path: filepath.Join(t.TempDir(), "fanfare.db")} })
	})
	t.Run("memory", func(t *testing.T) {
		runSuite(t, func(*testing.T) Config { return Config{Path: MemoryPath} })
	})
}

func runSuite(t *testing.T, config func(t *testing.T) Config) {
	open := func(t *testing.T) backlog.Store { return openRunning(t, config(t)) }
	backlogtest.Run(t, open, suiteHooks)
	backlogtest.RunEphemeral(t, open, suiteHooks)
}

var suiteHooks = backlogtest.Hooks{
	Sweep: func(t *testing.T, s backlog.Store) { s.(*runningStore).sweepAfterGrace(t) },
	Age: func(t *testing.T, s backlog.Store, stream backlog.StreamName, d time.Duration) {
		s.(*runningStore).age(t, stream, d)
	},
	SetHead: func(t *testing.T, s backlog.Store, stream backlog.StreamName, sequence uint64) {
		s.(*runningStore).setHead(t, stream, sequence)
	},
	Reopen: func(t *testing.T, s backlog.Store) backlog.Store { return s.(*runningStore).reopen(t) },
}

// runningStore is a store that runs. Its janitor sweeps when the test says so.
type runningStore struct {
	*Store
	stop func() // ends Run and closes; may be called twice
}

// openRunning opens a store and runs it until the test ends.
func openRunning(t *testing.T, cfg Config) *runningStore {
	t.Helper()
	return openRunningAt(t, cfg, &clock{})
}

// openRunningAt is openRunning with a clock of the test.
func openRunningAt(t *testing.T, cfg Config, clock *clock) *runningStore {
	t.Helper()
	if cfg.JanitorInterval == 0 {
		cfg.JanitorInterval = time.Hour
	}
	s, err := open(t.Context(), cfg, clock)
	if err != nil {
		t.Fatal(err)
	}
	return &runningStore{Store: s, stop: runStore(t, s)}
}

// reopen ends a store and opens another one on the same data; in memory, on a copy
// of them.
func (s *runningStore) reopen(t *testing.T) *runningStore {
	t.Helper()
	if !s.cfg.inMemory() {
		s.stop()
		return openRunningAt(t, s.cfg, s.clock)
	}
	type serializer interface {
		Serialize() ([]byte, error)
		Deserialize([]byte) error
	}
	var content []byte
	s.raw(t, func(conn any) (err error) {
		content, err = conn.(serializer).Serialize()
		return err
	})
	s.stop()
	opened, err := open(t.Context(), s.cfg, s.clock)
	if err != nil {
		t.Fatal(err)
	}
	again := &runningStore{Store: opened}
	again.raw(t, func(conn any) error { return conn.(serializer).Deserialize(content) })
	if err := opened.openReading(t.Context()); err != nil {
		t.Fatal(err)
	}
	again.stop = runStore(t, opened)
	return again
}

// raw gives the test the driver's writing connection.
func (s *runningStore) raw(t *testing.T, do func(conn any) error) {
	t.Helper()
	conn, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Raw(do); err != nil {
		t.Fatal(err)
	}
}

// execute runs statements in one transaction of the writer.
func (s *runningStore) execute(t *testing.T, statements string, args ...any) {
	t.Helper()
	err := s.exclusively(t.Context(), func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, statements, args...)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// query returns the only value of a query's only row.
func query[T any](t *testing.T, s *runningStore, statement string, args ...any) T {
	t.Helper()
	var v T
	if err := s.reader.QueryRowContext(t.Context(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// sweep does what the janitor does, without its rests.
func (s *runningStore) sweep(t *testing.T) {
	t.Helper()
	j := &janitor{store: s.Store, pause: func(ctx context.Context, _ time.Duration) bool { return ctx.Err() == nil }}
	if err := j.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// sweepAfterGrace lets the grace of what is stored pass and sweeps.
func (s *runningStore) sweepAfterGrace(t *testing.T) {
	t.Helper()
	grace := query[int64](t, s, "select grace from settings")
	s.execute(t, "update settings set grace = -1")
	s.sweep(t)
	s.execute(t, "update settings set grace = ?", grace)
}

// age makes a stream and what belongs to it older.
func (s *runningStore) age(t *testing.T, stream backlog.StreamName, d time.Duration) {
	t.Helper()
	by := d.Microseconds()
	s.execute(t, `update channel_frames set created = created - ? where stream_id = (select stream_id from streams where channel = ? and scope = ?)`,
		by, stream.Channel, stream.Scope)
	s.execute(t, `update streams set created = created - ?1, updated = updated - ?1, closed_at = closed_at - ?1 where channel = ?2 and scope = ?3`,
		by, stream.Channel, stream.Scope)
	s.execute(t, `update idempotency_keys set created = created - ? where channel = ? and scope = ?`, by, stream.Channel, stream.Scope)
}

// setHead makes a stream's head a sequence, without the frames before.
func (s *runningStore) setHead(t *testing.T, stream backlog.StreamName, sequence uint64) {
	t.Helper()
	s.execute(t, `delete from channel_frames where stream_id = (select stream_id from streams where channel = ? and scope = ?)`,
		stream.Channel, stream.Scope)
	s.execute(t, `update streams set head = ?1, floor = ?1, floor_origin = head_origin, stored_bytes = 0 where channel = ?2 and scope = ?3`,
		int64(sequence), stream.Channel, stream.Scope)
}
