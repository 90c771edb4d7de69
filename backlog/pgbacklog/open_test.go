package pgbacklog

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// wantError fails the test unless err's message has all the parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %q, which lacks %q", err, part)
		}
	}
}

// withUser returns a URL with another user and password.
func withUser(t *testing.T, databaseURL, user, password string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// openError opens a store that cannot be opened and returns why.
func openError(t *testing.T, cfg Config) error {
	t.Helper()
	setDefault(&cfg.Logger, discard)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	store, err := Open(ctx, cfg)
	if err == nil {
		store.Close()
		t.Fatal("the store was opened")
	}
	return err
}

func TestOpenRefusesConfigurations(t *testing.T) {
	const u = "postgres://localhost/db"
	negative := int64(-1)
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "no database URL"},
		{Config{URL: u, Schema: strings.Repeat("s", 50)}, "at most 49 bytes"},
		{Config{URL: u, Schema: strings.Repeat("é", 25)}, "notify channel of 64 bytes"},
		{Config{URL: u, Schema: "a\x00b"}, "NUL"},
		{Config{URL: u, Schema: "a\xffb"}, "UTF-8"},
		{Config{URL: u, Schema: "pg_fanfare"}, "reserved"},
		{Config{URL: u, Schema: "information_schema"}, "reserved"},
		{Config{URL: u, Schema: "$user"}, "reserved"},
		{Config{URL: u, Backlog: &negative}, "backlog"},
		{Config{URL: u, MaxFrameBytes: backlog.MaxBatchBytes + 1}, "MaxFrameBytes"},
		{Config{URL: u, LoadConns: -1}, "LoadConns"},
	} {
		wantError(t, openError(t, tt.cfg), tt.want)
	}
}

// A message that repeats the URL, or what of it could not be parsed, ends up in
// logs.
func TestURLErrorsKeepSecrets(t *testing.T) {
	for _, u := range []string{
		"postgres://user:sec ret@host/db", "postgres://user:sec%zzret@host/db", "postgres://user:sec/ret@host/db", "postgres://user:secret@host:99999/db",
		"postgres://user:secret@host/db?sslmode=wrong", "host=x password=sec ret port=5432", "mysql://user:secret@host/db", "postgres://user:secret@host/db?connect_timeout=x",
	} {
		for what, err := range map[string]error{
			"open":    openError(t, Config{URL: u}),
			"migrate": Migrate(t.Context(), u, "", discard),
		} {
			wantError(t, err, "cannot be parsed")
			for _, secret := range []string{"sec", "ret@", "ret "} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%s: the error tells the password: %v", what, err)
				}
			}
		}
	}
}

func TestOpenExplainsWhatIsMissing(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	wantError(t, openError(t, Config{URL: u}), `"fanfare" is not migrated`, "fanfare migrate")
	wantError(t, openError(t, Config{URL: u, Schema: "shop"}), `"shop" is not migrated; run fanfare migrate --schema "shop"`)
	execute(t, u, "create schema fanfare")
	wantError(t, openError(t, Config{URL: u}), `"fanfare" is not migrated`)

	missing := strings.Replace(u, "fanfare_test_", "not_there_", 1)
	for _, err := range []error{openError(t, Config{URL: missing}), Migrate(t.Context(), missing, "", discard)} {
		wantError(t, err, "not_there_", "does not exist", "CREATE DATABASE")
	}
}

func TestOpenWithoutServer(t *testing.T) {
	t.Parallel()
	err := openError(t, Config{URL: "postgres://u:secret@127.0.0.1:1/db"})
	wantError(t, err, "cannot be reached")
	if !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("%v is not ErrUnavailable", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells the password: %v", err)
	}
}

