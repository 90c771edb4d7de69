package sqlitebacklog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

// lockSuffix and the database's path make up the lock's path.
const lockSuffix = ".lock"

// maxLinks bounds the symbolic links that a path is followed through.
const maxLinks = 40

// resolvePath returns the file that path leads to, absolute and without symbolic
// links: SQLite names its log after the file and not after a link, and so must
// the lock be. The file need not exist; its directory must.
func resolvePath(path string) (string, error) {
	resolved, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("the path of the database: %w", err)
	}
	for range maxLinks {
		directory, err := filepath.EvalSymlinks(filepath.Dir(resolved))
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("the directory of %q does not exist; create it, or give another path", path)
		}
		if err != nil {
			return "", fmt.Errorf("the directory of %q: %w", path, err)
		}
		resolved = filepath.Join(directory, filepath.Base(resolved))
		target, err := os.Readlink(resolved)
		if err != nil { // not a link, or nothing there
			return resolved, nil
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(directory, target)
		}
		resolved = target
	}
	return "", fmt.Errorf("the path %q leads through more than %d symbolic links", path, maxLinks)
}

// lockFile locks the database at path, which is resolved, for this store. A
// second writer would number the same streams; a second process with a bus of its
// own would leave the subscribers of each without the frames of the other. The
// lock ends with the process, however that ends.
func lockFile(path string) (*flock.Flock, error) {
	for {
		lock := flock.New(path + lockSuffix)
		locked, err := lock.TryLock()
		if err != nil {
			return nil, fmt.Errorf("%q cannot be locked: %w; its directory must be writable for the user that runs fanfare", path, err)
		}
		if !locked {
			return nil, inUseError(path)
		}
		if isThere(lock) {
			// For whoever is refused. Without it the message says less.
			_ = os.WriteFile(lock.Path(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
			return lock, nil
		}
		// Removed between the opening and the locking, and perhaps made anew by
		// somebody else.
		_ = lock.Unlock()
	}
}

// isThere reports whether what has been locked is what a next one would lock.
func isThere(lock *flock.Flock) bool {
	locked, err := lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(lock.Path())
	return err == nil && os.SameFile(locked, there)
}

// unlockFile ends the lock and removes its file, if that is still the one that is
// locked; in this order for others: see lockFile.
func unlockFile(lock *flock.Flock) {
	if isThere(lock) {
		// What cannot be removed is found and locked by the next one.
		_ = os.Remove(lock.Path())
	}
	_ = lock.Unlock()
}

func inUseError(path string) error {
	holder := ""
	content, _ := os.ReadFile(path + lockSuffix)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && pid != os.Getpid() {
		holder = fmt.Sprintf("process %d, ", pid)
	} else if err == nil {
		return fmt.Errorf("%q is open in this process already (its lock is %q)", path, path+lockSuffix)
	}
	return fmt.Errorf("%q is in use by another process (%sits lock is %q); one process at a time may use --store sqlite:%s", path, holder, path+lockSuffix, path)
}
