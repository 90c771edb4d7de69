package sqlitebacklog

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var testStream = backlog.StreamName{Channel: "test"}

// publishPayloads publishes frames to testStream.
func (s *runningStore) publishPayloads(t *testing.T, payloads ...string) []backlog.Position {
	t.Helper()
	var positions []backlog.Position
	for _, p := range payloads {
		o, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: testStream, Payload: []byte(p)})
		if err != nil {
			t.Fatal(err)
		}
		positions = append(positions, o.Position)
	}
	return positions
}

func (s *runningStore) loadOne(t *testing.T, request backlog.LoadRequest) backlog.Loaded {
	t.Helper()
	result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{request})
	if err != nil {
		t.Fatal(err)
	}
	return result.Streams[0]
}

func everything(stream backlog.StreamName) backlog.LoadRequest {
	return backlog.LoadRequest{Stream: stream, MaxFrames: 1 << 20, MaxBytes: 1 << 30}
}

func newFile(t *testing.T) Config {
	return Config{Path: filepath.Join(t.TempDir(), "fanfare.db")}
}

// TestForeignDeletions: rows that somebody deleted by hand leave a break that
// readers are told of, never frames that look contiguous.
func TestForeignDeletions(t *testing.T) {
	s := openRunning(t, newFile(t))
	p := s.publishPayloads(t, "1", "2", "3", "4", "5")
	s.execute(t, "delete from channel_frames where sequence = 3")
	loaded := s.loadOne(t, everything(testStream))
	if got := fmt.Sprint(len(loaded.Frames), loaded.Before.Sequence, loaded.Before.Epoch); got != "2 3 0" {
		t.Errorf("loaded %s, want frames 4 and 5, and an unknown position 3 before them", got)
	}
	page, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: testStream, MaxFrames: 9, MaxBytes: 99})
	if err != nil || len(page.Frames) != 2 {
		t.Errorf("page from the start: %d frames, %v; want 2", len(page.Frames), err)
	}
	_, err = s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: testStream, After: p[1], MaxFrames: 9, MaxBytes: 99})
	if !errors.Is(err, backlog.ErrTrimmed) {
		t.Errorf("page before the break: %v, want ErrTrimmed", err)
	}
	s.execute(t, "delete from channel_frames where sequence = 5")
	if loaded := s.loadOne(t, everything(testStream)); len(loaded.Frames) != 0 || loaded.Before != loaded.State.Head {
		t.Errorf("loaded %v without the newest row", loaded)
	}
}