// A replica that was starting when the database restarted ended for good, with
// "unexpected EOF": only a connection that could not be made counted as an outage,
// one that was lost between two statements did not.
func TestConnectionLostDuringAStart(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	proxy := pgtest.Proxy(t, u)
	migrate := func() error { return Migrate(t.Context(), proxy.URL(u), "", discard) }
	open := func() error { return openError(t, Config{URL: proxy.URL(u)}) }
	for _, tt := range []struct {
		start   func() error
		trigger string // in a statement whose answer is lost
	}{
		{migrate, "server_version_num"}, {migrate, "pg_backend_pid"}, {migrate, "pg_try_advisory_lock"}, {migrate, "pg_namespace"},
		{migrate, "goose_db_version"}, {migrate, "create table streams"},
		{open, "server_version_num"}, {open, "max_connections"}, {open, `"fanfare"."settings"`}, {open, "has_table_privilege"},
	} {
		if tt.trigger == "max_connections" {
			// From here on the schema is there.
			if err := migrate(); err != nil {
				t.Fatal(err)
			}
		}
		for _, end := range []func(){proxy.Cut, proxy.Reset} {
			held := proxy.HoldReply(tt.trigger)
			ended := make(chan error, 1)
			go func() { ended <- tt.start() }()
			select {
			case <-held:
				end()
			case err := <-ended:
				t.Fatalf("%q was never sent: %v", tt.trigger, err)
			case <-time.After(patience):
				t.Fatalf("%q was never sent", tt.trigger)
			}
			if err := <-ended; !errors.Is(err, backlog.ErrUnavailable) {
				t.Errorf("the answer to %q is lost: %v is not ErrUnavailable", tt.trigger, err)
			}
			proxy.Restore()
		}
	}
}

func TestOpenRefusesWrongPasswords(t *testing.T) {
	t.Parallel()
	// Readable by the server's user, unlike t.TempDir.
	dir, err := os.MkdirTemp("", "fanfare-hba-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "pg_hba.conf")
	rules := "host all postgres all trust\nhost all locked_out all reject\nhost all all all scram-sha-256\n"
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(file, []byte(rules), 0o644)); err != nil {
		t.Fatal(err)
	}
	server := pgtest.Start(t, "hba_file="+file)
	u := server.NewDatabase(t)
	execute(t, u, "create role somebody login password 'right'; create role locked_out login")
	for user, want := range map[string]string{"somebody": "refused the login", "locked_out": "refused the login"} {
		wrong := withUser(t, u, user, "s3cret")
		for _, err := range []error{openError(t, Config{URL: wrong}), Migrate(t.Context(), wrong, "", discard)} {
			wantError(t, err, want, user, "pg_hba.conf")
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error tells the password: %v", err)
			}
		}
	}
}

func TestOpenRefusesEncodings(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	name := query[string](t, u, "select current_database() || '_ascii'")
	execute(t, u, "create database "+name+" template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'")
	t.Cleanup(func() { execute(t, u, "drop database "+name+" with (force)") })
	ascii := strings.Replace(u, strings.TrimSuffix(name, "_ascii"), name, 1)
	for _, err := range []error{openError(t, Config{URL: ascii}), Migrate(t.Context(), ascii, "", discard)} {
		wantError(t, err, "SQL_ASCII", "ENCODING 'UTF8'")
	}
}

func TestOpenRefusesReadOnlyRoles(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, s.url, `do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$`)
	wantError(t, openError(t, Config{URL: s.url}), "read-only")
	// New connections of an open store notice, too.
	s.publishing.Reset()
	if err := s.Ping(t.Context()); !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("Ping returned %v, want ErrUnavailable", err)
	}
}

