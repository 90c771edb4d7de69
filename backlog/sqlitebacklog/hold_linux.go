package sqlitebacklog

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// hold locks the database's file itself, whatever its name, for as long as file is
// open. On Linux locks of this kind (flock(2)) and those of SQLite (fcntl(2)) do
// not see each other on local file systems.
func hold(file *os.File) (held bool, err error) {
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, err
	}
	return err == nil, nil // a file system without such locks has the lock next to the file
}
