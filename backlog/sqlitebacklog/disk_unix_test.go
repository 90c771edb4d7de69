//go:build unix

package sqlitebacklog

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

var _ = addRole("limited file", childMeetsFileLimit)

// disks make the commands that store on a disk without room, which are subtests
// of TestDisk. They return nil where the system does not have such a disk.
var disks = []func(t *testing.T) (name string, c *exec.Cmd){
	func(t *testing.T) (string, *exec.Cmd) {
		return "limited file", child(t, "limited file", filepath.Join(realTempDir(t), "fanfare.db"))
	},
}

// TestDisk: an operating system that refuses to write. Publishing fails and says
// why, what is stored can be read, also by a store that is opened then, and when
// there is room everything goes on.
func TestDisk(t *testing.T) {
	for _, disk := range disks {
		name, c := disk(t)
		if c == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if said, failed := runChild(t, c); failed {
				t.Fatal(said)
			}
		})
	}
}

// disk is one whose room a test sets.
type disk struct {
	path string // of the database
	// refuses is what publishes get that need more room than there is.
	refuses error
	// leave leaves room for about so many bytes more; everything for 1 GiB.
	leave func(bytes int64) error
	// whenFull checks what is particular; may be nil.
	whenFull func() error
}

const allRoom = 1 << 30

// check fills the disk, makes room, fills it again, and starts anew on it.
func (d *disk) check() error {
	s, stop, err := openInChild(Config{Path: d.path})
	if err != nil {
		return err
	}
	if _, err := publishText(s, backlog.StreamName{Channel: "before"}, "x"); err != nil {
		return err
	}
	stored, err := d.fill(s, "a")
	if err != nil {
		return err
	}
	if stored == 0 {
		return errors.New("nothing could be stored")
	}
	if err := errors.Join(readable(s, "a", stored), d.leave(allRoom), sameAgain(s, "a", stored)); err != nil {
		return err
	}
	if _, err := d.fill(s, "b"); err != nil {
		return err
	}
	if err := readable(s, "a", stored+1); err != nil {
		return err
	}
	if d.whenFull != nil {
		if err := d.whenFull(); err != nil {
			return err
		}
	}
	stop()
	return d.startFull(stored + 1)
}

// fill publishes to a channel until there is no room.
func (d *disk) fill(s *Store, channel string) (stored int, err error) {
	if err := d.leave(200 << 10); err != nil {
		return 0, err
	}
	stored, err = fillUntil(s, channel)
	// What the first one left is written over.
	for range 3 {
		if !errors.Is(err, d.refuses) {
			return stored, fmt.Errorf("after %d frames: %w, want %w", stored, err, d.refuses)
		}
		_, err = publishText(s, backlog.StreamName{Channel: channel}, strings.Repeat("x", 10_000))
	}
	return stored, nil
}

// startFull opens the database when nothing at all is free: what it holds can be
// read.
func (d *disk) startFull(stored int) error {
	if err := d.leave(0); err != nil {
		return err
	}
	s, stop, err := openInChild(Config{Path: d.path})
	if err != nil {
		return fmt.Errorf("open on a full disk: %w", err)
	}
	defer stop()
	if err := readable(s, "a", stored); err != nil {
		return err
	}
	if _, err := publishText(s, backlog.StreamName{Channel: "a"}, strings.Repeat("x", 1_000_000)); !errors.Is(err, d.refuses) {
		return fmt.Errorf("publish on a full disk: %w, want %w", err, d.refuses)
	}
	return errors.Join(readable(s, "a", stored), d.leave(allRoom), sameAgain(s, "a", stored))
}

// childMeetsFileLimit has writes that fail in COMMIT, before the log is flushed:
// nothing is stored.
func childMeetsFileLimit(path string) error {
	signal.Ignore(syscall.SIGXFSZ) // the write fails instead
	d := disk{path: path, refuses: backlog.ErrUnavailable}
	d.leave = func(bytes int64) error { return limitFiles(largestFile(path) + bytes) }
	return d.check()
}

// largestFile is the size of the larger file of a database.
func largestFile(path string) (bytes int64) {
	for _, name := range []string{path, path + "-wal"} {
		if info, err := os.Stat(name); err == nil {
			bytes = max(bytes, info.Size())
		}
	}
	return bytes
}

// limitFiles sets how large files may get.
func limitFiles(bytes int64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	setLimit(&limit.Cur, bytes)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

// setLimit sets a field whose type depends on the system.
func setLimit[T int64 | uint64](field *T, value int64) { *field = T(value) }