func TestServersAreJudged(t *testing.T) {
	good := server{version: 150018, release: "15.18", encoding: "UTF8"}
	for _, tt := range []struct {
		change  func(*server)
		err     string // "" if accepted
		warning string // "" if none
	}{
		{func(s *server) {}, "", ""},
		{func(s *server) { s.version, s.release = 140022, "14.22" }, "14.22; Fanfare needs 15", ""},
		{func(s *server) { s.version, s.release = 150016, "15.16" }, "", "mended_in=15.17"},
		{func(s *server) { s.version, s.release = 160012, "16.12" }, "", "mended_in=16.13"},
		{func(s *server) { s.version = 160013 }, "", ""},
		{func(s *server) { s.version, s.release = 170000, "17.0" }, "", "mended_in=17.9"},
		{func(s *server) { s.version, s.release = 180002, "18.2" }, "", "mended_in=18.3"},
		{func(s *server) { s.version, s.release = 190000, "19.0" }, "", ""},
		{func(s *server) { s.encoding = "LATIN1" }, "LATIN1", ""},
		{func(s *server) { s.recovery = true }, "in recovery", ""},
		{func(s *server) { s.readOnly = true }, "read-only", ""},
	} {
		s := good
		tt.change(&s)
		var log bytes.Buffer
		err := s.judge(slog.New(slog.NewTextHandler(&log, nil)))
		if tt.err != "" {
			wantError(t, err, tt.err)
		} else if err != nil {
			t.Errorf("%+v: %v", s, err)
		}
		if (tt.warning == "") != (log.Len() == 0) || !strings.Contains(log.String(), tt.warning) {
			t.Errorf("%+v: logged %q, want %q", s, log.String(), tt.warning)
		}
	}
}

// TestOpenNamesMissingRights follows the advice of the errors: with what they
// say the role can serve, without owning anything.
func TestOpenNamesMissingRights(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	migrate(t, u, "")
	role := query[string](t, u, "select current_database() || '_role'")
	execute(t, u, "create role "+role+" login password 'x'")
	t.Cleanup(func() { execute(t, u, "drop owned by "+role+"; drop role "+role) })
	limited := Config{URL: withUser(t, u, role, "x")}

	wantError(t, openError(t, limited), role, "usage of the schema", "GRANT USAGE ON SCHEMA")
	execute(t, u, "grant usage on schema fanfare to "+role)
	wantError(t, openError(t, limited), "select on settings")
	execute(t, u, "grant select on all tables in schema fanfare to "+role)
	wantError(t, openError(t, limited), "delete on channel_frames", "update on streams", "execute on _publish", "execute on _remember_origin", "GRANT EXECUTE ON ALL FUNCTIONS")
	execute(t, u, "grant select, insert, update, delete on all tables in schema fanfare to "+role+"; grant execute on all functions in schema fanfare to "+role)

	s := openStoreOn(t, limited)
	stream := backlog.StreamName{Channel: "rights"}
	if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: stream}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CloseStream(t.Context(), stream, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := backlog.Publish(t.Context(), s, backlog.Publication{Stream: stream, IdempotencyKey: "k"}); err != nil {
		t.Fatal(err)
	}
	execute(t, u, `update fanfare.settings set grace = '0', idempotency_window = '0'; select fanfare.set_policy('', true, 0, null, '1 microsecond')`)
	for range 2 { // the first empties the stream, the second removes it
		if err := s.janitor.sweep(t.Context()); err != nil {
			t.Errorf("sweep: %v", err)
		}
	}
	if n := query[int](t, u, `select (select count(*) from fanfare.streams) + (select count(*) from fanfare.retired_streams)
		+ (select count(*) from fanfare.channel_frames) + (select count(*) from fanfare.idempotency_keys)`); n != 0 {
		t.Errorf("%d rows are left after the sweep", n)
	}
	// Nothing is missing, so no rights to change the schema are needed.
	if err := Migrate(t.Context(), limited.URL, "", discard); err != nil {
		t.Errorf("migrate again: %v", err)
	}
	err := Migrate(t.Context(), limited.URL, "another", discard)
	wantError(t, err, "CREATE SCHEMA", "AUTHORIZATION")
}

