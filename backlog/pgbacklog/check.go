package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
)

// schemaVersion is the newest migration that this binary carries, and the
// version by which a schema's oldest_binary names it.
const schemaVersion = 1

// minServerVersion is in the form of server_version_num.
const minServerVersion = 150000

// mendedServerVersions are the first releases of each major version in which
// VACUUM cannot remove commit logs that entries of the notification queue still
// refer to, and without the regressions of the release that mended it. LISTEN
// may fail on older ones.
var mendedServerVersions = map[int]int{15: 150017, 16: 160013, 17: 170009, 18: 180003}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// server is what a server says of itself.
type server struct {
	version            int // as server_version_num
	release, encoding  string
	recovery, readOnly bool
}

// checkServer refuses servers that the store cannot work on and warns of those
// with known bugs.
func checkServer(ctx context.Context, q querier, logger *slog.Logger) error {
	var s server
	err := q.QueryRow(ctx, `select current_setting('server_version_num')::int, current_setting('server_version'),
		current_setting('server_encoding'), pg_is_in_recovery(), current_setting('transaction_read_only')::boolean`).
		Scan(&s.version, &s.release, &s.encoding, &s.recovery, &s.readOnly)
	if err != nil {
		return explainConnect(err)
	}
	return s.judge(logger)
}

func (s server) judge(logger *slog.Logger) error {
	switch {
	case s.version < minServerVersion:
		return fmt.Errorf("the server is PostgreSQL %s; Fanfare needs 15 or newer", s.release)
	case s.encoding != "UTF8":
		return fmt.Errorf("the database's encoding is %s; Fanfare needs UTF8: create the database with ENCODING 'UTF8'", s.encoding)
	case s.recovery:
		return errors.New("the server is in recovery (a replica): it can neither be written to nor listened to; use the primary's URL, or list all hosts and add target_session_attrs=read-write")
	case s.readOnly:
		return errors.New("transactions are read-only here; unset default_transaction_read_only for the role and the database")
	}
	if mended := mendedServerVersions[s.version/10000]; s.version < mended {
		logger.Warn("this PostgreSQL release has a bug that can make LISTEN fail; update the server",
			"release", s.release, "mended_in", fmt.Sprintf("%d.%d", mended/10000, mended%10000))
	}
	return nil
}

// versionError says that binary and schema do not go together. 0 means that
// there is no schema.
func versionError(schema string, version, oldestBinary int) error {
	switch {
	case version == 0:
		return fmt.Errorf("schema %q is not migrated; run fanfare migrate%s", schema, schemaFlag(schema))
	case version < schemaVersion:
		return fmt.Errorf("schema %q has version %d, this binary needs version %d; run fanfare migrate%s with this binary", schema, version, schemaVersion, schemaFlag(schema))
	case version > schemaVersion && oldestBinary > schemaVersion:
		return fmt.Errorf("schema %q has version %d, which binaries of version %d or newer may use; this binary has version %d: use a newer one",
			schema, version, oldestBinary, schemaVersion)
	}
	return nil
}

// schemaFlag is what the command needs for another schema than the default.
func schemaFlag(schema string) string {
	if schema == DefaultSchema {
		return ""
	}
	return fmt.Sprintf(" --schema %q", schema)
}

// schemaSettings is the row of the table settings, as far as the store needs it.
type schemaSettings struct {
	version, oldestBinary int // version 0: not migrated
	notifyChannel         string
	maxFrameBytes         int
}

// readSettings reads the schema's settings; version is 0 if there are none yet.
func readSettings(ctx context.Context, q querier, schema string) (schemaSettings, error) {
	var s schemaSettings
	var exists, usable, migrated bool
	err := q.QueryRow(ctx, `
		select n.oid is not null, coalesce(has_schema_privilege(n.oid, 'usage'), false),
		       exists (select from pg_class c where c.relnamespace = n.oid and c.relname = 'settings' and c.relkind = 'r')
		  from (values ($1::text)) v(name) left join pg_namespace n on n.nspname = v.name`, schema).
		Scan(&exists, &usable, &migrated)
	switch {
	case err != nil:
		return s, explainConnect(err)
	case !exists || (usable && !migrated):
		return s, nil
	case !usable:
		return s, rightsError(ctx, q, schema, []string{"usage of the schema"})
	}
	table := pgx.Identifier{schema, "settings"}.Sanitize()
	err = q.QueryRow(ctx, `select schema_version, oldest_binary, notify_channel, max_frame_bytes from `+table).
		Scan(&s.version, &s.oldestBinary, &s.notifyChannel, &s.maxFrameBytes)
	if hasCode(err, codeInsufficientPrivilege) {
		return s, rightsError(ctx, q, schema, []string{"select on settings"})
	}
	if err != nil {
		return s, fmt.Errorf("read the settings of schema %q: %w", schema, err)
	}
	return s, nil
}

// checkRights names everything that the role of the connection lacks, at start
// rather than one by one when it is first needed. Everything is there, as
// checkObjects found.
func checkRights(ctx context.Context, q querier, schema string) error {
	missing, err := queryNames(ctx, q, objectsSQL+`
		select r || ' on ' || o.name from object o, unnest(o.rights) r where not has_table_privilege(o.oid, r)
		union all
		select 'execute on ' || split_part(f.signature, '(', 1) from func f where not has_function_privilege(f.oid, 'execute')`, schema)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return rightsError(ctx, q, schema, missing)
	}
	return nil
}

