package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// TestSchemaVersion: the binary's version is its newest migration's, and that is
// what the migrations record.
func TestSchemaVersion(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("migrations: %v, %v", files, err)
	}
	if newest := fmt.Sprintf("migrations/%05d_", schemaVersion); !strings.HasPrefix(files[len(files)-1], newest) {
		t.Errorf("the newest migration is %s, but schemaVersion is %d", files[len(files)-1], schemaVersion)
	}
	u := pgtest.NewDatabase(t)
	migrate(t, u, "")
	if v := query[int](t, u, "select schema_version from fanfare.settings"); v != schemaVersion {
		t.Errorf("the migrated schema says version %d, want %d", v, schemaVersion)
	}
	if v := query[int](t, u, "select max(version_id) from fanfare.goose_db_version"); v != schemaVersion {
		t.Errorf("the last applied migration is %d, want %d", v, schemaVersion)
	}
}

// TestConcurrentMigrations: replicas that start together on an empty database
// all come up.
func TestConcurrentMigrations(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	schemas := []string{"fanfare", "other", `We"ird; -- 'x' %s $1 é😀`, `back\slash "fanfare."`}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if err := Migrate(t.Context(), u, schemas[i%len(schemas)], discard); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, schema := range schemas {
		table := pgx.Identifier{schema, "settings"}.Sanitize()
		if n := query[int](t, u, "select count(*) from "+table); n != 1 {
			t.Errorf("schema %q has %d rows of settings, want 1", schema, n)
		}
		if c := query[string](t, u, "select notify_channel from "+table); c != "fanfare_"+schema {
			t.Errorf("schema %q has notify channel %q", schema, c)
		}
	}
	if n := query[int](t, u, "select count(*) from pg_class where relnamespace = 'public'::regnamespace"); n != 0 {
		t.Errorf("%d objects were made outside the schemas", n)
	}
	if n := query[int](t, u, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); n != 0 {
		t.Errorf("%d advisory locks are still held", n)
	}
}

// TestLongSchemaNames: a name whose notify channel would be cut is refused
// before anything is created; the longest one that fits works.
func TestLongSchemaNames(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	long := strings.Repeat("s", 50)
	wantError(t, Migrate(t.Context(), u, long, discard), "notify channel of 64 bytes", "at most 49")
	if n := query[int](t, u, "select count(*) from pg_namespace where nspname like 's%s'"); n != 0 {
		t.Error("the refused schema was created")
	}
	migrate(t, u, long[1:])
	checkWorks(t, Config{URL: u, Schema: long[1:]})
}

// checkWorks uses every part of a store.
func checkWorks(t *testing.T, cfg Config) *testStore {
	t.Helper()
	s := openStoreOn(t, cfg)
	stream := backlog.StreamName{Channel: "works"}
	listener := pgtest.Dial(t, cfg.URL)
	pgtest.Exec(t, listener, "listen "+pgx.Identifier{s.NotifyChannel()}.Sanitize())
	for want := uint64(1); want <= 3; want++ {
		o, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: stream, Payload: []byte("x")})
		if err != nil || o.Position.Sequence != want {
			t.Fatalf("published at %s, %v", o.Position, err)
		}
	}
	if _, err := listener.WaitForNotification(t.Context()); err != nil {
		t.Errorf("no announcement: %v", err)
	}
	result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: stream, MaxFrames: 5, MaxBytes: 5}})
	if err != nil || len(result.Streams[0].Frames) != 3 {
		t.Errorf("loaded %v, %v", result, err)
	}
	page, err := s.ReadPage(t.Context(), result.Origin, backlog.PageRequest{Stream: stream, MaxFrames: 5, MaxBytes: 5})
	if err != nil || len(page.Frames) != 3 {
		t.Errorf("read %v, %v", page, err)
	}
	states, err := s.ListStreams(t.Context(), "", backlog.StreamName{}, 10)
	if err != nil || len(states) != 1 {
		t.Errorf("listed %v, %v", states, err)
	}
	if keys, err := s.AnnouncementKeys(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if _, err := s.CloseStream(t.Context(), stream, nil); err != nil {
		t.Error(err)
	}
	if err := s.janitor.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	return s
}

func TestOddSchemaNames(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	for _, schema := range []string{`a"b`, `Fanfare`, `public`, `select`, `"; drop schema fanfare; --`, "a.b", "😀", " ", "fanfare.x", "user"} {
		migrate(t, u, schema)
		checkWorks(t, Config{URL: u, Schema: schema}).stop()
	}
}

