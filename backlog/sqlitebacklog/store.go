package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/gofrs/flock"
	_ "modernc.org/sqlite"

	"github.com/fanfare-io/fanfare/backlog"
)

// MemoryPath is the path of a database that is gone when its store is closed.
const MemoryPath = ":memory:"

// Config is what a store needs. The zero value of each field but Path is its
// default.
type Config struct {
	// Path is the database's file, which is created if it is missing; its
	// directory must exist. MemoryPath keeps everything in memory.
	Path string
	// Backlog, if not nil, is stored as the default backlog.
	Backlog *int64
	// MaxFrameBytes bounds a payload. 0: what the file's settings say, 1 MiB in a
	// new one.
	MaxFrameBytes int
	// MaxBatchFrames and MaxBatchBytes cut a transaction, which carries at least
	// one publication whatever its size. Defaults: 512 frames, 1 MiB.
	MaxBatchFrames int
	MaxBatchBytes  int64
	// MaxQueuedFrames and MaxQueuedBytes bound what has been submitted and is not
	// yet finished. Defaults: 10,000 frames, 64 MiB.
	MaxQueuedFrames int
	MaxQueuedBytes  int64
	// MaxAnnouncedBytes bounds what has been committed and the hub has not been
	// told of yet; commits wait while it is more. Default 16 MiB.
	MaxAnnouncedBytes int64
	// ReadConns is how many reads run at a time. Default 4.
	ReadConns int
	// JanitorInterval is how long the janitor rests between sweeps. Default 30 s.
	JanitorInterval time.Duration
	// Logger gets what operators should know; nil: nothing is logged.
	Logger *slog.Logger
}

// Store is a backlog.Store on SQLite. Open makes one.
type Store struct {
	cfg    Config
	lock   *flock.Flock
	writer *sql.DB
	reader *sql.DB // the writer itself in memory
	bus    *Bus
}

var _ backlog.Store = (*Store)(nil)

var errTODO = errors.New("not there yet")

// Open opens a file.
func Open(ctx context.Context, cfg Config) (*Store, error) { return nil, errTODO }

// MaxFrameBytes is the limit of a payload: the configured one or the file's.
func (s *Store) MaxFrameBytes() int { return 0 }

// Bus is what tells the hub of commits.
func (s *Store) Bus() *Bus { return s.bus }

// Submit implements backlog.Store.
func (s *Store) Submit(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
	done(backlog.Outcome{}, errTODO)
}

// PublishBatch implements backlog.Store.
func (s *Store) PublishBatch(ctx context.Context, batch []backlog.Publication) ([]backlog.Outcome, error) {
	return nil, errTODO
}

// CloseStream implements backlog.Store.
func (s *Store) CloseStream(ctx context.Context, stream backlog.StreamName, epoch *uint64) (backlog.CloseOutcome, error) {
	return backlog.CloseOutcome{}, errTODO
}

// SetPolicy implements backlog.Store.
func (s *Store) SetPolicy(ctx context.Context, p backlog.Policy) error { return errTODO }

// Run implements backlog.Store.
func (s *Store) Run(ctx context.Context) error { return errTODO }

// Close implements backlog.Store.
func (s *Store) Close() {}