// checkObjects names everything of the schema that the store uses and that is
// not there, although the schema says that its version will do: builds before the
// first release have made schemas of version 1 that differ, and somebody may have
// dropped something.
func checkObjects(ctx context.Context, q querier, schema string) error {
	missing, err := queryNames(ctx, q, objectsSQL+`
		select 'the table or view ' || o.name from object o where o.oid is null
		union all
		select 'the function ' || f.signature from func f where f.oid is null`, schema)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("schema %q lacks %s, although it is of a version that this binary can use: a build before the first release made it, or it was changed by hand; "+
			"use the build that made it, or have Fanfare begin anew, which deletes all frames: as the schema's owner run DROP SCHEMA %s CASCADE, then fanfare migrate%s",
			schema, strings.Join(missing, ", "), pgx.Identifier{schema}.Sanitize(), schemaFlag(schema))
	}
	return nil
}

// objectsSQL lists what the store uses of schema $1: object has tables and views
// with the rights to them, func the functions. oid is null of what is not there.
const objectsSQL = `
	with object as (
	  select c.oid, v.name, string_to_array(v.rights, ' ') as rights
	    from (values ('streams', 'select update delete'), ('channel_frames', 'select delete'), ('retired_streams', 'select update delete'),
	                 ('idempotency_keys', 'select delete'), ('policies', 'select'), ('settings', 'select'),
	                 ('announcement_keys', 'select'), ('stream_states', 'select')) v(name, rights)
	    left join pg_class c on c.relname = v.name and c.relnamespace = (select oid from pg_namespace where nspname = $1)),
	func as (
	  select to_regprocedure(quote_ident($1) || '.' || signature)::oid as oid, signature
	    from unnest(array['_origin()', '_remember_origin()', '_publish(text[],text[],bytea[],text[],text[],text[],text[],bigint[],bigint[],boolean[],text,int)',
	                      '_batch_frame(text,text,bytea,text,text,text,uuid,int)',
	                      '_batch_frames(text[],text[],int[],bigint[],uuid[],int[],int[],uuid[],text[],text[],bytea[],text[],text[],text[],int)',
	                      '_close(text,text,bigint,int)', '_await_stream(text,text,int)', '_held_streams(text[],text[])', '_trim(text,text)', '_policy(text)', '_use_interval()',
	                      '_set_policy(text,boolean,bigint,interval,interval,int)', '_set_default_backlog(bigint,int)']) signature)`

// queryNames runs a query about schema that returns texts.
func queryNames(ctx context.Context, q querier, sql, schema string) ([]string, error) {
	// An error of Query is returned by CollectRows.
	rows, _ := q.Query(ctx, sql, schema)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, explainConnect(err)
	}
	return names, nil
}

func rightsError(ctx context.Context, q querier, schema string, missing []string) error {
	role := "the role"
	// Without the name the advice is still right.
	_ = q.QueryRow(ctx, `select current_user`).Scan(&role)
	s, r := pgx.Identifier{schema}.Sanitize(), pgx.Identifier{role}.Sanitize()
	return fmt.Errorf("role %q lacks %s in schema %q; as the schema's owner run: "+
		"GRANT USAGE ON SCHEMA %s TO %s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %s TO %s; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO %s",
		role, strings.Join(missing, ", "), schema, s, r, s, r, s, r)
}

// SQLSTATE codes, appendix A of the PostgreSQL manual.
const (
	codeInvalidPassword       = "28P01"
	codeInvalidAuthorization  = "28000"
	codeInvalidCatalogName    = "3D000"
	codeProtocolViolation     = "08P01"
	codeInsufficientPrivilege = "42501"
	codeLockNotAvailable      = "55P03"
	codeDeadlockDetected      = "40P01"
	codeSerializationFailure  = "40001"
	codeFeatureNotSupported   = "0A000"
	codeInvalidStatementName  = "26000"
)

// hasCode reports whether err is an error of the server with that SQLSTATE.
func hasCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// explainConnect says what to do about an error met while connecting. Neither
// the server's messages nor pgx's contain a password.
func explainConnect(err error) error {
	user, database := "", ""
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		user, database = connect.Config.User, connect.Config.Database
	}
	switch {
	case hasCode(err, codeInvalidPassword), hasCode(err, codeInvalidAuthorization):
		return fmt.Errorf("PostgreSQL refused the login of role %q; check the URL's user and password, and pg_hba.conf: %w", user, err)
	case hasCode(err, codeInvalidCatalogName):
		return fmt.Errorf("database %q does not exist; create it with CREATE DATABASE, ENCODING 'UTF8': %w", database, err)
	case hasCode(err, codeInsufficientPrivilege):
		return fmt.Errorf("role %q may not connect to database %q; GRANT CONNECT ON DATABASE: %w", user, database, err)
	case hasCode(err, codeProtocolViolation):
		return fmt.Errorf("the server refused the connection's parameters, as connection poolers do; use the direct URL of PostgreSQL: %w", err)
	case isTLSAlert(err):
		return fmt.Errorf("PostgreSQL refused the TLS session; check the URL's sslcert and sslkey: %w", err)
	}
	return fmt.Errorf("%w: PostgreSQL cannot be reached; check the URL's host and port and that the server runs: %w", backlog.ErrUnavailable, err)
}
