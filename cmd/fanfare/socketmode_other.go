//go:build !linux

package main

import "syscall"

// setModeBeforeBind does nothing: elsewhere a socket has no mode before it is bound.
func setModeBeforeBind(_, _ string, _ syscall.RawConn) error { return nil }
