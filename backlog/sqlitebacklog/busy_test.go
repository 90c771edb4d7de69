package sqlitebacklog

import (
	"database/sql"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// TestLockedByOthers: once a publish has waited in vain for another program's
// lock, the store is not ready, as long as that is so and no longer, without a
// publish that tries.
func TestLockedByOthers(t *testing.T) {
	var log recordedLog
	cfg := newFile(t)
	cfg.Logger = log.logger()
	s := openRunning(t, cfg)
	put(t, s, "a", "1")
	other, err := sql.Open("sqlite", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetMaxOpenConns(1)
	statement := func(text string) {
		t.Helper()
		if _, err := other.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		statement("begin immediate")
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("ping before anybody was in want of the lock: %v", err)
		}
		conn, err := s.writer.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.setBusyTimeout(t.Context(), conn, time.Millisecond)
		_ = conn.Close()
		_, err = backlog.Publish(t.Context(), s, frame("a", "x"))
		isError(t, "publish", err, backlog.ErrUnavailable)
		isError(t, "publish", err, errLocked)
		for range 3 {
			err := s.Ping(t.Context())
			isError(t, "ping", err, backlog.ErrUnavailable)
			isError(t, "ping", err, errLocked)
		}
		statement("rollback")
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("ping when the lock is gone: %v", err)
		}
	}
	put(t, s, "a", "2")
	if log.count("publishing fails") != 1 || log.count("publishing works again") != 1 || log.count("another program holds a lock") != 1 {
		t.Errorf("the log is %s", log.text.String())
	}
}

// TestLockedWhileSomebodyWrites: a ping does not wait for a publish that waits for
// the lock.
func TestLockedWhileSomebodyWrites(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.locked.Store(true)
	conn, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	isError(t, "ping while the connection is taken", s.Ping(t.Context()), errLocked)
	_ = conn.Close()
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("ping when it is not: %v", err)
	}
}
