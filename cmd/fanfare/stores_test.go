package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// launchAtHome starts a server on free ports with nothing configured but the
// environment.
func launchAtHome(t *testing.T, env ...string) *process {
	t.Helper()
	command := binaryCommand(t, "serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain-delay", "0")
	command.Env = env
	p := launch(t, command)
	p.awaitReady()
	return p
}

// With nothing configured a server keeps what is published in the user's data
// directory, says where, and has it after a restart.
func TestServeWithNothingConfigured(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, ".local", "share", "fanfare", "fanfare.db")
	first := launchAtHome(t, "HOME="+home)
	banner := strings.Split(first.stdout.String(), "\n")
	if len(banner) != 5 || banner[0] != "data in "+file || !strings.HasPrefix(banner[1], "health on http://127.0.0.1:") ||
		!strings.HasPrefix(banner[2], "console on http://127.0.0.1:") ||
		banner[3] != "serving on "+first.address+"; try: fanfare subscribe chat/messages lobby --server "+first.address {
		t.Errorf("printed %q", banner)
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory: %v, %v", info, err)
	}
	before := strings.TrimSpace(mustRun(t, "", "publish", "c", "s", "--data", "before", "--server", first.address))
	first.signal(syscall.SIGTERM)
	if err := first.end(); err != nil {
		t.Errorf("the server ended with %v", err)
	}

	second := launchAtHome(t, "HOME="+home)
	mustRun(t, "", "publish", "c", "s", "--data", "after", "--server", second.address)
	r := command(t, "", "subscribe", "c", "s", "--from", before, "--count", "1", "--server", second.address)
	if r.stdout != "after\n" || strings.Contains(r.stderr, "gap") {
		t.Errorf("resumed after the restart: %+v", r)
	}
	if out := mustRun(t, "", "subscribe", "c", "s", "--count", "2", "--server", second.address); out != "before\nafter\n" {
		t.Errorf("replayed %q", out)
	}
}

// The data directory is the given one, or XDG's, or below the home directory.
func TestDataDir(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		given string
		env   map[string]string
		want  string
	}{
		{"/given", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/given"},
		{"given", nil, filepath.Join(here, "given")},
		{"", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/x"}, "/x/fanfare"},
		{"", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "x"}, "/h/.local/share/fanfare"},
		{"", map[string]string{"HOME": "/h", "XDG_DATA_HOME": ""}, "/h/.local/share/fanfare"},
		{"", map[string]string{"HOME": "h"}, ""},
		{"", nil, ""},
	} {
		got, err := dataDir(c.given, c.env)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("dataDir(%q, %v) is %q, %v; want %q", c.given, c.env, got, err, c.want)
		}
	}
}

