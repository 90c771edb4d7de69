package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fanfare-io/fanfare/backlog"
)

const readableSQL = `select schema_version from settings`

// Ping implements backlog.Store. It fails if the file cannot be read, or cannot be
// written to any more, while another program's lock makes publishing fail, and for
// good once a file of the store has been found to be gone or a read or write has
// met a damage. It does not write.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pingDamage(); err != nil {
		return err
	}
	if err := s.checkFiles(); err != nil {
		return fmt.Errorf("%w: ping: %w", backlog.ErrUnavailable, err)
	}
	err := s.read(ctx, s.reading.lanes.pings, "ping", func(n *snapshot) error {
		var version int
		return n.each(ctx, n.statements.readable, nil, []any{&version}, func() error { return nil })
	})
	if err != nil || s.cfg.inMemory() {
		return err
	}
	if err := s.checkWritable(); err != nil {
		return fmt.Errorf("%w: ping: %w", backlog.ErrUnavailable, err)
	}
	return s.pingLocked(ctx)
}

// errReadOnly: a file that could be written to when it was opened.
var errReadOnly = errors.New("the file, or its file system, is not writable")

// checkWritable looks at the file's entry in its directory.
func (s *Store) checkWritable() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return err
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
