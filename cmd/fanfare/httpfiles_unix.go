//go:build unix

package main

import "syscall"

// openFileLimit is how many files the process may open, if the system says so. The
// runtime has raised it as far as it may.
func openFileLimit() (files int, known bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return int(min(uint64(limit.Cur), mostHTTPConnections*4)), true //nolint:unconvert // signed on some systems
}
