package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// busyTimeout bounds the wait for a lock that another program holds, such as the
// sqlite3 command line. Fanfare's own connections do not get into each other's
// way: there is one writer, and readers lock nothing.
const busyTimeout = 5 * time.Second

// epochBit is set in own epochs and clear in origins, so that what combines them
// is never 0.
const epochBit = 1 << 62

// Open opens the database in a file, creates it if there is none, and brings it
// to this binary's version. What cannot be used is refused with an error that
// names the file, what is wrong with it and what to do: a file that another
// process has open, that cannot be written to, that is damaged, of a newer version,
// or not Fanfare's, and a log without its database. The database and the log are
// then as they were before. The caller runs Run, and Close after it.
//
// A process that was killed leaves nothing to repair: SQLite finds in its log
// what was committed. Only a file of up to maxCheckedBytes is checked page by
// page, since that takes as long as reading it; a damage in a larger one shows
// when the page is needed.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	return open(ctx, cfg, &clock{})
}

func open(ctx context.Context, cfg Config, clock *clock) (_ *Store, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, logger: cfg.Logger, clock: clock, origin: newOrigin(), checkpoints: checkpoints{every: checkpointPages}}
	s.reading.lanes = newLanes(&cfg)
	s.committer = newCommitter(s)
	s.bus = newBus(s.origin, cfg.MaxAnnouncedBytes)
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if !cfg.inMemory() {
		if err := s.claimFile(); err != nil {
			return nil, err
		}
	}
	if err := s.openDatabase(ctx); err != nil {
		return nil, s.explain(ctx, err)
	}
	if err := s.openReading(ctx); err != nil {
		return nil, s.explain(ctx, err)
	}
	s.clock.before(0) // from here on it notices a jump
	return s, nil
}

// newOrigin draws an origin: 62 bits, not 0.
func newOrigin() uint64 {
	for {
		if origin := rand.Uint64() & (epochBit - 1); origin != 0 {
			return origin
		}
	}
}

// claimFile finds out which file is meant, locks it, and checks that it is one to
// write to. Nothing opens the file before it is locked: closing it would end the
// locks that SQLite has on it if this process has it open already.
func (s *Store) claimFile() (err error) {
	if s.path, err = resolvePath(s.cfg.Path); err != nil {
		return err
	}
	if info, err := os.Stat(s.path); err == nil && info.IsDir() {
		return fmt.Errorf("%q is a directory; give the path of a file in it, such as %q", s.path, filepath.Join(s.path, "fanfare.db"))
	} else if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%q is not a regular file; give another path", s.path)
	}
	if len(s.path) > maxPathBytes {
		return fmt.Errorf("the path %q has %d bytes, the limit of SQLite is %d; give a shorter one", s.path, len(s.path), maxPathBytes)
	}
	if s.lock, err = lockFile(s.path); err != nil {
		return err
	}
	info, err := s.lock.Stat()
	if err != nil {
		return fmt.Errorf("%q: %w", s.lock.Path(), err)
	}
	if err := checkLogAlone(s.path); err != nil {
		return err
	}
	if err := s.holdFile(); err != nil {
		return err
	}
	s.files.add(s.lock.Path(), info, lockAdvice)
	return nil
}

// maxPathBytes is the longest path that SQLite takes, which has 512 bytes for the
// longest of the names that it makes of it.
const maxPathBytes = 512 - len("-journal")

// openFile opens the file at path to read and write, and creates it if it is
// missing, for its owner alone.
func openFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%q cannot be written to: %w; make it writable for the user that runs fanfare, or give another path", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%q cannot be opened: %w", path, err)
	}
	return file, nil
}

// dsn is the database's name for the driver, with pragmas for each connection.
//
// synchronous: see the package comment. wal_autocheckpoint: checkpoints are made
// between transactions and not within them; see checkpoints. fullfsync is for
// macOS, whose fsync does not reach the disk.
func (s *Store) dsn(pragmas ...string) string {
	// The file is there: SQLite must not make another one where it was.
	return s.name(map[string]string{"mode": "rw"}, append([]string{
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"synchronous(FULL)", "fullfsync(1)", "checkpoint_fullfsync(1)", "wal_autocheckpoint(0)",
		fmt.Sprintf("journal_size_limit(%d)", maxLogBytes),
		"foreign_keys(0)", "temp_store(MEMORY)", "trusted_schema(0)",
	}, pragmas...)...)
}

