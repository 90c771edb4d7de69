//go:build unix

package sqlitebacklog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Tests of what happens to open files, which Windows lets nobody remove or move.

// loss is what takes files away from a store, and what operators do about it when
// they have stopped the server; nil: nothing.
type loss struct {
	strike, mend func(path string) error
	// names has the suffix of the file that is named.
	names string
}

func rename(from, to string) func(path string) error {
	return func(path string) error { return os.Rename(path+from, path+to) }
}

func both(first, second func(path string) error) func(path string) error {
	return func(path string) error { return errors.Join(first(path), second(path)) }
}

func newAt(suffix string) func(path string) error {
	return func(path string) error { return os.WriteFile(path+suffix, nil, 0o600) }
}

func moveDirectory(from, to string) func(path string) error {
	return func(path string) error { return os.Rename(filepath.Dir(path)+from, filepath.Dir(path)+to) }
}

var losses = map[string]loss{
	"database moved":    {rename("", ".away"), rename(".away", ""), ""},
	"database replaced": {both(rename("", ".away"), newAt("")), rename(".away", ""), ""},
	"link instead": {
		both(rename("", ".away"), func(path string) error { return os.Symlink(path+".away", path) }), rename(".away", ""), "",
	},
	"directory moved": {moveDirectory("", ".away"), moveDirectory(".away", ""), ""},
	"log removed":     {func(path string) error { return os.Remove(path + "-wal") }, nil, "-wal"},
	"log moved":       {rename("-wal", ".away"), nil, "-wal"},
	"lock removed":    {func(path string) error { return os.Remove(path + ".lock") }, nil, ".lock"},
	"lock replaced":   {both(rename(".lock", ".away"), newAt(".lock")), nil, ".lock"},
}

// openLosing opens a store that loses files when it is told to, and one with a
// clock that makes it lose them in the middle of the next transaction.
func openLosing(t *testing.T, strike func(path string) error, log *recordedLog) (s *runningStore, arm func()) {
	t.Helper()
	dir := filepath.Join(realTempDir(t), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "fanfare.db")
	armed := false
	clock := &clock{read: func() (time.Time, time.Duration) {
		if armed { // a transaction asks when it has begun
			armed = false
			if err := strike(path); err != nil {
				t.Error(err)
			}
		}
		return time.Now(), time.Since(processStart)
	}}
	s = openRunningAt(t, Config{Path: path, Logger: log.logger()}, clock)
	for _, payload := range []string{"1", "2", "3"} {
		put(t, s, "a", payload)
	}
	return s, func() { armed = true }
}

// expectNothingStored checks that everything that writes is refused, and that
// operators know: the store is not ready, and one line says why.
func expectNothingStored(t *testing.T, s *runningStore, path string, log *recordedLog) {
	t.Helper()
	for range 2 {
		_, err := backlog.Publish(t.Context(), s, frame("a", "x"))
		isError(t, "publish", err, backlog.ErrUnavailable)
		_, err = s.PublishBatch(t.Context(), []backlog.Publication{frame("a", "x"), frame("b", "x")})
		isError(t, "publish a batch", err, backlog.ErrUnavailable)
		_, err = s.CloseStream(t.Context(), backlog.StreamName{Channel: "a"}, nil)
		isError(t, "close", err, backlog.ErrUnavailable)
		frames := uint64(7)
		isError(t, "set a policy", s.SetPolicy(t.Context(), backlog.Policy{Channel: "a", Backlog: &frames}), backlog.ErrUnavailable)
		err = s.Ping(t.Context())
		isError(t, "ping", err, backlog.ErrUnavailable)
		isError(t, "ping", err, errFileReplaced)
		says(t, err.Error(), path, "stop the server", "start it again")
	}
	if log.count("level=ERROR") != 1 || log.count("level=") != log.count("level=INFO")+1 {
		t.Errorf("the log is not one error: %s", log.text.String())
	}
}

