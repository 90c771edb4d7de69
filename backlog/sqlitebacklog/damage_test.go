package sqlitebacklog

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// openDamaged opens a store whose file is damaged after that: in the payloads of
// the channel "bad". Those of "good" can be read.
func openDamaged(t *testing.T, log *recordedLog) *runningStore {
	t.Helper()
	s := openRunning(t, newFile(t))
	for range 3 {
		put(t, s, "bad", strings.Repeat("x", 100<<10))
		put(t, s, "good", strings.Repeat("y", 100<<10))
	}
	s.cfg.Logger = log.logger()
	s = s.reopen(t) // with empty caches, and everything in the database's file
	if n := spoilPages(t, s.path, 'x'); n < 60 {
		t.Fatalf("%d pages hold parts of payloads", n)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// expectDamageNoted checks that operators have been told once what to do, and that
// the store is not ready.
func expectDamageNoted(t *testing.T, s *runningStore, log *recordedLog) {
	t.Helper()
	for range 2 {
		err := s.Ping(t.Context())
		isError(t, "ping", err, backlog.ErrUnavailable)
		if err != nil {
			says(t, err.Error(), s.path, "is damaged", "restore it from a backup", ".recover")
		}
	}
	if log.count("level=ERROR") != 1 || log.count("restore it from a backup") != 1 {
		t.Errorf("the log is not one error with advice: %s", log.text.String())
	}
}

// TestDamageMetByLoad: the damaged stream is loaded without frames, and all others
// as ever. When one load read all or failed, a hub that had the damaged stream in
// its rounds could load none.
func TestDamageMetByLoad(t *testing.T) {
	var log recordedLog
	s := openDamaged(t, &log)
	bad, good := backlog.StreamName{Channel: "bad"}, backlog.StreamName{Channel: "good"}
	for range 3 {
		result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{everything(bad), everything(good), everything(testStream)})
		if err != nil {
			t.Fatal(err)
		}
		if result.Origin != s.origin || len(result.Streams) != 3 {
			t.Fatalf("%d streams of %d", len(result.Streams), result.Origin)
		}
		if l := result.Streams[0]; len(l.Frames) != 0 || l.Before != l.State.Head || l.State.Head.Sequence != 3 || l.State.Base.Sequence != 0 {
			t.Errorf("the damaged stream has %d frames after %v; its state is %+v", len(l.Frames), l.Before, l.State)
		}
		if l := result.Streams[1]; len(l.Frames) != 3 || l.State.Stream != good {
			t.Errorf("the good stream has %d frames; its state is %+v", len(l.Frames), l.State)
		}
		if l := result.Streams[2]; l.State.Exists || l.State.Stream != testStream {
			t.Errorf("a stream that does not exist has the state %+v", l.State)
		}
	}
	expectDamageNoted(t, s, &log)
	put(t, s, "good", "more")
	if n := len(payloads(t, s, "good")); n != 4 {
		t.Errorf("%d frames of the good stream, want 4", n)
	}
}

func TestDamageMetByPage(t *testing.T) {
	var log recordedLog
	s := openDamaged(t, &log)
	for range 3 {
		_, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: backlog.StreamName{Channel: "bad"}, MaxFrames: 9, MaxBytes: 1 << 30})
		isError(t, "a page of the damaged stream", err, backlog.ErrUnavailable)
	}
	if page, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: backlog.StreamName{Channel: "good"}, MaxFrames: 9, MaxBytes: 1 << 30}); err != nil || len(page.Frames) != 3 {
		t.Errorf("a page of the good stream: %d frames, %v", len(page.Frames), err)
	}
	expectDamageNoted(t, s, &log)
}

func TestDamageMetByWrite(t *testing.T) {
	var log recordedLog
	s := openDamaged(t, &log)
	s.execute(t, "pragma shrink_memory") // the check of the pages has left them in the writer's cache
	for range 3 {
		err := s.exclusively(t.Context(), func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, "delete from channel_frames where size > 1000")
			return err
		})
		isError(t, "delete damaged frames", err, backlog.ErrUnavailable)
	}
	expectDamageNoted(t, s, &log)
	put(t, s, "good", "more")
}

// TestDamageOfTheBeginning: a new connection finds that the file is no database;
// those that are there go on.
func TestDamageOfTheBeginning(t *testing.T) {
	var log recordedLog
	s := openDamaged(t, &log)
	file, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() }) // then: closing it ends SQLite's locks
	if _, err := file.WriteAt(bytes.Repeat([]byte{0xa5}, 100), 0); err != nil {
		t.Fatal(err)
	}
	s.reader.SetMaxIdleConns(0) // the next read needs a new one
	_, err = s.Load(t.Context(), 0, []backlog.LoadRequest{everything(backlog.StreamName{Channel: "good"})})
	isError(t, "load", err, backlog.ErrUnavailable)
	expectDamageNoted(t, s, &log)
	put(t, s, "good", "more")
}
