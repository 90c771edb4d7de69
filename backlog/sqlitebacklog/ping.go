package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fanfare-io/fanfare/backlog"
)

const readableSQL = `select schema_version from settings`

// Ping implements backlog.Store. It fails if the file cannot be read, is not the
// one that was opened, or cannot be written to any more, and for good once any
// read or write has met a damage of it. It does not write.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pingDamage(); err != nil {
		return err
	}
	err := s.read(ctx, s.reading.lanes.pings, "ping", func(n *snapshot) error {
		var version int
		return n.each(ctx, n.statements.readable, nil, []any{&version}, func() error { return nil })
	})
	if err != nil || s.cfg.inMemory() {
		return err
	}
	if err := s.checkIdentity(); err != nil {
		return fmt.Errorf("%w: ping: %w", backlog.ErrUnavailable, err)
	}
	return nil
}

// Errors of a file that was there when it was opened.
var (
	errFileReplaced = errors.New("the file was removed or replaced while it is open")
	errReadOnly     = errors.New("the file, or its file system, is not writable")
)

// checkIdentity looks at the file's entry in its directory. It must not open the
// file: closing it would end the locks that SQLite has on it, which belong to the
// process (fcntl(2)).
func (s *Store) checkIdentity() error {
	info, err := os.Stat(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", errFileReplaced, err)
	}
	if err != nil {
		return err
	}
	if !os.SameFile(info, s.reading.file) {
		return fmt.Errorf("%q: %w", s.path, errFileReplaced)
	}
	// No bit for writing is a statement, also to root, for whom there are none.
	if info.Mode().Perm()&0o222 == 0 {
		return fmt.Errorf("%q: %w", s.path, errReadOnly)
	}
	if err := checkAccess(s.path); err != nil {
		return fmt.Errorf("%q: %w: %w", s.path, errReadOnly, err)
	}
	return nil
}
