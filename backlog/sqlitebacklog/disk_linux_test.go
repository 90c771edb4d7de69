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

func init() { disks = append(disks, mountedDisk) }

// mountedDisk is a small disk in memory, where the system lets the test mount one.
// Elsewhere the limited file stands for a disk that refuses to write, and TestFull
// for what the store makes of one that is full.
func mountedDisk(t *testing.T) (name string, c *exec.Cmd) {
	mounting := func(role string) *exec.Cmd {
		c := child(t, role, realTempDir(t))
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if os.Geteuid() != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
			c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
		return c
	}
	if mounting("mount").Run() != nil {
		return "", nil
	}
	return "full disk", mounting("full disk")
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
	d := disk{path: filepath.Join(dir, "fanfare.db"), refuses: backlog.ErrDiskFull}
	d.leave = func(bytes int64) error { return leaveRoom(filepath.Join(dir, "ballast"), bytes) }
	d.whenFull = func() error {
		other := filepath.Join(dir, "other.db")
		_, err := Open(context.Background(), Config{Path: other})
		if err == nil || !strings.Contains(err.Error(), strconv.Quote(other)) || !strings.Contains(err.Error(), "full") || !strings.Contains(err.Error(), "make room") {
			return fmt.Errorf("open a new file: %w", err)
		}
		return nil
	}
	return d.check()
}

// leaveRoom fills a disk with ballast until only so much room is left.
func leaveRoom(ballast string, bytes int64) error {
	file, err := os.Create(ballast)
	if err != nil {
		return err
	}
	defer file.Close()
	size := int64(0)
	for block := make([]byte, 4096); err == nil; size += int64(len(block)) {
		_, err = file.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return file.Truncate(max(size-bytes, 0))
}
