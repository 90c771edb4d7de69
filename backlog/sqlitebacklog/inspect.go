package sqlitebacklog

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// magic is what the file of an SQLite database begins with.
const magic = "SQLite format 3\x00"

// applicationID marks a database as Fanfare's: "Fnfr". It is in the header of the
// file from its first transaction.
const (
	applicationID   = 0x466e6672
	applicationIDAt = 68
	headerBytes     = 100
)

// smallestPage is the page size of a database that this package makes.
const smallestPage = 4096

// readHeader returns the first bytes of a file, none of a new one, and refuses what
// does not begin like a database.
func readHeader(path string, file io.ReaderAt) ([]byte, error) {
	header := make([]byte, headerBytes)
	n, err := file.ReadAt(header, 0)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%q cannot be read: %w", path, err)
	case n > 0 && !bytes.HasPrefix(header[:n], []byte(magic)):
		return nil, notDatabaseError(path)
	}
	return header[:n], nil
}

func notDatabaseError(path string) error {
	return fmt.Errorf("%q is not an SQLite database, or its beginning is damaged; give another path, or restore the file from a backup", path)
}

// inspect refuses a database that is not to be used, on a connection that cannot
// write: closing one that can moves the log into the database and removes it, also
// from a database that is damaged or somebody else's.
func (s *Store) inspect(ctx context.Context) error {
	if s.cfg.inMemory() {
		return nil
	}
	info, err := os.Stat(s.path)
	if err != nil || info.Size() == 0 {
		return err
	}
	if sizeOf(s.path+"-journal") > 0 {
		return s.inspectInterrupted(info.Size())
	}
	db, err := sql.Open("sqlite", s.inspectingDSN())
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	return s.examine(ctx, db)
}

// inspectingDSN is the name for a connection that writes nothing. Without a log
// there is nothing to recover, and not even the files are made that connections
// share. With one, the shared memory is made if it is missing, and may stay.
func (s *Store) inspectingDSN() string {
	values := map[string]string{"mode": "ro"}
	if sizeOf(s.path+logSuffix) == 0 {
		values["immutable"] = "1"
	}
	return s.name(values, fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "query_only(1)", "trusted_schema(0)")
}

// sizeOf returns the size of a file, 0 if it is missing.
func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// inspectInterrupted looks at a database in the middle of a transaction with a
// rollback journal, which only a connection that writes can roll back. Ours has
// such transactions in its first moments only, when it gets its mark and its log.
func (s *Store) inspectInterrupted(size int64) error {
	if size <= smallestPage || len(s.header) < headerBytes || binary.BigEndian.Uint32(s.header[applicationIDAt:]) == applicationID {
		return nil
	}
	return s.foreignError()
}

// examine refuses a database that is another application's, damaged, or of a newer
// version.
func (s *Store) examine(ctx context.Context, db *sql.DB) error {
	if _, err := s.identify(ctx, db); err != nil {
		return err
	}
	if err := s.checkPages(ctx, db); err != nil {
		return err
	}
	return s.checkTables(ctx, db)
}

// identify refuses a database of another application; isNew: it has no mark yet.
func (s *Store) identify(ctx context.Context, db *sql.DB) (isNew bool, err error) {
	var id, tables int64
	if err := db.QueryRowContext(ctx, "pragma application_id").Scan(&id); err != nil {
		return false, err
	}
	if err := db.QueryRowContext(ctx, "select count(*) from sqlite_schema").Scan(&tables); err != nil {
		return false, err
	}
	if id != applicationID && (id != 0 || tables > 0) {
		return false, s.foreignError()
	}
	return id == 0, nil
}

func (s *Store) foreignError() error {
	return fmt.Errorf("%q is a database of another application; give another path", s.path)
}

// maxCheckedBytes bounds the files that are checked page by page when they are
// opened, which takes about 2 ms for each MiB.
const maxCheckedBytes = 64 << 20

// checkPages looks for damaged pages if the database is not large.
func (s *Store) checkPages(ctx context.Context, db *sql.DB) error {
	var pages, pageBytes int64
	if err := db.QueryRowContext(ctx, "pragma page_count").Scan(&pages); err != nil {
		return err
	}
	if err := db.QueryRowContext(ctx, "pragma page_size").Scan(&pageBytes); err != nil {
		return err
	}
	if pages*pageBytes > maxCheckedBytes {
		return nil
	}
	var found string
	if err := db.QueryRowContext(ctx, "pragma quick_check(1)").Scan(&found); err != nil {
		return err
	}
	if found != "ok" {
		return s.damagedError(errors.New(strings.Join(strings.Fields(found), " "))) // in one line
	}
	return nil
}

// tables are those of every version.
var tables = []string{"channel_frames", "idempotency_keys", "policies", "retired_streams", "settings", "streams"}

// checkTables refuses tables of a newer version, unless it lists this one, and
// tables that lack something. There may be none: migrations make all in one
// transaction.
func (s *Store) checkTables(ctx context.Context, db *sql.DB) error {
	var there int
	var missing []string
	for _, table := range tables {
		var exists bool
		err := db.QueryRowContext(ctx, "select exists (select 1 from sqlite_schema where type = 'table' and name = ?)", table).Scan(&exists)
		switch {
		case err != nil:
			return err
		case exists:
			there++
		default:
			missing = append(missing, table)
		}
	}
	if there == 0 {
		return nil
	}
	if !slices.Contains(missing, "settings") {
		if err := s.checkVersion(ctx, db); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return s.damagedError(fmt.Errorf("the table %s is missing", missing[0]))
	}
	return nil
}

func (s *Store) checkVersion(ctx context.Context, db *sql.DB) error {
	version, oldest, err := readVersion(ctx, db)
	if err != nil {
		return err
	}
	if version > schemaVersion && oldest > schemaVersion {
		return fmt.Errorf("%q has version %d, which needs a fanfare of version %d of the tables or later; this one has version %d: use a newer fanfare, or another path",
			s.path, version, oldest, schemaVersion)
	}
	return nil
}
