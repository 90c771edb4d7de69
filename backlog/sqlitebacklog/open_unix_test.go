//go:build unix

package sqlitebacklog

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Tests of what file modes and kinds of files mean on Unix.

func TestPipe(t *testing.T) {
	pipe := filepath.Join(realTempDir(t), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, openError(t, pipe), "not a regular file")
}

// publicDir is a directory of the test that every user may go through.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := realTempDir(t)
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReadOnly(t *testing.T) {
	for what, tt := range map[string]struct {
		fileMode, dirMode os.FileMode
		says              []string
	}{
		"file":                {0o444, 0o777, []string{"cannot be written to", "permission denied", "make it writable"}},
		"unreadable file":     {0o000, 0o777, []string{"cannot be written to", "permission denied"}},
		"directory":           {0o666, 0o555, []string{"cannot be locked", "permission denied", "directory must be writable"}},
		"file and directory":  {0o444, 0o555, []string{"cannot be locked", "permission denied", "directory must be writable"}},
		"forbidden directory": {0o666, 0o000, []string{"permission denied"}},
	} {
		t.Run(what, func(t *testing.T) {
			dir := publicDir(t)
			path := usedFile(t, dir)
			for name, mode := range map[string]os.FileMode{path: tt.fileMode, dir: tt.dirMode} {
				if err := os.Chmod(name, mode); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
			c := child(t, "open", path)
			unprivileged(c)
			said, failed := runChild(t, c)
			if !failed {
				t.Fatal("the file was opened")
			}
			oneLine(t, path, said)
			says(t, said, tt.says...)
		})
	}
	t.Run("new file in a directory", func(t *testing.T) {
		dir := publicDir(t)
		if err := os.Chmod(dir, 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		path := filepath.Join(dir, "fanfare.db")
		c := child(t, "open", path)
		unprivileged(c)
		said, failed := runChild(t, c)
		if !failed {
			t.Fatal("the file was created")
		}
		oneLine(t, path, said)
		says(t, said, "permission denied", "directory must be writable")
	})
}
