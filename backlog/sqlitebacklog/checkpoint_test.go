package sqlitebacklog

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// openShortLog opens a store that makes a checkpoint every 50 pages.
func openShortLog(t *testing.T, log *recordedLog) *runningStore {
	t.Helper()
	s, err := open(t.Context(), Config{
		Path: filepath.Join(t.TempDir(), "fanfare.db"), Logger: log.logger(), JanitorInterval: time.Hour,
	}, &clock{})
	if err != nil {
		t.Fatal(err)
	}
	s.checkpoints.every = 50
	return &runningStore{Store: s, stop: runStore(t, s)}
}

func (s *runningStore) logBytes(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// publishMany publishes frames of a page each, every one in a transaction of its
// own.
func publishMany(t *testing.T, s *runningStore, channel string, n int) {
	t.Helper()
	payload := strings.Repeat("x", 4000)
	for range n {
		put(t, s, channel, payload)
	}
}

// TestLogIsBounded: those who read all the time keep checkpoints from finishing,
// and the log from starting anew, only up to a bound.
func TestLogIsBounded(t *testing.T) {
	var log recordedLog
	s := openShortLog(t, &log)
	put(t, s, "a", "x")
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range 3 {
		readers.Go(func() {
			for ctx.Err() == nil {
				_, err := s.Load(ctx, 0, []backlog.LoadRequest{{Stream: backlog.StreamName{Channel: "a"}, MaxFrames: 5, MaxBytes: 1 << 20}})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	// Readers may be too slow for the wait twice, on a busy machine. A publish changes
	// about six pages, so that a log without a bound gets 1,800; a page of the log has
	// a header of 24 bytes.
	const bound = (4*maxLog*50 + 100) * (4096 + 24)
	for range 15 {
		publishMany(t, s, "a", 20)
		if n := s.logBytes(t); n > bound {
			t.Fatalf("the log has %d bytes, more than %d", n, bound)
		}
	}
}

// TestLogOfALongReader: a program that reads for long makes the log grow, and
// operators are told; publishing goes on. When it ends, the log gets short again.
func TestLogOfALongReader(t *testing.T) {
	var log recordedLog
	s := openShortLog(t, &log)
	put(t, s, "a", "x")
	other, err := sql.Open("sqlite", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := other.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRow("select count(*) from streams").Scan(&n); err != nil {
		t.Fatal(err)
	}
	publishMany(t, s, "a", 150)
	long := s.logBytes(t)
	if long < maxLog*50*4096 {
		t.Errorf("the log has %d bytes, although a reader needs what is older", long)
	}
	if n := log.count("cannot be shortened"); n < 1 || n > 3 {
		t.Errorf("%d warnings, want one for each doubling of the log: %s", n, log.text.String())
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	publishMany(t, s, "a", 150)
	if used := s.logPages(t); used > maxLog*50 {
		t.Errorf("the log is %d pages long after the reader has ended", used)
	}
	if n := s.logBytes(t); n > long+100*4096 {
		t.Errorf("the log has grown from %d to %d bytes", long, n)
	}
}

// logPages is how long the log is, whatever the size of its file.
func (s *runningStore) logPages(t *testing.T) (pages int64) {
	t.Helper()
	conn, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if pages, _, err = s.runCheckpoint(t.Context(), conn, "noop"); err != nil {
		t.Fatal(err)
	}
	return pages
}
