package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// unixPrefix begins the address of a Unix socket, as in unix:///run/fanfare.sock.
const unixPrefix = "unix://"

// socketMode lets only the user that runs the server connect: whoever can may
// publish and read everything.
const socketMode = 0o600

// checkAddress checks the address of a flag, without opening it. Without
// authentication whoever reaches the server may publish and read everything, so
// only this host may, unless remote is true.
func checkAddress(ctx context.Context, flag, address string, remote bool) error {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if !strings.HasPrefix(path, "///") {
			return usagef("--%s %q: a Unix socket is written unix:///PATH, with an absolute path", flag, address)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return usagef("--%s %q is neither host:port nor unix:///PATH", flag, address)
	}
	if _, err := net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil {
		return usagef("--%s %q: the port must be a number from 0 to 65535", flag, address)
	}
	if remote {
		return nil
	}
	loopback, err := isLoopback(ctx, host)
	if err != nil {
		return usagef("--%s %q: the host %s does not resolve (%s): name an address of this host, as 127.0.0.1 or localhost", flag, address, host, lookupCause(err))
	}
	if loopback {
		return nil
	}
	return usagef("--%s %s would let other hosts connect, without authentication: bind to 127.0.0.1 or a Unix socket, or accept that with --insecure-allow-remote", flag, address)
}

// isLoopback reports whether all addresses of host are loopback ones. The empty
// host means all interfaces. The error is that host has none.
func isLoopback(ctx context.Context, host string) (bool, error) {
	if host == "" {
		return false, nil
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return false, err
	}
	others := slices.ContainsFunc(ips, func(ip net.IPAddr) bool { return !ip.IP.IsLoopback() })
	return len(ips) > 0 && !others, nil
}

// lookupCause is the error of a lookup without the name and the server that was
// asked.
func lookupCause(err error) string {
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return lookup.Err
	}
	return err.Error()
}

// portInUseError says that a process serves on the address of a flag.
type portInUseError struct{ flag, address string }

func (e *portInUseError) Error() string {
	return fmt.Sprintf("%s is in use by another process: stop it, or choose another address with --%s", e.address, e.flag)
}

// listen opens the address of a flag, which passed checkAddress. The error is a
// *portInUseError if a process serves on the port.
func listen(ctx context.Context, flag, address string) (socket, error) {
	path, ok := strings.CutPrefix(address, unixPrefix)
	if !ok {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, &portInUseError{flag, address}
		}
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
		}
		return lis.(*net.TCPListener), nil
	}
	if err := removeStaleSocket(flag, path); err != nil {
		return nil, err
	}
	lis, err := listenUnix(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--%s %s: the directory %s does not exist: create it, or choose another path", flag, address, filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
	}
	return lis, nil
}

// listenUnix makes the socket under another name and renames it when it has its
// mode: it never stands under its own name with a wider one. The umask would be
// simpler, but belongs to the whole process.
func listenUnix(path string) (socket, error) {
	hidden := fmt.Sprintf("%s.%d", path, os.Getpid())
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, err
	}
	lis.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(hidden, socketMode), os.Rename(hidden, path)); err != nil {
		return nil, errors.Join(err, lis.Close(), os.Remove(hidden))
	}
	return &unixListener{UnixListener: lis, path: path}, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	*net.UnixListener
	path   string
	remove sync.Once
}

func (l *unixListener) Close() error {
	var err error
	// Once, and while nobody else can serve there: afterwards another server may
	// have made a socket of its own at the path.
	l.remove.Do(func() {
		if err = os.Remove(l.path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	})
	return errors.Join(err, l.UnixListener.Close())
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