func TestOpenChecksVersions(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	migrate(t, u, "")
	set := func(version, oldest int) {
		execute(t, u, `update fanfare.settings set schema_version = $1, oldest_binary = $2`, version, oldest)
	}
	set(schemaVersion+7, schemaVersion+1)
	for _, err := range []error{openError(t, Config{URL: u}), Migrate(t.Context(), u, "", discard)} {
		wantError(t, err, "has version 8", "this binary has version 1")
	}
	set(schemaVersion+7, schemaVersion) // an additive change: replicas can be upgraded one by one
	openStoreOn(t, Config{URL: u})
	migrate(t, u, "")
	set(schemaVersion-1, 0)
	wantError(t, versionError("fanfare", schemaVersion-1, 0), "not migrated")
	set(schemaVersion, schemaVersion)
	openStoreOn(t, Config{URL: u})

	execute(t, u, `alter schema fanfare rename to other`)
	wantError(t, openError(t, Config{URL: u, Schema: "other"}), "fanfare_other", "UPDATE")
}

// TestOpenNamesWhatTheSchemaLacks: schemas of unreleased builds say version 1,
// too. Serving began on them, and calls failed.
func TestOpenNamesWhatTheSchemaLacks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		change string
		want   string
	}{
		{"drop function fanfare._set_policy, fanfare._set_default_backlog",
			"lacks the function _set_policy(text,boolean,bigint,interval,interval,int), the function _set_default_backlog(bigint,int), although"},
		{"drop function fanfare._close; create function fanfare._close(text, text) returns int language sql return 1",
			"lacks the function _close(text,text,bigint,int), although"},
		{"drop view fanfare.stream_states", "lacks the table or view stream_states, although"},
	} {
		u := pgtest.NewDatabase(t)
		migrate(t, u, "Odd name")
		execute(t, u, strings.ReplaceAll(test.change, "fanfare.", `"Odd name".`))
		wantError(t, openError(t, Config{URL: u, Schema: "Odd name"}), test.want, `schema "Odd name"`, `DROP SCHEMA "Odd name" CASCADE`, `fanfare migrate --schema "Odd name"`)
	}
}

func TestMaxFrameBytes(t *testing.T) {
	t.Parallel()
	u := pgtest.NewDatabase(t)
	migrate(t, u, "")
	execute(t, u, `update fanfare.settings set max_frame_bytes = 10`)
	for limit, cfg := range map[int]Config{10: {URL: u}, 20: {URL: u, MaxFrameBytes: 20}} {
		s := openStoreOn(t, cfg)
		p := backlog.Publication{Stream: backlog.StreamName{Channel: "limit"}, Payload: make([]byte, limit)}
		if _, err := backlog.Publish(t.Context(), s, p); err != nil {
			t.Error(err)
		}
		p.Payload = append(p.Payload, 0)
		_, err := backlog.Publish(t.Context(), s, p)
		var refused *backlog.LimitError
		if !errors.As(err, &refused) {
			t.Errorf("a payload over the limit: %v", err)
		}
	}
}

func TestRunOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	eventually(t, "Run to begin", s.started.Load)
	wantError(t, s.Run(t.Context()), "twice")
}

func TestNotifyAndKeys(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	listener := pgtest.Dial(t, s.url)
	pgtest.Exec(t, listener, `listen "fanfare_probe"`)
	if err := s.Notify(t.Context(), "fanfare_probe", "hello"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := listener.WaitForNotification(ctx)
	if err != nil || n.Payload != "hello" {
		t.Errorf("got %v, %v", n, err)
	}
	keys, err := s.AnnouncementKeys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].ID == 0 || len(keys[0].Secret) != 32 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if s.NotifyChannel() != "fanfare_fanfare" {
		t.Errorf("the notify channel is %q", s.NotifyChannel())
	}
}

// A janitor that waits must not keep Run from ending.
func TestRunEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	eventually(t, "Run to begin", s.started.Load)
	began := time.Now()
	s.stop()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("the end took %v", d)
	}
	_, err := backlog.Publish(context.Background(), s, backlog.Publication{Stream: backlog.StreamName{Channel: "late"}})
	if !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("a publish after the end returned %v, want ErrUnavailable", err)
	}
}
