package sqlitebacklog

import (
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fanfare-io/fanfare/backlog"
)

// isDamage reports whether a statement failed because pages of the file are not
// what they were written as.
func isDamage(err error) bool {
	switch primaryCode(err) {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return true
	}
	return false
}

// noteDamage remembers that err was met if it is a damage, and says so once: a
// damage does not go away, and who reads the page again meets it again. Reads and
// publishes go on, since those that need other pages succeed.
func (s *Store) noteDamage(err error) {
	if !isDamage(err) {
		return
	}
	damage := s.damagedError(err)
	if s.damage.CompareAndSwap(nil, &damage) {
		s.logger.Error("the database is damaged: whatever needs its damaged pages fails, and the store reports that it is not ready",
			"file", s.Path(), "error", damage)
	}
}

// pingDamage fails if a damage has been met since the store was opened.
func (s *Store) pingDamage() error {
	if damage := s.damage.Load(); damage != nil {
		return fmt.Errorf("%w: ping: %w", backlog.ErrUnavailable, *damage)
	}
	return nil
}
