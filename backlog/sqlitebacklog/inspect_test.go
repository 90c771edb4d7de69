package sqlitebacklog

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var (
	_ = addRole("leave a log", childLeavesLog)
	_ = addRole("leave a newer log", childLeavesNewerLog)
	_ = addRole("leave a foreign log", childLeavesForeignLog)
)

// killMyself ends the process as kill -9 does.
func killMyself() error {
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil {
		return err
	}
	select {}
}

// childLeavesLog stores frames in a database's log.
func childLeavesLog(path string) error {
	s, _, err := openInChild(Config{Path: path})
	if err != nil {
		return err
	}
	for i := range 20 {
		if _, err := publishText(s, backlog.StreamName{Channel: "log"}, strings.Repeat(fmt.Sprint(i), 1000)); err != nil {
			return err
		}
	}
	return killMyself()
}

// childLeavesNewerLog makes the version a newer one in the log alone.
func childLeavesNewerLog(path string) error {
	s, _, err := openInChild(Config{Path: path})
	if err != nil {
		return err
	}
	err = s.exclusively(context.Background(), func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, "update settings set schema_version = ?1, oldest_binary = ?1", schemaVersion+1)
		return err
	})
	if err != nil {
		return err
	}
	return killMyself()
}

// childLeavesForeignLog makes another application's young database, which has
// everything in its log.
func childLeavesForeignLog(path string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("pragma journal_mode = wal; pragma wal_autocheckpoint = 0; create table t (x); insert into t values (1), (2)"); err != nil {
		return err
	}
	return killMyself()
}

// leaveLog runs a child that is killed when it has written a log.
func leaveLog(t *testing.T, role, path string) {
	t.Helper()
	c := child(t, role, path)
	if said, failed := runChild(t, c); said != "" || !failed {
		t.Fatalf("the child was not killed: %s", said)
	}
	if sizeOf(path+"-wal") == 0 {
		t.Fatal("there is no log")
	}
}

// TestRefusalsChangeNothing: neither the database nor the log, which an operator
// may want to save.
func TestRefusalsChangeNothing(t *testing.T) {
	prepared := map[string]struct {
		prepare func(t *testing.T) (path string)
		says    string
	}{
		"damaged": {func(t *testing.T) string {
			path := largeFile(t)
			leaveLog(t, "leave a log", path)
			overwrite(t, path, sizeOf(path)/2/4096*4096, bytes.Repeat([]byte{0xa5}, 4096))
			return path
		}, "is damaged"},
		"beginning": {func(t *testing.T) string {
			path := largeFile(t)
			leaveLog(t, "leave a log", path)
			overwrite(t, path, 0, bytes.Repeat([]byte{0xa5}, 16))
			return path
		}, "beginning is damaged"},
		"newer": {func(t *testing.T) string {
			path := largeFile(t)
			leaveLog(t, "leave a newer log", path)
			return path
		}, "newer fanfare"},
		"newer and young": {func(t *testing.T) string {
			path := filepath.Join(realTempDir(t), "fanfare.db")
			leaveLog(t, "leave a newer log", path)
			return path
		}, "newer fanfare"},
		"foreign": {func(t *testing.T) string {
			path := filepath.Join(realTempDir(t), "fanfare.db")
			leaveLog(t, "leave a foreign log", path)
			return path
		}, "another application"},
		"empty": {func(t *testing.T) string {
			path := largeFile(t)
			leaveLog(t, "leave a log", path)
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			return path
		}, "is empty"},
	}
	for name, tt := range prepared {
		for _, shared := range []string{"kept", "removed"} {
			t.Run(name+", shared memory "+shared, func(t *testing.T) {
				path := tt.prepare(t)
				if shared == "removed" { // as in a copy
					if err := os.Remove(path + "-shm"); err != nil {
						t.Fatal(err)
					}
				}
				before := filesOf(t, path)
				for range 2 {
					says(t, openError(t, path), tt.says)
					if after := filesOf(t, path); !slices.EqualFunc(before, after, bytes.Equal) {
						t.Errorf("the database has %d bytes after %d, the log %d after %d, or they have changed",
							len(after[0]), len(before[0]), len(after[1]), len(before[1]))
					}
				}
			})
		}
	}
}

// filesOf reads a database that is not open and its log.
func filesOf(t *testing.T, path string) (contents [][]byte) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, content)
	}
	return contents
}

// TestLogAlone: a log is not taken for nothing because its database was lost. When
// that is put back everything is there.
func TestLogAlone(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	leaveLog(t, "leave a log", path)
	log, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	away := path + ".away"
	if err := os.Rename(path, away); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		says(t, openError(t, path), "is missing", path+"-wal", "put back", "move the log away")
		if _, err := os.Stat(path); err == nil {
			t.Fatal("a database was made")
		}
		if after, err := os.ReadFile(path + "-wal"); err != nil || !bytes.Equal(after, log) {
			t.Fatalf("the log was changed: %v", err)
		}
	}
	if err := os.Rename(away, path); err != nil {
		t.Fatal(err)
	}
	if got := payloads(t, openRunning(t, Config{Path: path}), "log"); len(got) != 20 {
		t.Errorf("there are %d frames, want 20", len(got))
	}
}

// TestKilledFirstStart: whatever moment of its first start a process is killed at,
// the next one finds a file that it can use.
func TestKilledFirstStart(t *testing.T) {
	longest := 20 * time.Millisecond // grows until the child gets to publishing
	for round := range 25 {
		path := filepath.Join(realTempDir(t), "fanfare.db")
		c := child(t, "publish", path)
		lines := startChild(t, c)
		killer := time.AfterFunc(time.Duration(rand.Int64N(int64(longest))), func() { _ = c.Process.Kill() })
		acknowledged := map[string]map[backlog.Position]string{}
		for lines.Scan() {
			channel, position, payload := parseAcknowledgement(t, lines.Text())
			if acknowledged[channel] == nil {
				acknowledged[channel] = map[backlog.Position]string{}
			}
			acknowledged[channel][position] = payload
		}
		killer.Stop()
		_ = c.Wait()
		if len(acknowledged) == 0 {
			longest += 10 * time.Millisecond
		}
		s := openRunning(t, Config{Path: path})
		checkAcknowledged(t, s, round, acknowledged)
		put(t, s, "a", "x")
		s.stop()
	}
}

// TestTablesSpoiled: what an SQL console has taken from the file is a damage of
// it.
func TestTablesSpoiled(t *testing.T) {
	for _, statement := range []string{
		"delete from settings", "drop table settings", "drop table streams", "drop table policies", "alter table channel_frames drop column headers",
	} {
		t.Run(statement, func(t *testing.T) {
			path := usedFile(t, realTempDir(t))
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
			db.Close()
			says(t, openError(t, path), "is damaged", "backup")
		})
	}
}

// TestLongPath: SQLite's limit is named, and nothing is made.
func TestLongPath(t *testing.T) {
	dir := realTempDir(t)
	for len(dir) < maxPathBytes-150 {
		dir = filepath.Join(dir, strings.Repeat("d", min(100, maxPathBytes-120-len(dir))))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	longest := filepath.Join(dir, strings.Repeat("f", maxPathBytes-len(dir)-1))
	says(t, openError(t, longest+"f"), fmt.Sprint(maxPathBytes+1, " bytes"), fmt.Sprint("the limit of SQLite is ", maxPathBytes), "shorter")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
	put(t, openRunning(t, Config{Path: longest}), "a", "x")
}
