//go:build unix

package sqlitebacklog

import "golang.org/x/sys/unix"

// checkAccess reports why this process may not write to a file; a file system
// that was mounted again without writing is a reason.
func checkAccess(path string) error { return unix.Access(path, unix.W_OK) }
