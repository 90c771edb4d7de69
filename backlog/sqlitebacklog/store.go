package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/gofrs/flock"
	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
)

// Store is a backlog.Store on SQLite. Open makes one.
type Store struct {
	cfg    Config
	logger *slog.Logger
	// path is the file's, absolute and without symbolic links; empty in memory.
	path string
	lock *flock.Flock // nil in memory
	// held is the database's file, locked, where that is possible; see hold.
	held *os.File
	// header is the beginning of the file when it was opened, empty if it was new.
	header []byte
	files  files
	// writer has one connection, and whoever has it may write. reader is for
	// everybody else; in memory it is the writer itself, since another connection
	// would have a database of its own.
	writer, reader *sql.DB
	bus            *Bus
	// origin is the store's: random, 62 bits, not 0.
	origin uint64
	// clock gives the times that are stored, and tells what is how old.
	clock         *clock
	maxFrameBytes int

	committer *committer
	// checkpoints keeps the write-ahead log short.
	checkpoints checkpoints
	// reading is what the reading half keeps.
	reading reading
	// damage is the first damage of the file that was met, with advice.
	damage atomic.Pointer[error]
	// locked is true while another program's lock keeps the store from writing.
	locked  atomic.Bool
	started atomic.Bool
}

var _ backlog.Store = (*Store)(nil)

// MaxFrameBytes is the limit of a payload: the configured one or the file's.
func (s *Store) MaxFrameBytes() int { return s.maxFrameBytes }

// Bus is what tells the hub of commits.
func (s *Store) Bus() *Bus { return s.bus }

// Path is the database's file, absolute and without symbolic links, or
// MemoryPath.
func (s *Store) Path() string {
	if s.cfg.inMemory() {
		return MemoryPath
	}
	return s.path
}

// Run implements backlog.Store. It returns nil after ctx has ended.
func (s *Store) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("the store's Run was called twice")
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.runCommitter(ctx) })
	g.Go(func() error { return s.runJanitor(ctx) })
	return g.Wait()
}

// Close implements backlog.Store. It moves what the write-ahead log holds into
// the database, and removes the log, unless a file has gone.
func (s *Store) Close() {
	// Errors have no reader here, and what was acknowledged is on the disk: an
	// incomplete close costs the next Open a recovery.
	gone := s.checkFiles() != nil
	if s.reader != nil && s.reader != s.writer {
		_ = s.reader.Close()
	}
	// When a file has gone, no new connection can be made to close anything.
	if s.writer != nil {
		if conn, err := s.writer.Conn(context.Background()); err == nil {
			s.committer.closeStatements(conn)
			if gone {
				_ = conn.Raw(keepLog)
			}
			_ = conn.Close()
		}
		_ = s.writer.Close()
	}
	if s.lock != nil {
		s.releaseFile()
		unlockFile(s.lock)
	}
}
