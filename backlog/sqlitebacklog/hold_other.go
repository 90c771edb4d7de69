//go:build !linux

package sqlitebacklog

import "os"

// hold does nothing: here a lock on the whole file would keep SQLite from its own
// (on macOS and the BSDs flock(2) and fcntl(2) are one kind of locks), and the lock
// next to the file is all there is.
func hold(*os.File) (held bool, err error) { return false, nil }
