package sqlitebacklog

import (
	"context"
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
// version is left alone if it lists this one, and refused otherwise.
func (s *Store) migrate(ctx context.Context) error {
	version, oldest, err := s.readVersion(ctx)
	if err != nil {
		return err
	}
	if version > schemaVersion && oldest > schemaVersion {
		return fmt.Errorf("%q has version %d, which needs a fanfare of version %d of the tables or later; this one has version %d: use a newer fanfare, or another path",
			s.path, version, oldest, schemaVersion)
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
func (s *Store) readVersion(ctx context.Context) (version, oldest int, err error) {
	var exists bool
	err = s.writer.QueryRowContext(ctx, "select exists (select 1 from sqlite_schema where name = 'settings')").Scan(&exists)
	if err != nil || !exists {
		return 0, 0, err
	}
	err = s.writer.QueryRowContext(ctx, "select schema_version, oldest_binary from settings").Scan(&version, &oldest)
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
