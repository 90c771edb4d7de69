package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// unixPrefix begins the address of a Unix socket, as in unix:///run/fanfare.sock.
const unixPrefix = "unix://"

const (
	// socketMode lets only the user that runs the server connect: whoever can may
	// publish and read everything.
	socketMode fs.FileMode = 0o600
	// hiddenBytes is the length of the name that a socket has at first.
	hiddenBytes = 9
	// directoryTimeout bounds the wait for another server that makes a socket in the
	// same directory, or removes one, which takes milliseconds.
	directoryTimeout = 5 * time.Second
)

// checkSocketPath refuses a path that no socket can have: the system's structure for
// one is of a fixed size.
func checkSocketPath(path string) error {
	most := len(syscall.RawSockaddrUnix{}.Path) - 1
	if n := max(len(path), len(filepath.Dir(path))+1+hiddenBytes); n > most {
		return fmt.Errorf("the path is too long for a Unix socket, which may have about %d bytes and this one needs %d: choose a shorter one", most, n)
	}
	return nil
}

// listenUnix makes the socket of a flag, instead of one that a killed server has left.
func listenUnix(ctx context.Context, flag, path string, logger *slog.Logger) (socket, error) {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--%s %s%s: the directory %s does not exist: create it, or choose another path", flag, unixPrefix, path, dir)
	case err != nil:
		return nil, fmt.Errorf("--%s %s%s: %w", flag, unixPrefix, path, err)
	}
	if mode := info.Mode(); mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 {
		logger.Warn("other users may write in the directory of the socket, and so put one of their own in its place: take that right away, or choose another directory",
			"flag", "--"+flag, "directory", dir, "mode", mode.String())
	}
	defer lockDirectory(ctx, dir)()
	if err := removeStaleSocket(flag, path); err != nil {
		return nil, err
	}
	lis, err := makeSocket(path)
	if err != nil {
		return nil, fmt.Errorf("--%s %s%s: %w", flag, unixPrefix, path, err)
	}
	return lis, nil
}

// lockDirectory keeps other servers from making and removing sockets in a directory,
// until unlock is called. Two that start at the same time would both find a stale
// socket, and the second would remove the first one's new one in its place. Where a
// directory cannot be locked, or stays locked, it does without: that is rare, and takes
// milliseconds.
func lockDirectory(ctx context.Context, dir string) (unlock func()) {
	ctx, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	lock := flock.New(dir, flock.SetFlag(os.O_RDONLY))
	_, _ = lock.TryLockContext(ctx, 10*time.Millisecond)
	return func() { _ = lock.Close() }
}

// makeSocket makes a socket under another name and renames it when it has its mode: it
// never stands under its own name with a wider one. The umask would be simpler, but
// belongs to the whole process.
func makeSocket(path string) (socket, error) {
	var name [(hiddenBytes - 1) / 2]byte
	_, _ = rand.Read(name[:]) // it never fails
	// Not by the process's id: in containers that share a directory they are the same.
	hidden := filepath.Join(filepath.Dir(path), "."+hex.EncodeToString(name[:]))
	lis, err := bindSocket(hidden)
	if err != nil {
		return nil, err
	}
	made, err := os.Lstat(hidden)
	if err := errors.Join(err, os.Chmod(hidden, socketMode), os.Rename(hidden, path)); err != nil {
		return nil, errors.Join(err, lis.Close(), os.Remove(hidden))
	}
	return &unixListener{UnixListener: lis, path: path, made: made}, nil
}

// bindSocket makes a socket that has its mode from the beginning, if the system can do
// that.
func bindSocket(path string) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: setModeBeforeBind}
	lis, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	unix := lis.(*net.UnixListener)
	unix.SetUnlinkOnClose(false)
	return unix, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	*net.UnixListener
	path string
	// made is the socket, to tell it from one that stands in its place.
	made   fs.FileInfo
	remove sync.Once
}

// Close removes the socket first, while nobody else can serve there: whoever finds no
// socket knows that the server has gone in an orderly way.
func (l *unixListener) Close() error {
	var err error
	l.remove.Do(func() { err = l.removeOwn() })
	return errors.Join(err, l.UnixListener.Close())
}

// removeOwn leaves a socket alone that another server has made at the path, after
// somebody had removed this one's.
func (l *unixListener) removeOwn() error {
	defer lockDirectory(context.Background(), filepath.Dir(l.path))()
	there, err := os.Lstat(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !os.SameFile(there, l.made):
		return nil
	default:
		return os.Remove(l.path)
	}
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// removeStaleSocket removes a socket that a killed server left behind. One that
// a process still serves on, and what is no socket, is left and is an error.
func removeStaleSocket(flag, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s exists and is not a socket: remove it, or choose another path with --%s", path, flag)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("another process serves on %s: stop it, or choose another path with --%s", path, flag)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("find out whether %s is in use: %w", path, err)
	}
	return os.Remove(path)
}
