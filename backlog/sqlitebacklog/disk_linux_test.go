package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

var (
	_ = addRole("mount", childMounts)
	_ = addRole("full disk", childFillsDisk)
)

// TestFullDisk has a real disk that gets full, a small one in memory, where the
// system lets the test mount one.
func TestFullDisk(t *testing.T) {
	mounting := func(role string) *exec.Cmd {
		c := child(t, role, filepath.Join(realTempDir(t)))
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if os.Geteuid() != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
		return c
	}
	if mounting("mount").Run() != nil {
		t.Log("no disk can be mounted here; TestFull covers the store's side")
		return
	}
	if said, failed := runChild(t, mounting("full disk")); failed {
		t.Fatal(said)
	}
}

// childMounts mounts a disk of 2 MiB, which nobody else sees.
func childMounts(dir string) error {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	return syscall.Mount("none", dir, "tmpfs", 0, "size=2m")
}

func childFillsDisk(dir string) error {
	if err := childMounts(dir); err != nil {
		return err
	}
	ballast, path := filepath.Join(dir, "ballast"), filepath.Join(dir, "fanfare.db")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		return err
	}
	s, stop, err := openInChild(Config{Path: path})
	if err != nil {
		return err
	}
	stored, err := fillUntil(s, "a")
	if !errors.Is(err, backlog.ErrDiskFull) {
		return fmt.Errorf("after %d frames: %w", stored, err)
	}
	if stored == 0 {
		return errors.New("nothing could be stored")
	}
	if err := readable(s, "a", stored); err != nil {
		return err
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	if err := sameAgain(s, "a", stored); err != nil {
		return err
	}
	if more, err := fillUntil(s, "b"); !errors.Is(err, backlog.ErrDiskFull) {
		return fmt.Errorf("after %d more frames: %w", more, err)
	}
	if err := readable(s, "a", stored+1); err != nil {
		return err
	}
	other := filepath.Join(dir, "other.db")
	_, err = Open(context.Background(), Config{Path: other})
	if err == nil || !strings.Contains(err.Error(), strconv.Quote(other)) || !strings.Contains(err.Error(), "full") || !strings.Contains(err.Error(), "make room") {
		return fmt.Errorf("open a new file: %w", err)
	}
	stop()
	return reopenFull(path, ballast, stored+1)
}

// reopenFull opens a database on a disk on which nothing at all is free: what it
// holds can be read.
func reopenFull(path, ballast string, stored int) error {
	file, err := os.Create(ballast)
	if err != nil {
		return err
	}
	defer file.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = file.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	s, stop, err := openInChild(Config{Path: path})
	if err != nil {
		return fmt.Errorf("open on a full disk: %w", err)
	}
	defer stop()
	if err := readable(s, "a", stored); err != nil {
		return err
	}
	if _, err := publishText(s, backlog.StreamName{Channel: "a"}, strings.Repeat("x", 100_000)); !errors.Is(err, backlog.ErrDiskFull) {
		return fmt.Errorf("publish on a full disk: %w", err)
	}
	return nil
}
