package sqlitebacklog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHeld: a second process is refused whatever became of the lock next to the
// file, and by whatever name it comes.
func TestHeld(t *testing.T) {
	path := filepath.Join(realTempDir(t), "fanfare.db")
	link := filepath.Join(filepath.Dir(path), "link.db")
	s := openRunning(t, Config{Path: path})
	put(t, s, "a", "1")
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	said, failed := runChild(t, child(t, "open", link))
	if !failed {
		t.Fatal("a second process opened the file by another name")
	}
	oneLine(t, link, said)
	says(t, said, "in use by another process", "hard link")
	put(t, s, "a", "2")
	if err := os.Remove(path + ".lock"); err != nil {
		t.Fatal(err)
	}
	said, failed = runChild(t, child(t, "open", path))
	if !failed {
		t.Fatal("a second process opened the file when the lock next to it was removed")
	}
	oneLine(t, path, said)
	says(t, said, "in use by another process", path+".lock")
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "link.db-") || strings.HasSuffix(e.Name(), ".lock") {
			t.Errorf("%s was made", e.Name())
		}
	}
	if got := payloads(t, s, "a"); len(got) != 2 {
		t.Errorf("there are %q", got)
	}
}
