package sqlitebacklog

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestConfigRefused(t *testing.T) {
	negative := int64(-1)
	for what, cfg := range map[string]Config{
		"path":              {},
		"NUL":               {Path: "a\x00b"},
		"MaxFrameBytes":     {Path: MemoryPath, MaxFrameBytes: backlog.MaxBatchBytes + 1},
		"MaxBatchFrames":    {Path: MemoryPath, MaxBatchFrames: -1},
		"MaxBatchBytes":     {Path: MemoryPath, MaxBatchBytes: -1},
		"MaxQueuedFrames":   {Path: MemoryPath, MaxQueuedFrames: -1},
		"MaxQueuedBytes":    {Path: MemoryPath, MaxQueuedBytes: -1},
		"MaxAnnouncedBytes": {Path: MemoryPath, MaxAnnouncedBytes: -1},
		"ReadConns":         {Path: MemoryPath, ReadConns: -1},
		"JanitorInterval":   {Path: MemoryPath, JanitorInterval: -time.Second},
		"backlog":           {Path: MemoryPath, Backlog: &negative},
	} {
		s, err := Open(t.Context(), cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s: opened", what)
			continue
		}
		says(t, err.Error(), what)
	}
}

// TestOddPaths: no character of a path means something to the driver.
func TestOddPaths(t *testing.T) {
	dir := realTempDir(t)
	for _, name := range []string{"a b.db", "what?mode=ro&vfs=x", "50%25.db", "a#b", "ü 😀", "file:x", "it's \"quoted\"", `back\slash`, ":memory:.db"} {
		path := filepath.Join(dir, name)
		s := openRunning(t, Config{Path: path})
		put(t, s, "a", name)
		s.stop()
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		s = openRunning(t, Config{Path: path})
		if got := payloads(t, s, "a"); !slices.Equal(got, []string{name}) {
			t.Errorf("%q holds %q", name, got)
		}
		s.stop()
	}
	t.Chdir(dir)
	s := openRunning(t, Config{Path: "relative.db"})
	if want := filepath.Join(dir, "relative.db"); s.Path() != want {
		t.Errorf("the path is %q, want %q", s.Path(), want)
	}
}

func TestNewFileIsItsOwners(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	s := openRunning(t, Config{Path: path})
	put(t, s, "a", "x")
	for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != 0o600 {
			t.Errorf("the mode of %s is %v", path+suffix, info.Mode())
		}
	}
}

func TestNotAFile(t *testing.T) {
	dir := realTempDir(t)
	says(t, openError(t, dir), "is a directory", filepath.Join(dir, "fanfare.db"))
	says(t, openError(t, filepath.Join(dir, "missing", "fanfare.db")), "directory", "does not exist")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{Path: filepath.Join(file, "fanfare.db")})
	if err == nil {
		t.Fatal("a file served as a directory")
	}
	says(t, err.Error(), "fanfare.db")
}

// usedFile makes a database with a frame in it.
func usedFile(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "fanfare.db")
	s := openRunning(t, Config{Path: path})
	put(t, s, "a", "x")
	s.stop()
	return path
}

// overwrite writes bytes into the middle of a file.
func overwrite(t *testing.T, path string, at int64, content []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(content, at); err != nil {
		t.Fatal(err)
	}
}

// largeFile makes a database of many pages.
func largeFile(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(realTempDir(t), "fanfare.db")
	s := openRunning(t, Config{Path: path})
	batch := make([]backlog.Publication, 500)
	for i := range batch {
		batch[i] = frame(fmt.Sprint("channel ", i%50), strings.Repeat("content ", 100))
		batch[i].IdempotencyKey = fmt.Sprint(i)
	}
	if _, err := s.PublishBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	s.stop()
	return path
}

func TestOpenDamaged(t *testing.T) {
	garbage := bytes.Repeat([]byte{0xa5, 0x5a, 0x00, 0xff}, 1024)
	for what, tt := range map[string]struct {
		damage func(t *testing.T, path string, size int64)
		says   string
	}{
		"beginning":          {func(t *testing.T, path string, _ int64) { overwrite(t, path, 0, garbage[:16]) }, "not an SQLite database, or its beginning is damaged"},
		"header":             {func(t *testing.T, path string, _ int64) { overwrite(t, path, 16, garbage[:80]) }, "damaged"},
		"first page":         {func(t *testing.T, path string, _ int64) { overwrite(t, path, 100, garbage[:3996]) }, "damaged"},
		"page in the middle": {func(t *testing.T, path string, size int64) { overwrite(t, path, size/2/4096*4096, garbage) }, "damaged"},
		"last page":          {func(t *testing.T, path string, size int64) { overwrite(t, path, size-4096, garbage) }, "damaged"},
		"cut in the middle": {func(t *testing.T, path string, size int64) {
			if err := os.Truncate(path, size/2/4096*4096); err != nil {
				t.Fatal(err)
			}
		}, "damaged"},
		"cut in a page": {func(t *testing.T, path string, size int64) {
			if err := os.Truncate(path, size-5000); err != nil {
				t.Fatal(err)
			}
		}, "damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			path := largeFile(t)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			tt.damage(t, path, info.Size())
			says(t, openError(t, path), tt.says, "backup")
		})
	}
}