// name is the database's name with parameters, which are for files only, and
// pragmas.
func (s *Store) name(parameters map[string]string, pragmas ...string) string {
	query := url.Values{"_pragma": pragmas, "_dqs": {"0"}, "_error_rc": {"1"}}
	if s.cfg.inMemory() {
		return "file:" + MemoryPath + "?" + query.Encode()
	}
	for name, value := range parameters {
		query.Set(name, value)
	}
	return (&url.URL{Scheme: "file", Path: s.path}).String() + "?" + query.Encode()
}

// openDatabase checks, connects and prepares the database.
func (s *Store) openDatabase(ctx context.Context) (err error) {
	// fdatasync is what SQLite uses on Linux elsewhere; it spares a commit the
	// flush of the file's times. Where there is none, fsync is used.
	_, _ = sqlite.Fdatasync(true)
	if err := s.inspect(ctx); err != nil {
		return err
	}
	if s.writer, err = s.connect(false, "cache_size(-16384)"); err != nil {
		return err
	}
	s.writer.SetMaxOpenConns(1)
	s.reader = s.writer
	if err := s.prepareDatabase(ctx); err != nil || s.cfg.inMemory() {
		return err
	}
	if err := s.addLog(); err != nil {
		return err
	}
	if s.reader, err = s.connect(true, "query_only(1)"); err != nil {
		return err
	}
	s.reader.SetMaxOpenConns(s.reading.lanes.conns())
	s.reader.SetMaxIdleConns(s.reading.lanes.conns())
	return nil
}

// connect makes a pool of connections. Those with keepsLog do not remove the log
// when they are the last to be closed.
func (s *Store) connect(keepsLog bool, pragmas ...string) (*sql.DB, error) {
	connector, err := sqlite.NewConnector(s.dsn(pragmas...))
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(guardedConnector{Connector: connector, store: s, keepsLog: keepsLog}), nil
}

// prepareDatabase marks a new database, puts it into WAL mode, and makes its
// tables.
func (s *Store) prepareDatabase(ctx context.Context) error {
	isNew, err := s.identify(ctx, s.writer)
	if err != nil {
		return err
	}
	if isNew {
		if _, err := s.writer.ExecContext(ctx, fmt.Sprintf("pragma application_id = %d", applicationID)); err != nil {
			return err
		}
	}
	if err := s.useLog(ctx); err != nil {
		return err
	}
	return s.migrate(ctx)
}

// useLog puts the database into WAL mode, which it keeps.
func (s *Store) useLog(ctx context.Context) error {
	if s.cfg.inMemory() {
		return nil
	}
	var mode string
	if err := s.writer.QueryRowContext(ctx, "pragma journal_mode = wal").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file system of %q cannot share memory between connections, as network file systems cannot; give a path on a local disk", s.path)
	}
	return nil
}

// explain says what an error of SQLite means to whoever starts fanfare.
func (s *Store) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("open %q: %w", s.Path(), ctx.Err())
	}
	if errors.Is(err, sql.ErrNoRows) {
		return s.damagedError(errors.New("the row of its settings is missing"))
	}
	switch primaryCode(err) {
	case 0:
		return err
	case sqlite3.SQLITE_ERROR:
		return s.damagedError(fmt.Errorf("its tables are not those of its version: %w", err))
	case sqlite3.SQLITE_NOTADB:
		return notDatabaseError(s.path)
	case sqlite3.SQLITE_CORRUPT:
		return s.damagedError(err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return fmt.Errorf("%q cannot be written to: %w; make it and the files next to it writable for the user that runs fanfare", s.path, err)
	case sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("%q cannot be opened: %w; its directory must be writable for the user that runs fanfare", s.path, err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("the disk of %q is full: %w; make room on it", s.path, err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%q is locked by another program: %w; end that, and do not write to the file while fanfare uses it", s.path, err)
	}
	return fmt.Errorf("open %q: %w", s.Path(), err)
}

func (s *Store) damagedError(err error) error {
	return fmt.Errorf("%q is damaged (%w); restore it from a backup, or save what is readable: sqlite3 %q .recover", s.Path(), err, s.Path())
}