// TestTwoSchemas: installations in one database see nothing of each other.
func TestTwoSchemas(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	migrate(t, u, "fanfare")
	migrate(t, u, "second")
	checkWorks(t, Config{URL: u, Schema: "second"})
	first := openStoreOn(t, Config{URL: u})
	states, err := first.ListStreams(t.Context(), "", backlog.StreamName{}, 10)
	if err != nil || len(states) != 0 {
		t.Errorf("the first schema has streams of the second: %v, %v", states, err)
	}
	checkWorks(t, Config{URL: u})
	a, err := first.AnnouncementKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := openStoreOn(t, Config{URL: u, Schema: "second"}).AnnouncementKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if string(a[0].Secret) == string(b[0].Secret) {
		t.Error("two schemas sign with the same key")
	}
}

// TestMigrationGivesWay: a migration that waits for a lock stops everybody who
// comes after it, so it gives up soon and tries again.
func TestMigrationGivesWay(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	foreign := pgtest.Dial(t, u)
	pgtest.Exec(t, foreign, "create schema fanfare")
	pgtest.Exec(t, foreign, "begin")
	pgtest.Exec(t, foreign, "create table fanfare.settings()")
	done := make(chan error, 1)
	go func() { done <- Migrate(t.Context(), u, "", discard) }()
	waits := func() bool {
		return query[bool](t, u, `select exists (select from pg_stat_activity where datname = current_database()
			and application_name = 'fanfare-migrate' and wait_event_type = 'Lock')`)
	}
	eventually(t, "the migration waits", waits)
	eventually(t, "the migration gives way", func() bool { return !waits() })
	pgtest.Exec(t, foreign, "rollback")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	openStoreOn(t, Config{URL: u})
}

func TestMigrateRefusesStandbys(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	u := server.URL("postgres")
	migrate(t, u, "")
	standby := server.Standby().URL("postgres")
	for _, err := range []error{openError(t, Config{URL: standby}), Migrate(t.Context(), standby, "", discard)} {
		wantError(t, err, "in recovery", "target_session_attrs=read-write")
	}
}

// A role's defaults must not change what migrations and transactions do.
func TestRoleDefaults(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	execute(t, u, `do $$ begin
		execute format('alter database %I set default_transaction_isolation = serializable', current_database());
		execute format('alter database %I set search_path = nowhere', current_database());
		execute format('alter database %I set statement_timeout = ''60s''', current_database());
		execute format('alter database %I set datestyle = ''German''', current_database());
		execute format('alter database %I set intervalstyle = ''sql_standard''', current_database());
		execute format('alter database %I set bytea_output = ''escape''', current_database());
		execute format('alter database %I set timezone = ''Pacific/Chatham''', current_database());
		execute format('alter database %I set standard_conforming_strings = off', current_database());
		execute format('alter database %I set backslash_quote = off', current_database());
		execute format('alter database %I set client_encoding = LATIN1', current_database());
		execute format('alter database %I set lock_timeout = ''1ms''', current_database());
		execute format('alter database %I set transform_null_equals = on', current_database());
		end $$`)
	migrate(t, u, "")
	s := checkWorks(t, Config{URL: u})
	for range 3 {
		if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: backlog.StreamName{Channel: "again"}, IdempotencyKey: "k"}); err != nil {
			t.Error(err)
		}
	}
	// Read as LATIN1, the name's two bytes would be two characters, and another
	// stream than the one that announcements and subscribers name.
	name := backlog.StreamName{Channel: "é"}
	if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: name, Headers: map[string]string{"é": "ü"}}); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, u, `select count(*) from fanfare.streams where convert_to(channel, 'UTF8') = decode('c3a9', 'hex')`); n != 1 {
		t.Error("the name was converted")
	}
	got, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: name, MaxFrames: 1, MaxBytes: 1}})
	if err != nil || len(got.Streams[0].Frames) != 1 || got.Streams[0].Frames[0].Headers["é"] != "ü" {
		t.Errorf("loaded %+v, %v", got, err)
	}
}

func TestMigrateEndsWithItsContext(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	holder := pgtest.Dial(t, u)
	pgtest.Exec(t, holder, `select pg_advisory_lock(`+migrationLockKey+`)`, DefaultSchema)
	// Long enough to have connected, on a busy machine, too.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := Migrate(ctx, u, "", discard)
	if !errors.Is(err, ctx.Err()) || ctx.Err() == nil {
		t.Errorf("got %v, want the context's error", err)
	}
	wantError(t, err, "another migration of the schema is running")
}