// Every form of an embedded store's URL names its file.
func TestEmbeddedStores(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, c := range []struct{ store, file string }{
		{"sqlite:", filepath.Join(dir, "data", "fanfare.db")},
		{"sqlite:own.db", filepath.Join(dir, "own.db")},
		{"sqlite:" + filepath.Join(dir, "odd name?%20#.db"), filepath.Join(dir, "odd name?%20#.db")},
		{"sqlite://" + filepath.Join(dir, "slashes.db"), filepath.Join(dir, "slashes.db")},
	} {
		t.Run(c.store, func(t *testing.T) {
			var more []string
			if c.store == "sqlite:" {
				more = []string{"--data-dir", "data"}
			}
			s := startServer(t, c.store, more...)
			mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
			if out := s.stdout.String(); !strings.HasPrefix(out, "data in "+c.file+"\n") {
				t.Errorf("printed %q", out)
			}
			if info, err := os.Stat(c.file); err != nil || info.Size() == 0 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
	t.Run("memory", func(t *testing.T) {
		s := startServer(t, "sqlite::memory:")
		mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
		if out := s.stdout.String(); !strings.HasPrefix(out, "data in memory, gone when this process ends\n") {
			t.Errorf("printed %q", out)
		}
	})
	if left, err := filepath.Glob(filepath.Join(dir, "*memory*")); err != nil || left != nil {
		t.Errorf("memory is in %q, %v", left, err)
	}
}

// What an embedded store cannot do is refused, with the file and the option.
func TestEmbeddedStoreRefusals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "fanfare.db")
	home := []string{"HOME=" + dir}
	for _, c := range []struct {
		name string
		env  []string
		args []string
		want []string
	}{
		{"replicas", nil, []string{"--data-dir", dir, "--replicas", "2"}, []string{"--replicas 2", file, "--store postgres://"}},
		{"replicas on a file", home, []string{"--store", "sqlite:" + file, "--replicas", "2"}, []string{"--replicas 2", file}},
		{"no replicas", home, []string{"--replicas", "0"}, []string{"--replicas must be at least 1"}},
		{"schema", nil, []string{"--data-dir", dir, "--schema", "x"}, []string{"--schema is for PostgreSQL", file}},
		{"schema variable", []string{"FANFARE_SCHEMA=x"}, []string{"--data-dir", dir}, []string{"--schema is for PostgreSQL", file}},
		{"listener", nil, []string{"--data-dir", dir, "--listen-database-url", "postgres://h/d"}, []string{"--listen-database-url is for PostgreSQL", file}},
		{"migrate off", nil, []string{"--data-dir", dir, "--migrate", "off"}, []string{"--migrate off is for PostgreSQL", file}},
		{"no home", nil, nil, []string{"HOME is not set", "--data-dir", "--store"}},
		{"relative homes", []string{"HOME=h", "XDG_DATA_HOME=x"}, nil, []string{`HOME is "h", which is not an absolute path`, "--data-dir"}},
		{"no data directory", home, []string{"--data-dir", ""}, []string{"--data-dir must not be empty"}},
		{"a file and a directory", home, []string{"--data-dir", dir, "--store", "sqlite:" + file}, []string{"--data-dir is where fanfare.db is, and --store names another place"}},
		{"a database and a directory", home, []string{"--data-dir", dir, "--store", "postgres://h/d"}, []string{"--store names another place"}},
		{"memory and a directory", home, []string{"--data-dir", dir, "--store", "sqlite::memory:"}, []string{"--store names another place"}},
		{"memory misspelt", home, []string{"--store", "sqlite:memory:"}, []string{"did you mean sqlite::memory:?"}},
		{"memory misspelt otherwise", home, []string{"--store", "sqlite::memory"}, []string{"did you mean sqlite::memory:?"}},
		{"URI of SQLite", home, []string{"--store", "sqlite:file:x?mode=ro"}, []string{"sqlite:file:x?mode=ro", "URIs of SQLite and their parameters are not taken: write sqlite:PATH"}},
		{"ambiguous", home, []string{"--store", "sqlite://fanfare.db"}, []string{"sqlite://fanfare.db is ambiguous", "sqlite:fanfare.db"}},
		{"one address for both", home, []string{"--grpc", "127.0.0.1:7420", "--http", "127.0.0.1:7420"}, []string{"--grpc and --http are both 127.0.0.1:7420"}},
		{"remote HTTP", home, []string{"--http", "0.0.0.0:7480"}, []string{"--http 0.0.0.0:7480 would let other hosts connect", "--insecure-allow-remote"}},
		{"no HTTP port", home, []string{"--http", "127.0.0.1"}, []string{`--http "127.0.0.1" is neither host:port nor unix:///PATH`}},
		{"relative HTTP socket", home, []string{"--http", "unix://run/f.sock"}, []string{"--http", "absolute path"}},
		{"HTTP socket of gRPC's form", home, []string{"--http", "unix:/run/f.sock"}, []string{`--http "unix:/run/f.sock": a Unix socket is written unix:///PATH`}},
		{"unknown HTTP host", home, []string{"--http", "nosuchhost.invalid:7777"}, []string{`--http "nosuchhost.invalid:7777"`, "nosuchhost.invalid does not resolve"}},
		{"large HTTP port", home, []string{"--http", "127.0.0.1:99999"}, []string{`--http "127.0.0.1:99999": the port must be a number from 0 to 65535`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := commandWith(t, c.env, "", append([]string{"serve"}, c.args...)...)
			checkRefusal(t, r, exitUsage, append(c.want, "see fanfare serve --help"))
		})
	}
	// The environment may name a store for all commands.
	r := commandWith(t, append(home, "FANFARE_STORE=sqlite:"+dir), "", "serve", "--data-dir", "data")
	checkRefusal(t, r, exitFailed, []string{dir, "directory"})
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a refused command line left %v, %v", left, err)
	}
}

