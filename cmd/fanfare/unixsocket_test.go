package main

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// openSocket is listen for a socket of a test, which logs to log.
func openSocket(t *testing.T, path string, log *bytes.Buffer) (socket, error) {
	t.Helper()
	lis, err := listen(t.Context(), "grpc", unixPrefix+path, slog.New(slog.NewTextHandler(log, nil)))
	if err == nil {
		t.Cleanup(func() { lis.Close() })
	}
	return lis, err
}

func mustOpenSocket(t *testing.T, path string) socket {
	t.Helper()
	var log bytes.Buffer
	lis, err := openSocket(t, path, &log)
	if err != nil || log.Len() > 0 {
		t.Fatalf("%v, and the log:\n%s", err, &log)
	}
	return lis
}

// Symptom: of two servers that started at the same time after a crash, one served on a
// socket that nobody could find, since the other, which had also found the stale one,
// removed it in its place. When it ended it removed the other's socket, too.
func TestServersThatStartAtTheSameTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fanfare.sock")
	for range 50 {
		leaveStaleSocket(t, path)
		var mu sync.Mutex
		var open []socket
		var starts sync.WaitGroup
		for range 4 {
			starts.Go(func() {
				lis, err := listen(t.Context(), "grpc", unixPrefix+path, slog.New(slog.DiscardHandler))
				if err != nil && !strings.Contains(err.Error(), "another process serves on") {
					t.Error(err)
				}
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					open = append(open, lis)
				}
			})
		}
		starts.Wait()
		if len(open) != 1 {
			t.Errorf("%d servers serve on one socket", len(open))
		}
		for _, lis := range open {
			if err := lis.Close(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// The socket's directory holds the socket alone, with its mode, and nothing when the
// server has gone.
func TestNothingButTheSocketIsLeft(t *testing.T) {
	dir := t.TempDir()
	lis := mustOpenSocket(t, filepath.Join(dir, "fanfare.sock"))
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "fanfare.sock" {
		t.Fatalf("%v, %v", entries, err)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode() != fs.ModeSocket|socketMode {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := lis.Close(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
	if err := lis.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("close again: %v", err)
	}
}

// A socket that was removed by somebody, and made anew by another server, is that
// server's.
func TestTheSocketOfAnotherServerStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fanfare.sock")
	first := mustOpenSocket(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustOpenSocket(t, path)
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal("the second server cannot be reached any more:", err)
	}
	conn.Close()
}

// Whoever may write in the directory may put a socket of their own in the place of the
// server's, and read what clients publish.
func TestDirectoriesOfOthersAreWarnedOf(t *testing.T) {
	for name, test := range map[string]struct {
		mode fs.FileMode
		warn bool
	}{
		"own":    {0o755, false},
		"group":  {0o775, true},
		"all":    {0o777, true},
		"as tmp": {fs.ModeSticky | 0o777, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, test.mode); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			if _, err := openSocket(t, filepath.Join(dir, "fanfare.sock"), &log); err != nil {
				t.Fatal(err)
			}
			if warned := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), dir); warned != test.warn {
				t.Errorf("the log:\n%s", &log)
			}
		})
	}
}

func TestSocketPathsThatAreTooLong(t *testing.T) {
	for name, path := range map[string]string{
		"name":      "/run/" + strings.Repeat("x", 120),
		"directory": "/run/" + strings.Repeat("x", 100) + "/f",
	} {
		r := command(t, "", "serve", "--store", "sqlite::memory:", "--grpc", unixPrefix+path)
		if r.code != exitUsage || !strings.Contains(r.stderr, "too long for a Unix socket") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
