package sqlitebacklog

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// A commit appends the pages it changed to the write-ahead log; a checkpoint
// moves them into the database, after which the log is written from its start
// again.
const (
	// checkpointPages is how long the log gets before a checkpoint. A longer one
	// costs each commit less, since pages that were changed again and again are moved
	// once, and keeps who publishes next waiting for longer. With publishes to 1,000
	// streams (BenchmarkCheckpoints), a checkpoint of 1,000 pages took 8 ms and all of
	// them 10 % of the time; of 4,000 pages, 11 ms and 4 %; of 16,000, 24 ms and 3 %.
	checkpointPages = 4000
	// maxLog, times that, is how long it gets before readers, which keep a checkpoint
	// from finishing while they read what is older, are waited for.
	maxLog = 4
	// maxLogBytes is the size to which the log's file is cut once it is written
	// from its start again.
	maxLogBytes = maxLog * checkpointPages * 4096
	// maxReaderWait bounds that wait: another program may read for hours.
	maxReaderWait = 500 * time.Millisecond
)

// checkpoints is what is remembered from one checkpoint to the next. Whoever has
// the writing connection may use it.
type checkpoints struct {
	// every is checkpointPages, but for tests.
	every int64
	// next is the length of the log at which there is another attempt after one
	// that did not finish, in pages; 0 if it did.
	next int64
	// restart is the length at which readers are waited for; it doubles with each
	// wait in vain.
	restart int64
}

// checkpoint shortens the log if it is time to. It is called between
// transactions, after the callers of the last one have been answered, so that
// only those who publish next wait for it.
func (s *Store) checkpoint(ctx context.Context, conn *sql.Conn) {
	if s.cfg.inMemory() || s.files.gone.Load() != nil {
		return
	}
	c := &s.checkpoints
	pages, moved, err := s.runCheckpoint(ctx, conn, "noop")
	if err != nil || pages < max(c.every, c.next) || moved == pages {
		return
	}
	mode := "passive"
	if pages >= max(maxLog*c.every, c.restart) {
		mode = "restart"
		s.setBusyTimeout(ctx, conn, maxReaderWait)
		defer s.setBusyTimeout(ctx, conn, busyTimeout)
	}
	began := time.Now()
	pages, moved, err = s.runCheckpoint(ctx, conn, mode)
	finished := err == nil && moved == pages
	s.logger.Debug("checkpoint", "mode", mode, "pages", pages, "moved", moved, "duration", time.Since(began), "error", err)
	switch {
	case finished:
		c.next, c.restart = 0, 0
	case mode == "restart":
		s.logger.Warn("the write-ahead log cannot be shortened and grows; does another program read the file in a long transaction, or is the disk full?",
			"file", s.path+"-wal", "pages", pages, "error", err)
		c.next, c.restart = pages+c.every/4, 2*pages
	default:
		c.next = pages + c.every/4
	}
}

// runCheckpoint returns how long the log is and how much of it is in the
// database, in pages.
func (s *Store) runCheckpoint(ctx context.Context, conn *sql.Conn, mode string) (pages, moved int64, err error) {
	var busy int64
	err = conn.QueryRowContext(ctx, "pragma wal_checkpoint("+mode+")").Scan(&busy, &pages, &moved)
	s.noteDamage(err)
	return pages, moved, err
}

func (s *Store) setBusyTimeout(ctx context.Context, conn *sql.Conn, d time.Duration) {
	// It cannot fail: nothing is read or written.
	_, _ = conn.ExecContext(ctx, fmt.Sprintf("pragma busy_timeout = %d", d.Milliseconds()))
}