// TestFilesGone: a store whose files are gone acknowledges nothing from then on,
// since the next process would not find it; what it acknowledged before is there
// when the files are where they were.
func TestFilesGone(t *testing.T) {
	for name, loss := range losses {
		for _, when := range []string{"idle", "in a transaction"} {
			t.Run(name+" "+when, func(t *testing.T) {
				var log recordedLog
				s, arm := openLosing(t, loss.strike, &log)
				want := []string{"1", "2", "3"}
				if when == "idle" {
					if err := loss.strike(s.path); err != nil {
						t.Fatal(err)
					}
				} else {
					arm()
					_, err := backlog.Publish(t.Context(), s, frame("a", "unknown"))
					isError(t, "the publish in flight", err, backlog.ErrOutcomeUnknown)
					want = append(want, "unknown") // it happens to be there
				}
				expectNothingStored(t, s, s.path+loss.names, &log)
				if got := payloads(t, s, "a"); !slices.Equal(got, want) {
					t.Errorf("the server still reads %q, want %q", got, want)
				}
				s.stop()
				if loss.mend != nil {
					if err := loss.mend(s.path); err != nil {
						t.Fatal(err)
					}
				}
				again := openRunning(t, Config{Path: s.path})
				if got := payloads(t, again, "a"); !slices.Equal(got, want) {
					t.Errorf("when it is mended there are %q, want %q", got, want)
				}
				put(t, again, "a", "more")
			})
		}
	}
}

// TestFilesRemoved: nothing appears where the files were.
func TestFilesRemoved(t *testing.T) {
	for _, when := range []string{"idle", "in a transaction"} {
		t.Run(when, func(t *testing.T) {
			remove := func(path string) error {
				return errors.Join(os.Remove(path), os.Remove(path+"-wal"), os.Remove(path+"-shm"), os.Remove(path+".lock"))
			}
			var log recordedLog
			s, arm := openLosing(t, remove, &log)
			s.reader.SetMaxIdleConns(0) // a read would need a new connection, which would make a new file
			if arm(); when == "idle" {
				if err := s.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.clock.now()
			} else {
				_, err := backlog.Publish(t.Context(), s, frame("a", "lost"))
				isError(t, "the publish in flight", err, backlog.ErrOutcomeUnknown)
			}
			expectNothingStored(t, s, s.path, &log)
			_, err := s.Load(t.Context(), 0, []backlog.LoadRequest{everything(backlog.StreamName{Channel: "a"})})
			isError(t, "load on a new connection", err, backlog.ErrUnavailable)
			s.stop()
			if entries, err := os.ReadDir(filepath.Dir(s.path)); err != nil || len(entries) > 0 {
				t.Errorf("there are %v, %v", entries, err)
			}
		})
	}
}

// TestOthersFilesStay: what has taken the place of a store's files is not touched,
// neither while it runs nor when it is closed.
func TestOthersFilesStay(t *testing.T) {
	for name, suffixes := range map[string][]string{"all": {"", "-wal", "-shm", ".lock"}, "log": {"-wal"}} {
		t.Run(name, func(t *testing.T) {
			var log recordedLog
			s, _ := openLosing(t, nil, &log)
			s.reader.SetMaxIdleConns(0)
			content := map[string][]byte{}
			for _, suffix := range suffixes {
				content[suffix] = []byte("another's " + suffix)
				if err := errors.Join(rename(suffix, suffix+".away")(s.path), os.WriteFile(s.path+suffix, content[suffix], 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			_, err := s.Load(t.Context(), 0, []backlog.LoadRequest{everything(backlog.StreamName{Channel: "a"})})
			isError(t, "load on a new connection", err, errFileReplaced)
			expectNothingStored(t, s, s.path+suffixes[0], &log)
			s.stop()
			for suffix, want := range content {
				if got, err := os.ReadFile(s.path + suffix); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s holds %q, %v", s.path+suffix, got, err)
				}
			}
		})
	}
}

// TestHardLinkInProcess: a second store of the process by another name of the file
// is refused before it opens the file, which would end the first one's locks.
func TestHardLinkInProcess(t *testing.T) {
	s := openRunning(t, Config{Path: filepath.Join(realTempDir(t), "fanfare.db")})
	put(t, s, "a", "1")
	link := s.path + ".link"
	if err := os.Link(s.path, link); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(s.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	says(t, openError(t, link), "open in this process already")
	if n := countFramesElsewhere(t, s.path); n != 1 {
		t.Errorf("another process found %d frames, want 1", n)
	}
	if after, err := os.Stat(s.path + "-wal"); err != nil || !os.SameFile(before, after) {
		t.Errorf("the log was taken away: %v", err)
	}
	put(t, s, "a", "2")
	s.stop()
	if got := payloads(t, openRunning(t, Config{Path: link}), "a"); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("by the other name there are %q", got)
	}
}

func BenchmarkCheckFiles(b *testing.B) {
	s := startStore(b, Config{Path: filepath.Join(b.TempDir(), "fanfare.db")})
	for b.Loop() {
		if err := s.checkFiles(); err != nil {
			b.Fatal(err)
		}
	}
}
