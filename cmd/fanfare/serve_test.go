package main

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// edit returns a database URL with another part.
func edit(t *testing.T, databaseURL string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return u.String()
}

// Errors of the configuration end the server at once, with one line that names
// the cause and no secret.
func TestServeFailsFast(t *testing.T) {
	own := pgtest.Start(t)
	database := own.NewDatabase(t)
	execute(t, database, `create role locked_out login password 'right'`)
	requirePassword(t, own, database)
	standby := own.Standby()
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"wrong password", []string{"--store", edit(t, database, func(u *url.URL) { u.User = url.UserPassword("locked_out", "hunter2") })}, "refused the login of role \"locked_out\""},
		{"missing database", []string{"--store", own.URL("nowhere")}, `database "nowhere" does not exist`},
		{"missing migrations", []string{"--store", database, "--migrate", "off"}, `schema "fanfare" is not migrated; run fanfare migrate`},
		{"replica", []string{"--store", standby.URL("postgres")}, "in recovery"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := command(t, "", append([]string{"serve", "--grpc", "127.0.0.1:0"}, c.args...)...)
			if r.code != exitFailed || r.stdout != "" {
				t.Errorf("exit code %d, stdout %q", r.code, r.stdout)
			}
			last := r.stderr[strings.LastIndex(strings.TrimSuffix(r.stderr, "\n"), "\n")+1:]
			if !strings.HasPrefix(last, "fanfare serve: ") || !strings.Contains(last, c.want) {
				t.Errorf("the last line is %q, want %q", last, c.want)
			}
			if strings.Contains(r.stderr, "hunter2") {
				t.Errorf("a password is in %q", r.stderr)
			}
		})
	}
}

// requirePassword makes a server ask the role locked_out for its password.
func requirePassword(t *testing.T, server *pgtest.Server, databaseURL string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var path string
	if err := conn.QueryRow(t.Context(), `select current_setting('hba_file')`).Scan(&path); err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The first rule that matches counts. The file keeps its owner.
	rules = append([]byte("host all locked_out 127.0.0.1/32 scram-sha-256\n"), rules...)
	if err := os.WriteFile(path, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	server.Restart("fast")
}

// A database that is down is waited for: the process is alive, not ready, says
// so, and becomes ready by itself.
func TestServeWaitsForTheDatabase(t *testing.T) {
	own := pgtest.Start(t)
	database := own.NewDatabase(t)
	own.Stop("fast")
	address := "unix://" + filepath.Join(t.TempDir(), "fanfare.sock")
	s := startUnready(t, database, "--grpc", address)
	s.stderr.await(t, `waiting for the database.*cannot be reached`)
	if r := command(t, "", "health", "liveness", "--server", address); r.code != exitOK {
		t.Errorf("liveness while waiting: %+v", r)
	}
	if r := command(t, "", "health", "--server", address); r.code != exitFailed || r.stdout != "NOT_SERVING\n" {
		t.Errorf("readiness while waiting: %+v", r)
	}
	if r := command(t, "", "publish", "c", "s", "--data", "x", "--server", address); r.code != exitFailed || !strings.Contains(r.stderr, "waits for its database") {
		t.Errorf("publish while waiting: %+v", r)
	}
	for _, args := range [][]string{{"subscribe", "c", "s"}, {"streams"}} {
		if r := command(t, "", append(args, "--server", address)...); r.code != exitFailed || !strings.Contains(r.stderr, "waits for its database") || strings.Contains(r.stderr, "stored") {
			t.Errorf("%s while waiting: %+v", args[0], r)
		}
	}
	if strings.Contains(s.stderr.String(), "nothing was stored") {
		t.Error("the log speaks of storing although nothing was to be stored")
	}
	own.StartAgain()
	s.awaitReady()
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", address)
	mustRun(t, "", "health", "--server", address)
}

// A signal while waiting for the database is an orderly end.
func TestServeInterruptedWhileWaiting(t *testing.T) {
	s := startUnready(t, "postgres://postgres@"+deadServer+"/db")
	s.stderr.await(t, "waiting for the database")
	s.interrupt()
	if code := s.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestServeOnAUnixSocket(t *testing.T) {
	database := pgtest.NewDatabase(t)
	path := filepath.Join(t.TempDir(), "fanfare.sock")
	address := "unix://" + path
	leaveStaleSocket(t, path)
	s := startServer(t, database, "--grpc", address)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if s.address != address {
		t.Errorf("announced at %s", s.address)
	}
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", address)

	second := command(t, "", "serve", "--store", database, "--grpc", address)
	if second.code != exitFailed || !strings.Contains(second.stderr, "another process serves on "+path) {
		t.Errorf("a second server on the socket: %+v", second)
	}
	s.interrupt()
	if code := s.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file := command(t, "", "serve", "--store", database, "--grpc", address)
	if file.code != exitFailed || !strings.Contains(file.stderr, "is not a socket") {
		t.Errorf("a file instead of a socket: %+v", file)
	}
}

// leaveStaleSocket leaves a socket as a killed process does.
func leaveStaleSocket(t *testing.T, path string) {
	t.Helper()
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	lis.SetUnlinkOnClose(false)
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestServeOnAnAddressInUse(t *testing.T) {
	database := pgtest.NewDatabase(t)
	s := startServer(t, database)
	r := command(t, "", "serve", "--store", database, "--grpc", s.address)
	if r.code != exitFailed || !strings.Contains(r.stderr, s.address+" is in use by another process") {
		t.Errorf("%+v", r)
	}
}

func TestServeRemote(t *testing.T) {
	s := startEmbedded(t, "--grpc", "0.0.0.0:0", "--insecure-allow-remote")
	s.stderr.await(t, "serving without authentication")
	mustRun(t, "", "health", "--server", s.address)
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.8.9.1": true, "::1": true, "localhost": true,
		"": false, "0.0.0.0": false, "::": false, "192.0.2.1": false,
	} {
		if got, err := isLoopback(t.Context(), host); got != want || err != nil {
			t.Errorf("isLoopback(%q) is %t, %v", host, got, err)
		}
	}
}

// Two replicas: what is published through one is received on the other.
func TestTwoReplicas(t *testing.T) {
	database := pgtest.NewDatabase(t)
	a, b := startServer(t, database), startServer(t, database)
	r := start(t, nil, "subscribe", "c", "s", "--count", "2", "--server", b.address)
	r.stderr.await(t, "caught up")
	mustRun(t, "", "publish", "c", "s", "--data", "through A", "--server", a.address)
	execute(t, database, `select fanfare.publish('c', 's', 'by SQL')`)
	if code := r.end(); code != exitOK || r.stdout.String() != "through A\nby SQL\n" {
		t.Errorf("exit code %d, received %q", code, r.stdout)
	}
}

// What is printed of a database has no secret, and a budget of connections that
// is too small is told at start.
func TestServeOnPostgreSQL(t *testing.T) {
	database := edit(t, pgtest.NewDatabase(t), func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "hunter2") })
	s := startServer(t, database, "--replicas", "1000")
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	if out := s.stdout.String(); !strings.HasPrefix(out, "data in postgres://"+u.Host+u.Path+", schema fanfare\nhealth on ") {
		t.Errorf("printed %q", out)
	}
	s.stderr.await(t, "the replicas may need more connections")
	if strings.Contains(s.stdout.String()+s.stderr.String(), "hunter2") {
		t.Error("a password was printed")
	}
}