// TestForeignFiles: what is not Fanfare's is refused, and stays as it was, byte
// for byte.
func TestForeignFiles(t *testing.T) {
	dir := realTempDir(t)
	database := func(name string, statements string) {
		db, err := sql.Open("sqlite", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(statements); err != nil {
			t.Fatal(err)
		}
	}
	database("tables.db", "create table settings (x); insert into settings values (1)")
	database("marked.db", "pragma application_id = 7")
	database("log.db", "pragma journal_mode = wal; create table t (x)")
	files := map[string]string{
		"letter.txt": "not a database", "empty line.txt": "\n", "long.txt": strings.Repeat("text ", 10_000), "zeros.db": strings.Repeat("\x00", 8192),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range before {
		path := filepath.Join(dir, e.Name())
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := "is a database of another application"
		if _, text := files[e.Name()]; text {
			want = "is not an SQLite database"
		}
		says(t, openError(t, path), want, "give another path")
		after, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(after, content) {
			t.Errorf("%s was changed (%v)", path, err)
		}
	}
	after, err := os.ReadDir(dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("files afterwards: %v, %v", after, err)
	}
}

// TestBegunFiles: a process that was killed while it made the file leaves one that
// the next start completes.
func TestBegunFiles(t *testing.T) {
	for what, statements := range map[string]string{
		"empty":        "",
		"marked":       fmt.Sprintf("pragma application_id = %d", applicationID),
		"log":          fmt.Sprintf("pragma application_id = %d; pragma journal_mode = wal", applicationID),
		"only a log":   "pragma journal_mode = wal",
		"goose's only": fmt.Sprintf("pragma application_id = %d; create table goose_db_version (id integer primary key autoincrement, version_id integer not null, is_applied integer not null, tstamp timestamp default (datetime('now'))); insert into goose_db_version (version_id, is_applied) values (0, 1)", applicationID),
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(realTempDir(t), "fanfare.db")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(statements); err != nil {
				t.Fatal(err)
			}
			db.Close()
			put(t, openRunning(t, Config{Path: path}), "a", "x")
		})
	}
}

func TestVersions(t *testing.T) {
	path := usedFile(t, realTempDir(t))
	set := func(version, oldest int) {
		t.Helper()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		// As a later version's migration would.
		if _, err := db.Exec(`update settings set schema_version = ?, oldest_binary = ?; alter table streams add column later text`, version, oldest); err != nil {
			t.Fatal(err)
		}
	}
	set(schemaVersion+3, schemaVersion+1)
	says(t, openError(t, path), fmt.Sprint("version ", schemaVersion+3), fmt.Sprint("version ", schemaVersion+1), "newer fanfare")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`update settings set oldest_binary = ?`, schemaVersion); err != nil {
		t.Fatal(err)
	}
	db.Close()
	s := openRunning(t, Config{Path: path})
	if got := put(t, s, "a", "y").Sequence; got != 2 {
		t.Errorf("the sequence is %d, want 2", got)
	}
	put(t, s, "b", "z")
	if got := query[int](t, s, "select schema_version from settings"); got != schemaVersion+3 {
		t.Errorf("the version is %d afterwards", got)
	}
}

// TestRestart: nothing depends on what was in memory, and no log is left.
func TestRestart(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	origins := map[uint64]bool{}
	for i := range 3 {
		s := openRunning(t, Config{Path: path})
		if origins[s.origin] || s.origin == 0 || s.origin >= epochBit {
			t.Errorf("origin %d", s.origin)
		}
		origins[s.origin] = true
		if got := put(t, s, "a", fmt.Sprint(i)).Sequence; got != uint64(i+1) {
			t.Errorf("the sequence is %d, want %d", got, i+1)
		}
		s.stop()
		if _, err := os.Stat(path + "-wal"); err == nil {
			t.Error("the log is left after the store was closed")
		}
	}
	s := openRunning(t, Config{Path: path})
	if got := payloads(t, s, "a"); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("frames are %q", got)
	}
}

func TestSettings(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	s := openRunning(t, Config{Path: path})
	if s.MaxFrameBytes() != backlog.DefaultMaxFrameBytes {
		t.Errorf("the limit of a payload is %d", s.MaxFrameBytes())
	}
	s.execute(t, "update settings set max_frame_bytes = 100")
	s = s.reopen(t)
	if s.MaxFrameBytes() != 100 {
		t.Errorf("the limit of a payload is %d, want the file's", s.MaxFrameBytes())
	}
	s.stop()
	s = openRunning(t, Config{Path: path, MaxFrameBytes: 10})
	if s.MaxFrameBytes() != 10 {
		t.Errorf("the limit of a payload is %d, want the configured one", s.MaxFrameBytes())
	}
	for pragma, want := range map[string]int{"synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1, "wal_autocheckpoint": 0, "query_only": 0} {
		conn, err := s.writer.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if err := conn.QueryRowContext(t.Context(), "pragma "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %d (%v), want %d", pragma, got, err, want)
		}
		_ = conn.Close()
	}
	if got := query[string](t, s, "pragma journal_mode"); got != "wal" {
		t.Errorf("journal_mode is %s", got)
	}
	if _, err := s.reader.Exec("delete from streams"); err == nil {
		t.Error("the reader can write")
	}
	s.stop()
}

func TestRunTwice(t *testing.T) {
	s := openRunning(t, Config{Path: MemoryPath})
	put(t, s, "a", "x") // it runs
	if err := s.Run(t.Context()); err == nil {
		t.Error("Run ran twice")
	}
}
