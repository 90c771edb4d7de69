//go:build unix

package main

import (
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watchReader calls gone when nobody can read any more what is written to w, a
// pipe or a socket. Only a write would tell otherwise, and there may be nothing
// to write for days. stop ends the watching and returns when it has ended.
func watchReader(w io.Writer, gone func()) (stop func()) {
	nothing := func() {}
	file, ok := w.(*os.File)
	if !ok {
		return nothing
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return nothing
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nothing
	}
	// Closing the one end wakes up the poll at the other.
	woken, wake, err := os.Pipe()
	if err != nil {
		return nothing
	}
	var watcher sync.WaitGroup
	watcher.Go(func() {
		defer woken.Close()
		_ = conn.Control(func(fd uintptr) {
			if awaitHangUp(int32(fd), int32(woken.Fd())) {
				gone()
			}
		})
	})
	return func() {
		wake.Close()
		watcher.Wait()
	}
}

// awaitHangUp blocks until one of two descriptors hangs up, and reports whether
// the first did.
func awaitHangUp(watched, other int32) bool {
	// No events are asked for: those of a hang-up are always reported.
	fds := []unix.PollFd{{Fd: watched}, {Fd: other}}
	for {
		switch _, err := unix.Poll(fds, -1); err {
		case nil:
			return fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 && fds[1].Revents == 0
		case unix.EINTR, unix.EAGAIN:
		default:
			return false
		}
	}
}