// TestLoadIsOneSnapshot: the streams of a load are as they were at one instant, so
// that what one transaction published is seen whole or not at all.
func TestLoadIsOneSnapshot(t *testing.T) {
	for _, cfg := range []Config{newFile(t), {Path: MemoryPath}} {
		s := openRunning(t, cfg)
		var requests []backlog.LoadRequest
		var batch []backlog.Publication
		for i := range 50 {
			stream := backlog.StreamName{Channel: "snapshot", Scope: fmt.Sprint(i)}
			requests = append(requests, backlog.LoadRequest{Stream: stream, MaxFrames: 2, MaxBytes: 1})
			batch = append(batch, backlog.Publication{Stream: stream, Payload: []byte("x")})
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			for ctx.Err() == nil {
				if _, err := s.PublishBatch(ctx, batch); err != nil && ctx.Err() == nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for head := uint64(0); head < 30; {
			result, err := s.Load(t.Context(), 0, requests)
			if err != nil {
				t.Fatal(err)
			}
			head = result.Streams[0].State.Head.Sequence
			for _, l := range result.Streams {
				if l.State.Head.Sequence != head {
					t.Fatalf("heads %d and %d in one load", head, l.State.Head.Sequence)
				}
				if head > 0 && l.Frames[len(l.Frames)-1].Position != l.State.Head {
					t.Fatalf("the newest frame is %v, the head %v", l.Frames, l.State.Head)
				}
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestReadsUseTheKeys: no statement of a read goes through a table, nor sorts.
func TestReadsUseTheKeys(t *testing.T) {
	s := openRunning(t, Config{Path: MemoryPath})
	for name, statement := range map[string]string{
		"streams": streamsSQL, "retired": retiredSQL, "young": youngSQL, "origins": originsSQL, "newest sizes": newestSizesSQL,
		"oldest sizes": oldestSizesSQL, "frames": framesSQL, "list": listAllSQL, "list of a channel": listChannelSQL,
		"candidates": candidatesSQL, "keys": sweepKeysSQL, "trim": firstYoungSQL, "delete": deleteFramesSQL,
	} {
		rows, err := s.writer.QueryContext(t.Context(), "explain query plan "+statement, "[]", 0, 0, 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for rows.Next() {
			var id, parent, unused int
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(step, "SCAN") && !strings.HasPrefix(step, "SCAN j VIRTUAL TABLE") || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s: %s", name, step)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
}

// TestLoadsReadWhatTheyReturn: cutting a stream by bytes reads sizes, and no payload
// that is not returned: such reads do not notice that those are damaged.
func TestLoadsReadWhatTheyReturn(t *testing.T) {
	s := openRunning(t, newFile(t))
	large := strings.Repeat("x", 200<<10)
	p := s.publishPayloads(t, large, large, large, large, large, large, "small", large, "small")
	s = s.reopen(t) // with empty caches, and everything in the database's file
	if n := spoilPages(t, s.path, 'x'); n < 7*len(large)/4096-50 {
		t.Fatalf("%d pages hold parts of payloads", n)
	}
	loaded := s.loadOne(t, backlog.LoadRequest{Stream: testStream, MaxFrames: 100, MaxBytes: 1000, Verify: []uint64{3}})
	if len(loaded.Frames) != 1 || loaded.Before != p[7] || loaded.Verified[0] != p[2] {
		t.Fatalf("loaded %d frames after %v", len(loaded.Frames), loaded.Before)
	}
	page, err := s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: testStream, After: p[5], MaxFrames: 100, MaxBytes: 1000})
	if err != nil || len(page.Frames) != 1 {
		t.Fatalf("page: %v", err)
	}
	s.sweepAfterGrace(t)
	// Proof that there is a damage.
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("a damage was met: %v", err)
	}
	_, err = s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: testStream, MaxFrames: 100, MaxBytes: 1 << 30})
	if !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("page of everything: %v, want ErrUnavailable", err)
	}
}

// spoilPages breaks the chains of all pages of a file that are full of a byte, and
// returns how many there are.
func spoilPages(t *testing.T, path string, full byte) (spoilt int) {
	t.Helper()
	const pageBytes, pointerBytes = 4096, 4
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Open until the test ends: closing it would end SQLite's locks on the file.
	t.Cleanup(func() { file.Close() })
	content, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at+pageBytes <= len(content); at += pageBytes {
		if bytes.Count(content[at+pointerBytes:at+pageBytes], []byte{full}) == pageBytes-pointerBytes {
			if _, err := file.WriteAt(make([]byte, pointerBytes), int64(at)); err != nil {
				t.Fatal(err)
			}
			spoilt++
		}
	}
	return spoilt
}

// TestReadsEndWithTheirContext: a read that waits for a connection, and one that is
// at work, ends when its context does.
func TestReadsEndWithTheirContext(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.publishPayloads(t, "1")
	reads := map[string]func(context.Context) error{
		"load": func(ctx context.Context) error {
			_, err := s.Load(ctx, 0, []backlog.LoadRequest{{Stream: testStream, MaxFrames: 1}})
			return err
		},
		"page": func(ctx context.Context) error {
			_, err := s.ReadPage(ctx, 0, backlog.PageRequest{Stream: testStream, MaxFrames: 1})
			return err
		},
		"list": func(ctx context.Context) error {
			_, err := s.ListStreams(ctx, "", backlog.StreamName{}, 1)
			return err
		},
		"ping": s.Ping,
	}
	var held []*sql.Conn
	for range s.reader.Stats().MaxOpenConnections {
		conn, err := s.reader.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	allEnd := func(waitFor string) {
		t.Helper()
		for what, read := range reads {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			if err := read(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s that waits for %s: %v, want the context's error", what, waitFor, err)
			}
			cancel()
		}
	}
	allEnd("a connection")
	for _, conn := range held {
		conn.Close()
	}
	lanes := s.reading.lanes
	for _, l := range []lane{lanes.pages, lanes.loads, lanes.pings} {
		for range cap(l) {
			l <- struct{}{}
		}
	}
	allEnd("its turn")
	for _, l := range []lane{lanes.pages, lanes.loads, lanes.pings} {
		for range cap(l) {
			l.leave()
		}
	}
	for what, read := range reads {
		if err := read(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestReadAtWorkIsInterrupted: a statement that runs ends with its context, and the
// connection is as good as before.
func TestReadAtWorkIsInterrupted(t *testing.T) {
	for _, cfg := range []Config{newFile(t), {Path: MemoryPath}} {
		s := openRunning(t, cfg)
		s.publishPayloads(t, "1")
		endless, err := s.reader.PrepareContext(t.Context(), "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n")
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			err = s.read(ctx, s.reading.lanes.pages, "count", func(n *snapshot) error {
				return n.each(ctx, endless, nil, nil, func() error { return nil })
			})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backlog.ErrUnavailable) {
				t.Errorf("%v, want the context's error", err)
			}
			s.publishPayloads(t, "x")
		}
		if got := len(s.loadOne(t, everything(testStream)).Frames); got != 11 {
			t.Errorf("%d frames, want 11", got)
		}
		if err := endless.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestReadsDoNotWaitForAWriter: while a transaction writes, reads see what was
// committed before.
func TestReadsDoNotWaitForAWriter(t *testing.T) {
	s := openRunning(t, newFile(t))
	p := s.publishPayloads(t, "1", "2")
	err := s.exclusively(t.Context(), func(ctx context.Context, conn *sql.Conn) error {
		if _, err := conn.ExecContext(ctx, "delete from channel_frames"); err != nil {
			return err
		}
		if loaded := s.loadOne(t, everything(testStream)); len(loaded.Frames) != 2 || loaded.State.Head != p[1] {
			t.Errorf("loaded %v", loaded)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
}

// TestClosedStore: a store that is closed is not available, and says so.
func TestClosedStore(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.stop()
	_, err := s.Load(t.Context(), 0, nil)
	if !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("load: %v", err)
	}
	_, err = s.ReadPage(t.Context(), 0, backlog.PageRequest{Stream: testStream})
	if !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("page: %v", err)
	}
	_, err = s.ListStreams(t.Context(), "", backlog.StreamName{}, 1)
	if !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("ping: %v", err)
	}
}

func TestPing(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		if err := openRunning(t, Config{Path: MemoryPath}).Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for name, tt := range map[string]struct {
		spoil, mend func(path string) error
		want        error
	}{
		"read-only": {
			func(path string) error { return os.Chmod(path, 0o400) },
			func(path string) error { return os.Chmod(path, 0o600) },
			errReadOnly,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openRunning(t, newFile(t))
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := tt.spoil(s.path); err != nil {
				t.Fatal(err)
			}
			if err := s.Ping(t.Context()); !errors.Is(err, backlog.ErrUnavailable) || !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if err := tt.mend(s.path); err != nil {
				t.Fatal(err)
			}
			if err := s.Ping(t.Context()); err != nil {
				t.Errorf("when it is mended: %v", err)
			}
		})
	}
}

// TestPingKeepsTheLocks: looking at the file must not open it, since closing it
// again would end SQLite's locks, and another program would then take the log away.
func TestPingKeepsTheLocks(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.publishPayloads(t, "1")
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if n := countFramesElsewhere(t, s.path); n != 1 {
		t.Errorf("another process found %d frames, want 1", n)
	}
	after, err := os.Stat(s.path + "-wal")
	if err != nil || !os.SameFile(info, after) {
		t.Errorf("the log was taken away: %v", err)
	}
	s.publishPayloads(t, "2")
}

// countFramesElsewhere counts the frames of a file in another process, as an
// operator's sqlite3 would.
func countFramesElsewhere(t *testing.T, path string) int {
	t.Helper()
	out, err := child(t, "count", path).Output()
	if err != nil {
		t.Fatalf("count: %v", err)
	}
	n, err := strconv.Atoi(string(out))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// childCounts is countFramesElsewhere's child.
func childCounts(path string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	var n int
	if err := db.QueryRow("select count(*) from channel_frames").Scan(&n); err != nil {
		return err
	}
	fmt.Print(n)
	return db.Close()
}
