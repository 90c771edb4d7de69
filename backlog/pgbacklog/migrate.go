package pgbacklog

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

const (
	// migrationLockTimeout bounds how long a migration waits for a table: while it
	// waits, everybody who comes after it waits too.
	migrationLockTimeout = 2 * time.Second
	// migrationRetryTime is how long a migration that could not get a lock is
	// tried again.
	migrationRetryTime = 2 * time.Minute
)

// Migrate creates the schema or brings it to this binary's version. It is safe
// to run while other replicas start or serve: starts wait for each other, and
// migrations only add. A newer schema that lists this binary is left alone.
//
// url must lead to PostgreSQL directly, since the lock that concurrent starts
// wait for belongs to a session. The role must own the schema or be allowed to
// create it. A server that cannot be reached, or is lost meanwhile, is
// backlog.ErrUnavailable. logger may be nil.
func Migrate(ctx context.Context, url, schema string, logger *slog.Logger) error {
	cfg := Config{URL: url, Schema: schema, Logger: logger}.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	connConfig, err := migrationConfig(cfg)
	if err != nil {
		return err
	}
	if err := checkDirect(ctx, connConfig, cfg.Logger); err != nil {
		return unlessLost(err)
	}
	db := stdlib.OpenDB(*connConfig)
	defer db.Close()
	// One session for everything: it holds the lock.
	db.SetMaxOpenConns(1)

	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 5*time.Second
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		err := migrateOnce(ctx, db, cfg)
		if err != nil && !hasCode(err, codeLockNotAvailable) && !hasCode(err, codeDeadlockDetected) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(migrationRetryTime))
	if err != nil {
		return fmt.Errorf("migrate schema %q: %w", cfg.Schema, explainMigration(cfg.Schema, unlessLost(err)))
	}
	return nil
}

// migrationConfig makes every session of the migration see Fanfare's schema and
// nothing else: migrations use unqualified names, and the functions that they
// create keep this search_path. pg_temp is named because it would be searched
// first otherwise, and a caller's temporary table would stand for the schema's.
func migrationConfig(cfg Config) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return nil, urlError(cfg.URL, err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = cfg.ConnectTimeout
	}
	config.RuntimeParams["application_name"] = applicationName("migrate", cfg.Instance)
	pinEncoding(config)
	config.RuntimeParams["search_path"] = pgx.Identifier{cfg.Schema}.Sanitize() + ", pg_temp"
	// A role's own settings must not end a migration half-way.
	config.RuntimeParams["statement_timeout"] = "0"
	config.RuntimeParams["lock_timeout"] = "0"
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	return config, nil
}

// checkDirect checks the server, and that no pooler stands before it.
func checkDirect(ctx context.Context, config *pgx.ConnConfig, logger *slog.Logger) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return explainConnect(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := checkServer(ctx, conn, logger); err != nil {
		return err
	}
	var pid uint32
	if err := conn.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
		return explainConnect(err)
	}
	if pid != conn.PgConn().PID() {
		return errors.New("a connection pooler stands before PostgreSQL; migrations need the direct URL, because a pooler may hand their session's lock to others")
	}
	return nil
}

// migrateOnce runs what migrations are missing, each in a transaction of its
// own, under the lock that makes concurrent starts wait for each other.
func migrateOnce(ctx context.Context, db *sql.DB, cfg Config) (err error) {
	if err := lockMigrations(ctx, db, cfg.Schema); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlockMigrations(context.WithoutCancel(ctx), db, cfg.Schema)) }()
	if needed, err := needsMigration(ctx, db, cfg); err != nil || !needed {
		return err
	}
	if err := createSchema(ctx, db, cfg.Schema); err != nil {
		return err
	}
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	// goose's own locker comes after it has created its table, and before the
	// schema exists that table would be a temporary one.
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	results, err := provider.Up(ctx)
	for _, r := range results {
		if r.Error == nil {
			cfg.Logger.Info("migrated", "schema", cfg.Schema, "version", r.Source.Version, "duration", r.Duration)
		}
	}
	return err
}

// migrationLockKey is an advisory lock's key, by schema. 2 tells it from the
// schema's other advisory locks.
const migrationLockKey = `hashtextextended($1, 2)`

// lockMigrations asks again and again instead of waiting in the server: a
// session that waits there holds a snapshot, for which a concurrent index build
// waits.
func lockMigrations(ctx context.Context, db *sql.DB, schema string) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 20*time.Millisecond, time.Second
	for {
		var locked bool
		err := db.QueryRowContext(ctx, `select pg_try_advisory_lock(`+migrationLockKey+`)`, schema).Scan(&locked)
		if err != nil || locked {
			return err
		}
		if !pause(ctx, wait.NextBackOff()) {
			return fmt.Errorf("another migration of the schema is running: %w", ctx.Err())
		}
	}
}

func unlockMigrations(ctx context.Context, db *sql.DB, schema string) error {
	_, err := db.ExecContext(ctx, `select pg_advisory_unlock(`+migrationLockKey+`)`, schema)
	return err
}

// needsMigration is false if the schema has this binary's version, or a newer one
// that lists this binary: then a role without rights to change it may go on. One
// that does not list it is an error.
func needsMigration(ctx context.Context, db *sql.DB, cfg Config) (bool, error) {
	var settings schemaSettings
	err := withConn(ctx, db, func(conn *pgx.Conn) (err error) {
		settings, err = readSettings(ctx, conn, cfg.Schema)
		return err
	})
	if err != nil || settings.version < schemaVersion {
		return true, err
	}
	if settings.version > schemaVersion {
		cfg.Logger.Info("the schema is newer than this binary", "schema", cfg.Schema, "version", settings.version, "binary", schemaVersion)
	}
	return false, versionError(cfg.Schema, settings.version, settings.oldestBinary)
}

// withConn lends the driver's connection.
func withConn(ctx context.Context, db *sql.DB, do func(*pgx.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(driver any) error { return do(driver.(*stdlib.Conn).Conn()) })
}

// createSchema creates the schema if it does not exist: IF NOT EXISTS alone would
// ask for the right to create it all the same. From then on the session gives up
// a lock that it does not get.
func createSchema(ctx context.Context, db *sql.DB, schema string) error {
	var exists bool
	err := db.QueryRowContext(ctx, `select exists (select from pg_namespace where nspname = $1)`, schema).Scan(&exists)
	if err != nil {
		return err
	}
	if !exists {
		if _, err := db.ExecContext(ctx, `create schema `+pgx.Identifier{schema}.Sanitize()); err != nil {
			return err
		}
	}
	var current string
	err = db.QueryRowContext(ctx, `select coalesce(current_schema(), ''), set_config('lock_timeout', $1, false)`,
		fmt.Sprintf("%dms", migrationLockTimeout.Milliseconds())).Scan(&current, new(string))
	if err == nil && current != schema {
		// A role that may not use the schema would migrate its temporary one.
		return fmt.Errorf("the role may not use schema %q; migrate as its owner", schema)
	}
	return err
}

// explainMigration says what to do about an error of a migration.
func explainMigration(schema string, err error) error {
	switch {
	case hasCode(err, codeInsufficientPrivilege):
		return fmt.Errorf("the role may not create or change the schema; migrate as its owner, or run as the database's owner: "+
			"CREATE SCHEMA %s AUTHORIZATION <role>: %w", pgx.Identifier{schema}.Sanitize(), err)
	case hasCode(err, codeLockNotAvailable):
		return fmt.Errorf("other transactions hold the schema's tables; end them and try again: %w", err)
	}
	return err
}
