package sqlitebacklog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"
)

// logSuffix and the database's path make up the path of its write-ahead log.
const logSuffix = "-wal"

// errFileReplaced: a file of the database is not what was opened. What is written
// goes to one that no name leads to, and is gone with the process.
var errFileReplaced = errors.New("the file was removed, moved or replaced while it is open")

// files are those of an open database, as they were when they were opened. Open
// alone adds to them; there are none in memory.
type files struct {
	opened []openedFile
	// gone is the first of them that was found to be gone, with advice. It stays: it
	// may come back, but not what has been opened by its name meanwhile.
	gone atomic.Pointer[error]
}

type openedFile struct {
	path string
	info os.FileInfo
	// advice is what to do when it is gone.
	advice string
}

func (f *files) add(path string, info os.FileInfo, advice string) {
	// Windows looks up the identity when it is first compared.
	os.SameFile(info, info)
	f.opened = append(f.opened, openedFile{path: path, info: info, advice: advice})
}

const (
	databaseAdvice = "stop the server, put the file and its log back, and start it again; until it is stopped, frames can still be read from it"
	logAdvice      = "stop the server in an orderly way, which moves what it holds of the log into the database, and start it again; do not kill it"
	lockAdvice     = "stop the server and start it again, and let nobody remove the lock while it runs"
)

// checkFiles fails if the files are not where they were opened any more. Whoever
// opens the database next would not find what is written now. It looks at the
// entries of directories, three times in some 5 µs, and opens nothing: closing the
// database's file would end the locks that SQLite has on it, which belong to the
// process (fcntl(2)).
func (s *Store) checkFiles() error {
	if gone := s.files.gone.Load(); gone != nil {
		return *gone
	}
	for i := range s.files.opened {
		f := &s.files.opened[i]
		info, err := os.Lstat(f.path) // a link to it is not it: logs are found by names
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%q cannot be looked at: %w", f.path, err)
		}
		if err != nil || !os.SameFile(info, f.info) {
			return s.noteGone(f)
		}
	}
	return nil
}

// noteGone remembers that a file is gone, and says so once.
func (s *Store) noteGone(f *openedFile) error {
	gone := fmt.Errorf("%q: %w; %s", f.path, errFileReplaced, f.advice)
	if s.files.gone.CompareAndSwap(nil, &gone) {
		s.logger.Error("a file of the store is gone: nothing is stored any more, and the store reports that it is not ready",
			"file", f.path, "error", gone)
	}
	return *s.files.gone.Load()
}

// claimed has the stores of this process that have a file. Two on one file, by two
// names, would end each other's locks by closing it, so the second must not even
// open it.
var claimed struct {
	mu    sync.Mutex // guards what follows, and is held while a file is opened
	files map[*Store]os.FileInfo
}

// holdFile opens the database's file, creating it if need be, and holds it against
// other processes where that is possible.
func (s *Store) holdFile() error {
	claimed.mu.Lock()
	defer claimed.mu.Unlock()
	if info, err := os.Stat(s.path); err == nil {
		for _, other := range claimed.files {
			if os.SameFile(info, other) {
				return fmt.Errorf("%q is open in this process already, by another name", s.path)
			}
		}
	}
	file, err := openFile(s.path)
	if err != nil {
		return err
	}
	held, err := hold(file)
	if err == nil && held {
		s.held = file // to the end, see releaseFile
	} else {
		defer file.Close()
	}
	if err != nil {
		return fmt.Errorf("%q is in use by another process, by another name of the file (a hard link), or its lock %q was removed; one process at a time may use --store sqlite:%s",
			s.path, s.path+lockSuffix, s.path)
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("%q: %w", s.path, err)
	}
	if claimed.files == nil {
		claimed.files = map[*Store]os.FileInfo{}
	}
	claimed.files[s] = info
	s.files.add(s.path, info, databaseAdvice)
	s.header, err = readHeader(s.path, file)
	return err
}

// releaseFile is called when SQLite has closed the file: closing it before would
// end SQLite's locks.
func (s *Store) releaseFile() {
	claimed.mu.Lock()
	defer claimed.mu.Unlock()
	if s.held != nil {
		_ = s.held.Close() // nothing was written through it
	}
	delete(claimed.files, s)
}

// checkLogAlone refuses a log whose database is missing or empty: SQLite would
// begin a new one and remove the log, which in a young store holds everything. No
// start leads there that was cut short: the database has a page before it has a
// log.
func checkLogAlone(path string) error {
	log, err := os.Stat(path + logSuffix)
	if err != nil || log.Size() == 0 {
		return nil
	}
	what := "is empty"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		what = "is missing"
	case err != nil || info.Size() > 0:
		return nil
	}
	return fmt.Errorf("%q %s, but not its log %q, which may hold all frames; put back the database that the log belongs to, or, to begin with nothing, move the log away",
		path, what, path+logSuffix)
}

// addLog is called when SQLite has opened the write-ahead log, which it does with
// the first statement, and before anything of a caller is written to it. From then
// on the log's file is the same until the last connection is closed: checkpoints
// write it from its start again, and cut it.
func (s *Store) addLog() error {
	info, err := os.Lstat(s.path + logSuffix)
	if err != nil {
		return fmt.Errorf("the log of %q: %w", s.path, err)
	}
	s.files.add(s.path+logSuffix, info, logAdvice)
	return s.checkFiles()
}

// guardedConnector connects to the store's own file and to no other that has got
// its name.
type guardedConnector struct {
	driver.Connector
	store *Store
	// keepsLog: see keepLog.
	keepsLog bool
}

// Connect implements driver.Connector.
func (g guardedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := g.store.checkFiles(); err != nil {
		return nil, err
	}
	conn, err := g.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	err = g.store.checkFiles()
	if err == nil && g.keepsLog {
		err = keepLog(conn)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// keepLog makes the last close of a connection leave the log's name alone, which
// may be that of another database's log. What is in the log is nevertheless moved
// into the database if that is where it was.
func keepLog(conn any) error {
	control, ok := conn.(sqlite.FileControl)
	if !ok {
		return fmt.Errorf("the driver's %T has no file control", conn)
	}
	_, err := control.FileControlPersistWAL("main", 1)
	return err
}
