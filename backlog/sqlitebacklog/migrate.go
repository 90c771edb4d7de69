package sqlitebacklog

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// schemaVersion is the version of the tables that this binary makes. It may use a
// newer one whose settings say so.
const schemaVersion = 1

// migrate creates the tables, or brings them to this binary's version. A newer
// version that lists this one is left alone.
func (s *Store) migrate(ctx context.Context) error {
	// Again: an interrupted transaction may have been rolled back since inspect.
	if err := s.checkTables(ctx, s.writer); err != nil {
		return err
	}
	version, _, err := readVersion(ctx, s.writer)
	if err != nil {
		return err
	}
	if version < schemaVersion {
		if err := s.runMigrations(ctx); err != nil {
			return err
		}
	}
	limit := s.writer.QueryRowContext(ctx, "select max_frame_bytes from settings")
	if err := limit.Scan(&s.maxFrameBytes); err != nil {
		return err
	}
	if s.cfg.MaxFrameBytes > 0 {
		s.maxFrameBytes = s.cfg.MaxFrameBytes
	}
	return nil
}

// readVersion returns the version of the tables, 0 if there are none, and the
// oldest one whose binaries may use them.
func readVersion(ctx context.Context, db *sql.DB) (version, oldest int, err error) {
	var exists bool
	err = db.QueryRowContext(ctx, "select exists (select 1 from sqlite_schema where name = 'settings')").Scan(&exists)
	if err != nil || !exists {
		return 0, 0, err
	}
	err = db.QueryRowContext(ctx, "select schema_version, oldest_binary from settings").Scan(&version, &oldest)
	return version, oldest, err
}

func (s *Store) runMigrations(ctx context.Context) error {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.writer, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	results, err := provider.Up(ctx)
	for _, r := range results {
		if r.Error == nil {
			s.logger.Info("migrated", "file", s.Path(), "version", r.Source.Version, "duration", r.Duration)
		}
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
