package sqlitebacklog

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// openError is why path cannot be opened, in one line that names the file.
func openError(t *testing.T, path string) string {
	t.Helper()
	s, err := Open(t.Context(), Config{Path: path})
	if err == nil {
		s.Close()
		t.Fatalf("%s was opened", path)
	}
	oneLine(t, path, err.Error())
	return err.Error()
}

func oneLine(t *testing.T, path, message string) {
	t.Helper()
	message = strings.TrimSuffix(message, "\n")
	if strings.Contains(message, "\n") || !strings.Contains(message, strconv.Quote(path)) {
		t.Errorf("the error is not one line that names %q: %s", path, message)
	}
}

func says(t *testing.T, message string, phrases ...string) {
	t.Helper()
	for _, phrase := range phrases {
		if !strings.Contains(message, phrase) {
			t.Errorf("the error does not say %q: %s", phrase, message)
		}
	}
}

func TestSecondProcess(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	c := child(t, "hold", path)
	input, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines := startChild(t, c)
	if !lines.Scan() {
		t.Fatal("the child did not open the store")
	}
	says(t, openError(t, path), "in use by another process", "process "+strconv.Itoa(c.Process.Pid), path+".lock", "--store sqlite:"+path)
	// Its lock ends with it, however it ends.
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	_ = input.Close()
	startStore(t, Config{Path: path})
	said, failed := runChild(t, child(t, "open", path))
	if !failed {
		t.Error("a second process opened the file")
	}
	says(t, said, "in use by another process", strconv.Itoa(os.Getpid()))
}

func TestSecondStoreOfTheProcess(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	s := openRunning(t, Config{Path: path})
	says(t, openError(t, path), "open in this process already")
	// The refused one has not taken the first one's locks away.
	said, failed := runChild(t, child(t, "open", path))
	if !failed {
		t.Error("a second process opened the file")
	}
	says(t, said, "in use by another process")
	put(t, s, "a", "x")
	s.stop()
	openRunning(t, Config{Path: path})
}

// realTempDir is the test's directory without symbolic links.
func realTempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSymbolicLinks: a file has one lock and one log, whatever path leads to it.
func TestSymbolicLinks(t *testing.T) {
	dir := realTempDir(t)
	path := filepath.Join(dir, "real", "fanfare.db")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		"file.db": path, "relative.db": filepath.Join("real", "fanfare.db"), "chain.db": filepath.Join(dir, "file.db"), "directory": filepath.Dir(path),
		"circle.db": filepath.Join(dir, "circle.db"),
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	paths := []string{"file.db", "relative.db", "chain.db", "directory/fanfare.db"}
	for i, p := range paths { // the first one leads to nothing yet
		s := openRunning(t, Config{Path: filepath.Join(dir, p)})
		if s.Path() != path {
			t.Errorf("%s leads to %s, want %s", p, s.Path(), path)
		}
		if got := put(t, s, "a", "x").Sequence; got != uint64(i+1) {
			t.Errorf("through %s the sequence is %d, want %d", p, got, i+1)
		}
		for _, other := range append(paths, "real/fanfare.db") {
			_, err := Open(t.Context(), Config{Path: filepath.Join(dir, other)})
			if err == nil {
				t.Fatalf("%s was opened while %s was open", other, p)
			}
			says(t, err.Error(), "open in this process already", path+".lock")
		}
		s.stop()
	}
	_, err := Open(t.Context(), Config{Path: filepath.Join(dir, "circle.db")})
	if err == nil {
		t.Fatal("a link to itself was opened")
	}
	says(t, err.Error(), "circle.db")
}

// TestLockFileGoes: nothing is left next to a file that is not in use, nor next to
// one that was refused.
func TestLockFileGoes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "fanfare.db")
	s := openRunning(t, Config{Path: path})
	put(t, s, "a", "x")
	s.stop()
	foreign := filepath.Join(dir, "letter.txt")
	if err := os.WriteFile(foreign, []byte("Dear SQLite,"), 0o600); err != nil {
		t.Fatal(err)
	}
	openError(t, foreign)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "fanfare.db" && e.Name() != "letter.txt" {
			t.Errorf("%s is left", e.Name())
		}
	}
}