// Servers of two schemas of one database do not see each other's frames.
func TestSchemas(t *testing.T) {
	database := pgtest.NewDatabase(t)
	if out := mustRun(t, "", "migrate", "--store", database, "--schema", `Odd "name"`); !strings.Contains(out, "is up to date") {
		t.Errorf("migrate printed %q", out)
	}
	odd := startServer(t, database, "--schema", `Odd "name"`, "--migrate", "off")
	usual := startServer(t, database)
	mustRun(t, "", "publish", "c", "s", "--data", "odd", "--server", odd.address)
	mustRun(t, "", "publish", "c", "s", "--data", "usual", "--server", usual.address)
	if out := mustRun(t, "", "subscribe", "c", "s", "--count", "1", "--server", odd.address); out != "odd\n" {
		t.Errorf("received %q", out)
	}
}

// Migrating again, and at the same time, does nothing.
func TestMigrateTogether(t *testing.T) {
	database := pgtest.NewDatabase(t)
	var all []*running
	for range 4 {
		all = append(all, start(t, nil, "migrate", "--store", database))
	}
	for _, r := range all {
		if code := r.end(); code != exitOK {
			t.Errorf("exit code %d: %s", code, r.stderr)
		}
	}
}

// An explicit backlog becomes the schema's default, for every server; leaving it
// out changes nothing.
func TestBacklogOfTheSchema(t *testing.T) {
	database := pgtest.NewDatabase(t)
	first := startServer(t, database, "--backlog", "2")
	first.stderr.await(t, `default backlog was changed.*backlog=2`)
	second := startServer(t, database)
	mustRun(t, "1\n2\n3\n4\n5\n", "publish", "c", "s", "--lines", "--server", second.address)
	if out := mustRun(t, "", "subscribe", "c", "s", "--count", "2", "--server", second.address); out != "4\n5\n" {
		t.Errorf("replayed %q", out)
	}
}

// Frames of the largest size pass, and the operator is told what they ask of
// other clients.
func TestLargestFrames(t *testing.T) {
	s := startEmbedded(t, "--max-frame-bytes", "4194304")
	s.stderr.await(t, "must raise their limit")
	payload := strings.Repeat("0123456789abcdef", 4194304/16)
	mustRun(t, payload, "publish", "c", "s", "--server", s.address)
	if out := mustRun(t, "", "subscribe", "c", "s", "--count", "1", "--server", s.address); out != payload+"\n" {
		t.Errorf("%d bytes came back", len(out))
	}
	if r := command(t, payload+"x", "publish", "c", "s", "--server", s.address); r.code != exitFailed || !strings.Contains(r.stderr, "4194304") {
		t.Errorf("one byte more: exit code %d, %s", r.code, r.stderr)
	}
}

// A subscriber of a draining server is told where to go on, fails, and says so.
func TestSubscriberOfADrainingServer(t *testing.T) {
	s := startEmbedded(t)
	position := strings.TrimSpace(mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address))
	r := start(t, nil, "subscribe", "c", "s", "--server", s.address)
	r.stderr.await(t, "caught up")
	s.interrupt()
	if code := r.end(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	r.stderr.await(t, "the server ends this subscription after "+position)
	r.stderr.await(t, "continue with --from "+position)
	if code := s.end(); code != exitOK {
		t.Errorf("the server's exit code is %d", code)
	}
}

// While the drain is delayed everything is still served, but not SERVING.
func TestDrainDelay(t *testing.T) {
	const delay = 4 * time.Second // long enough for three commands on a busy machine
	s := startEmbedded(t, "--drain-delay", delay.String())
	began := time.Now()
	s.interrupt()
	eventually(t, "NOT_SERVING", func() bool {
		return command(t, "", "health", "--server", s.address).stdout == "NOT_SERVING\n"
	})
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	mustRun(t, "", "health", "liveness", "--server", s.address)
	if code := s.end(); code != exitOK || time.Since(began) < delay {
		t.Errorf("exit code %d after %s", code, time.Since(began))
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}