// checkRefusal checks that a server ended at once with one line, apart from its
// log.
func checkRefusal(t *testing.T, r result, code int, want []string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(r.stderr) {
		if !strings.HasPrefix(line, "time=") {
			lines = append(lines, line)
		}
	}
	if r.code != code || r.stdout != "" || len(lines) != 1 || !strings.HasPrefix(lines[0], "fanfare ") {
		t.Errorf("%+v, want exit code %d and one line", r, code)
	}
	for _, w := range want {
		if !strings.Contains(r.stderr, w) {
			t.Errorf("stderr %q does not contain %q", r.stderr, w)
		}
	}
}

// A second server on a file is told about the file, also if it would have the
// first one's ports.
func TestFileInUse(t *testing.T) {
	dir := t.TempDir()
	first := startProcess(t, "--data-dir", dir, "--drain-delay", "0")
	file := filepath.Join(dir, "fanfare.db")
	want := []string{file, "in use by another process", "--store sqlite:", "a server may be running on it already: fanfare health asks the one at 127.0.0.1:7420"}
	checkRefusal(t, command(t, "", "serve", "--data-dir", dir, "--grpc", first.address), exitFailed, append(want, "--data-dir"))
	checkRefusal(t, command(t, "", "serve", "--store", "sqlite:"+file, "--grpc", "127.0.0.1:0", "--http", "off"), exitFailed, want)
	checkRefusal(t, command(t, "", "migrate", "--store", "sqlite:"+file), exitFailed, want)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, command(t, "", "serve", "--store", "sqlite:"+link, "--grpc", "127.0.0.1:0", "--http", "off"), exitFailed, []string{file, "in use"})
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", first.address)

	first.signal(syscall.SIGTERM)
	if err := first.end(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	startServer(t, "", "--data-dir", dir)
}

// A file can be migrated before it is served. Memory cannot, and without a store
// nothing is made by mistake.
func TestMigrateEmbedded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fanfare.db")
	for range 2 {
		if out := mustRun(t, "", "migrate", "--store", "sqlite:"+file); out != file+" is up to date\n" {
			t.Errorf("printed %q", out)
		}
	}
	s := startServer(t, "sqlite:"+file)
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	checkRefusal(t, command(t, "", "migrate", "--store", "sqlite::memory:"), exitUsage, []string{"keeps nothing"})
	checkRefusal(t, command(t, "", "migrate", "--data-dir", t.TempDir()), exitUsage, []string{"--store is needed", "the embedded store is migrated by fanfare serve"})
	checkRefusal(t, command(t, "", "migrate", "--store", "sqlite:"+file, "--schema", "x"), exitUsage, []string{"--schema is for PostgreSQL", file})
}

// A port that somebody else has is named with the flag that chooses another.
func TestPortsInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	for flag, other := range map[string]string{"grpc": "http", "http": "grpc"} {
		r := command(t, "", "serve", "--data-dir", t.TempDir(), "--"+flag, address, "--"+other, "127.0.0.1:0")
		checkRefusal(t, r, exitFailed, []string{address + " is in use by another process", "choose another address with --" + flag})
	}
}

// The directory of a socket that is missing is named, not the socket's name while
// it is made.
func TestSocketWithoutDirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	address := "unix://" + filepath.Join(missing, "fanfare.sock")
	for flag, other := range map[string]string{"grpc": "http", "http": "grpc"} {
		r := command(t, "", "serve", "--data-dir", t.TempDir(), "--"+flag, address, "--"+other, "127.0.0.1:0")
		checkRefusal(t, r, exitFailed, []string{"--" + flag + " " + address + ": the directory " + missing + " does not exist"})
	}
}

// A place that cannot be written to is named, with what to do.
func TestPlacesThatCannotBeWritten(t *testing.T) {
	obstacle := filepath.Join(t.TempDir(), "obstacle")
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := command(t, "", "serve", "--data-dir", filepath.Join(obstacle, "data"))
	checkRefusal(t, r, exitFailed, []string{filepath.Join(obstacle, "data"), obstacle + ": not a directory", "--data-dir"})
	r = command(t, "", "serve", "--data-dir", obstacle)
	checkRefusal(t, r, exitFailed, []string{obstacle, "--data-dir"})
	r = command(t, "", "serve", "--store", "sqlite:"+filepath.Dir(obstacle))
	checkRefusal(t, r, exitFailed, []string{filepath.Dir(obstacle), "directory"})
	r = command(t, "", "serve", "--store", "sqlite:"+filepath.Join(filepath.Dir(obstacle), "missing", "fanfare.db"))
	checkRefusal(t, r, exitFailed, []string{"missing"})
}
