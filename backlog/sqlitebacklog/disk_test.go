package sqlitebacklog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

// recordedLog is what a logger wrote.
type recordedLog struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *recordedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *recordedLog) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *recordedLog) count(phrase string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), phrase)
}

// fillUntil publishes frames to a stream until one is refused, and returns how
// many were stored and the error.
func fillUntil(s *Store, channel string) (stored int, err error) {
	const enough = 10_000
	content := strings.Repeat("x", 3000)
	for ; stored < enough; stored++ {
		if _, err := publishText(s, backlog.StreamName{Channel: channel}, content); err != nil {
			return stored, err
		}
	}
	return stored, errors.New("the disk does not get full")
}

// sameAgain checks that publishing and reading work after an outage that stored
// frames of a stream had come before, and that nothing else is stored.
func sameAgain(s *Store, channel string, stored int) error {
	o, err := publishText(s, backlog.StreamName{Channel: channel}, "last")
	if err != nil {
		return fmt.Errorf("publish after the outage: %w", err)
	}
	if o.Position.Sequence != uint64(stored+1) {
		return fmt.Errorf("the sequence after the outage is %d, want %d", o.Position.Sequence, stored+1)
	}
	return readable(s, channel, stored+1)
}

// readable checks that a stream has frames 1 to n.
func readable(s *Store, channel string, n int) error {
	result, err := s.Load(context.Background(), 0, []backlog.LoadRequest{{
		Stream: backlog.StreamName{Channel: channel}, MaxFrames: 1 << 30, MaxBytes: 1 << 30,
	}})
	if err != nil {
		return err
	}
	frames := result.Streams[0].Frames
	if len(frames) != n || n > 0 && frames[0].Position.Sequence != 1 {
		return fmt.Errorf("%d frames are stored, want %d", len(frames), n)
	}
	return nil
}

// TestFull: publishing says that the disk is full, one caller in the middle of a
// transaction like all the others; nothing is stored, everything can be read, a
// retry of what is known gets its answer, and when there is room it goes on.
func TestFull(t *testing.T) {
	var log recordedLog
	s := openRunning(t, Config{Path: filepath.Join(realTempDir(t), "fanfare.db"), Logger: log.logger()})
	known := frame("known", "x")
	known.IdempotencyKey = "key"
	first, err := backlog.Publish(t.Context(), s, known)
	if err != nil {
		t.Fatal(err)
	}
	pass(t, s, "known", "x")
	limit := func(pages int64) {
		t.Helper()
		if _, err := s.writer.ExecContext(t.Context(), fmt.Sprint("pragma max_page_count = ", pages)); err != nil {
			t.Fatal(err)
		}
	}
	limit(query[int64](t, s, "pragma page_count") + 50)
	stored, err := fillUntil(s.Store, "a")
	if !errors.Is(err, backlog.ErrDiskFull) {
		t.Fatalf("after %d frames: %v", stored, err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := publishText(s.Store, backlog.StreamName{Channel: fmt.Sprint("b", i)}, strings.Repeat("x", 10_000))
			if !errors.Is(err, backlog.ErrDiskFull) {
				t.Errorf("publish: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := s.PublishBatch(t.Context(), []backlog.Publication{frame("c", strings.Repeat("x", 100_000))}); !errors.Is(err, backlog.ErrDiskFull) {
		t.Errorf("publish a batch: %v", err)
	}
	if err := readable(s.Store, "a", stored); err != nil {
		t.Error(err)
	}
	if log.count("publishing fails") != 1 || log.count("publishing works again") != 0 {
		t.Errorf("the log is not one warning of the outage: %s", log.text.String())
	}
	again, err := backlog.Publish(t.Context(), s, known)
	if err != nil || again != (backlog.Outcome{Position: first.Position, Duplicate: true}) {
		t.Errorf("a retry of what was stored before: %v, %v", again, err)
	}
	// What writes nothing succeeds, and is no end of the outage.
	pass(t, s, "known", "x")
	if _, err := publishText(s.Store, backlog.StreamName{Channel: "b"}, strings.Repeat("x", 10_000)); !errors.Is(err, backlog.ErrDiskFull) {
		t.Errorf("publish after that: %v", err)
	}
	if log.count("publishing fails") != 1 || log.count("publishing works again") != 0 {
		t.Errorf("the log is not one warning of the outage: %s", log.text.String())
	}
	limit(1 << 30)
	if err := sameAgain(s.Store, "a", stored); err != nil {
		t.Error(err)
	}
	if log.count("publishing fails") != 1 || log.count("publishing works again") != 1 {
		t.Errorf("the log does not have one outage and its end: %s", log.text.String())
	}
}
