package main

import (
	"fmt"
	"strings"
	"testing"
)

// deadServer is an address where nothing listens: port 1 of the host.
const deadServer = "127.0.0.1:1"

// manyHeaders are the arguments for n headers.
func manyHeaders(n int) (args []string) {
	for i := range n {
		args = append(args, "--header", fmt.Sprintf("h%d=v", i))
	}
	return args
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		// want is what the one line on standard error must contain.
		want []string
	}{
		{"unknown command", []string{"sing"}, []string{`unknown command "sing"`, "fanfare --help"}},
		{"unknown flag", []string{"streams", "--colour"}, []string{"unknown flag: --colour", "fanfare streams --help"}},
		{"unknown shorthand", []string{"streams", "-x"}, []string{"unknown shorthand flag"}},
		{"no stream", []string{"publish"}, []string{"CHANNEL and SCOPE are needed", "fanfare publish --help"}},
		{"no scope", []string{"subscribe", "chat"}, []string{"CHANNEL and SCOPE", "an empty scope is ''"}},
		{"too much", []string{"close", "chat", "lobby", "now"}, []string{"got 3 arguments"}},
		{"empty channel", []string{"publish", "", "lobby"}, []string{"channel must not be empty"}},
		{"long channel", []string{"publish", strings.Repeat("c", 256), ""}, []string{"channel has 256 bytes, the limit is 255"}},
		{"control character", []string{"publish", "a\tb", ""}, []string{"U+0009"}},
		{"invalid UTF-8", []string{"publish", "a\xff", ""}, []string{"not valid UTF-8"}},
		{"data and file", []string{"publish", "c", "s", "--data", "x", "--file", "y"}, []string{"--data and --file exclude each other"}},
		{"data and lines", []string{"publish", "c", "s", "--data", "x", "--lines"}, []string{"--data and --lines exclude"}},
		{"file and lines", []string{"publish", "--lines", "c", "--file", "y", "s"}, []string{"--file and --lines exclude"}},
		{"lines and key", []string{"publish", "c", "s", "--lines", "--key", "k"}, []string{"--lines and --key exclude"}},
		{"ephemeral and key", []string{"publish", "c", "s", "--ephemeral", "--key", "k"}, []string{"--ephemeral and --key exclude"}},
		{"ephemeral and expected", []string{"publish", "c", "s", "--ephemeral", "--lines", "--expected", "0"}, []string{"exclude"}},
		{"lines and expected", []string{"publish", "c", "s", "--lines", "--expected", "0"}, []string{"--lines and --expected exclude"}},
		{"negative expectation", []string{"publish", "c", "s", "--data", "x", "--expected", "-1"}, []string{"--expected"}},
		{"header without value", []string{"publish", "c", "s", "--data", "x", "--header", "novalue"}, []string{`"novalue" is not NAME=VALUE`}},
		{"header twice", []string{"publish", "c", "s", "--data", "x", "--header", "a=1", "--header", "a=2"}, []string{"a is given twice"}},
		{"from and last", []string{"subscribe", "c", "s", "--from", "live", "--last", "3"}, []string{"--from and --last exclude"}},
		{"odd start", []string{"subscribe", "c", "s", "--from", "yesterday"}, []string{"--from is oldest, live or a position", "yesterday"}},
		{"position with sign", []string{"subscribe", "c", "s", "--from", "1--2"}, []string{"EPOCH-SEQUENCE"}},
		{"position with space", []string{"subscribe", "c", "s", "--from", " 1-2"}, []string{"EPOCH-SEQUENCE"}},
		{"position too large", []string{"subscribe", "c", "s", "--from", "1-9223372036854775808"}, []string{"below 2^63"}},
		{"streams with argument", []string{"streams", "chat"}, []string{`takes no arguments, got "chat"`}},
		{"version with argument", []string{"version", "1"}, []string{"takes no arguments"}},
		{"two services", []string{"health", "a", "b"}, []string{"at most one SERVICE"}},
		{"no UTF-8 in header", []string{"publish", "c", "s", "--data", "x", "--header", "a=\xff"}, []string{`--header has a value of "a" that is not valid UTF-8`}},
		{"no UTF-8 in header name", []string{"publish", "c", "s", "--data", "x", "--header", "\xff=a"}, []string{"--header is not valid UTF-8"}},
		{"no UTF-8 in key", []string{"publish", "c", "s", "--data", "x", "--key", "\xff"}, []string{"--key is not valid UTF-8"}},
		{"no UTF-8 in event type", []string{"publish", "c", "s", "--lines", "--event-type", "\xff"}, []string{"--event-type is not valid UTF-8"}},
		{"no UTF-8 in content type", []string{"publish", "c", "s", "--data", "x", "--content-type", "\xff"}, []string{"--content-type is not valid UTF-8"}},
		{"no UTF-8 in channel", []string{"streams", "--channel", "\xff"}, []string{"--channel is not valid UTF-8"}},
		{"no UTF-8 in service", []string{"health", "\xff"}, []string{"is not valid UTF-8"}},
		{"long channel of streams", []string{"streams", "--channel", strings.Repeat("c", 256)}, []string{"--channel has 256 bytes, the limit is 255"}},
		{"long key", []string{"publish", "c", "s", "--data", "x", "--key", strings.Repeat("k", 256)}, []string{"--key has 256 bytes, the limit is 255"}},
		{"long event type", []string{"publish", "c", "s", "--data", "x", "--event-type", strings.Repeat("t", 256)}, []string{"--event-type has 256 bytes"}},
		{"line break in content type", []string{"publish", "c", "s", "--data", "x", "--content-type", "a\nb"}, []string{"--content-type contains the control character U+000A"}},
		{"reserved event type", []string{"publish", "c", "s", "--data", "x", "--event-type", "fanfare.x"}, []string{`--event-type must not begin with "fanfare."`}},
		{"large headers", []string{"publish", "c", "s", "--data", "x", "--header", "a=" + strings.Repeat("v", 8192)}, []string{"--header has 8193 bytes, the limit is 8192"}},
		{"many headers", append([]string{"publish", "c", "s", "--data", "x"}, manyHeaders(33)...), []string{"--header has 33 entries, the limit is 32"}},
		{"large expectation", []string{"publish", "c", "s", "--data", "x", "--expected", "9223372036854775808"}, []string{"--expected must be below 2^63"}},
		{"one argument", []string{"publish", "c"}, []string{"got 1 argument ("}},
		{"negative timeout", []string{"streams", "--timeout", "-1s"}, []string{"--timeout must not be negative"}},
		{"long schema", []string{"serve", "--store", "postgres://h/d", "--schema", strings.Repeat("s", 50)}, []string{"PostgreSQL allows 63"}},
		{"long schema to migrate", []string{"migrate", "--store", "postgres://h/d", "--schema", strings.Repeat("s", 50)}, []string{"PostgreSQL allows 63"}},
		{"no schema", []string{"migrate", "--store", "postgres://h/d", "--schema", ""}, []string{"--schema must not be empty"}},
		{"bad URL", []string{"serve", "--store", "postgres://u:secret@host:port/db"}, []string{"cannot be parsed"}},
		{"bad URL to migrate", []string{"migrate", "--store", "postgres://u:secret@host:port/db"}, []string{"cannot be parsed"}},
		{"bad URL to listen", []string{"serve", "--store", "postgres://h/d", "--listen-database-url", "postgres://u:secret@host:port/db"}, []string{"--listen-database-url: ", "cannot be parsed"}},
		{"no store to migrate", []string{"migrate"}, []string{"--store is needed", "FANFARE_STORE", "postgres://"}},
		{"another store", []string{"serve", "--store", "mysql://u:secret@h/d"}, []string{"--store must have the form postgres://"}},
		{"migrate mode", []string{"serve", "--store", "postgres://h/d", "--migrate", "perhaps"}, []string{`--migrate "perhaps" is not auto or off`}},
		{"negative backlog", []string{"serve", "--store", "postgres://h/d", "--backlog", "-1"}, []string{"--backlog must not be negative"}},
		{"negative delay", []string{"serve", "--store", "postgres://h/d", "--drain-delay", "-1s"}, []string{"--drain-delay must not be negative"}},
		{"young streams", []string{"serve", "--store", "postgres://h/d", "--max-stream-age", "999ms"}, []string{"--max-stream-age must be at least 1s, or 0 for none"}},
		{"negative age", []string{"serve", "--store", "postgres://h/d", "--max-stream-age", "-1s"}, []string{"--max-stream-age must be at least 1s"}},
		{"no subscriptions", []string{"serve", "--store", "postgres://h/d", "--max-subscriptions", "0"}, []string{"--max-subscriptions must be from 1 to 10000000"}},
		{"no subscriptions of sessions", []string{"serve", "--store", "postgres://h/d", "--max-session-subscriptions", "0"}, []string{"--max-session-subscriptions must be from 1 to 10000000"}},
		{"huge number of subscriptions", []string{"serve", "--store", "postgres://h/d", "--max-subscriptions", "10000001"}, []string{"--max-subscriptions must be from 1 to 10000000"}},
		{"short poll interval", []string{"serve", "--store", "postgres://h/d", "--poll-interval", "99ms"}, []string{"--poll-interval must be from 100ms to 1h, or 0"}},
		{"negative poll interval", []string{"serve", "--store", "postgres://h/d", "--poll-interval", "-1s"}, []string{"--poll-interval must be from 100ms to 1h"}},
		{"long poll interval", []string{"serve", "--store", "postgres://h/d", "--poll-interval", "61m"}, []string{"--poll-interval must be from 100ms to 1h"}},
		{"poll interval of a file", []string{"serve", "--store", "sqlite::memory:", "--poll-interval", "1s"}, []string{"--poll-interval is for PostgreSQL"}},
		{"huge frames", []string{"serve", "--store", "postgres://h/d", "--max-frame-bytes", "5000000"}, []string{"--max-frame-bytes must be from 0 to 4194304"}},
		{"log level", []string{"serve", "--store", "postgres://h/d", "--log-level", "loud"}, []string{`--log-level "loud"`}},
		{"log format", []string{"serve", "--store", "postgres://h/d", "--log-format", "xml"}, []string{`--log-format "xml"`}},
		{"remote address", []string{"serve", "--store", "postgres://h/d", "--grpc", "0.0.0.0:7420"}, []string{"without authentication", "--insecure-allow-remote"}},
		{"all interfaces", []string{"serve", "--store", "postgres://h/d", "--grpc", ":7420"}, []string{"--insecure-allow-remote"}},
		{"unspecified IPv6", []string{"serve", "--store", "postgres://h/d", "--grpc", "[::]:7420"}, []string{"--insecure-allow-remote"}},
		{"no port", []string{"serve", "--store", "postgres://h/d", "--grpc", "127.0.0.1"}, []string{"neither host:port nor unix:///PATH"}},
		{"relative socket", []string{"serve", "--store", "postgres://h/d", "--grpc", "unix://run/f.sock"}, []string{"absolute path"}},
		{"socket of gRPC's form", []string{"serve", "--store", "postgres://h/d", "--grpc", "unix:/tmp/x"}, []string{`--grpc "unix:/tmp/x": a Unix socket is written unix:///PATH`}},
		{"unknown host", []string{"serve", "--store", "postgres://h/d", "--grpc", "nosuchhost.invalid:7777"}, []string{"the host nosuchhost.invalid does not resolve"}},
		{"large port", []string{"serve", "--store", "postgres://h/d", "--grpc", "127.0.0.1:99999"}, []string{"the port must be a number from 0 to 65535"}},
		{"negative port", []string{"serve", "--store", "postgres://h/d", "--grpc", "127.0.0.1:-1", "--insecure-allow-remote"}, []string{"the port must be a number from 0 to 65535"}},
		{"huge backlog", []string{"serve", "--backlog", "99999999999999999999"}, []string{`--backlog takes a number, at most 9223372036854775807, not "99999999999999999999"; see`}},
		{"huge backlog of a policy", []string{"policy", "set", "c", "--backlog", "99999999999999999999"}, []string{"--backlog must be below 2^63"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := command(t, "", c.args...)
			if r.code != exitUsage || r.stdout != "" {
				t.Errorf("exit code %d, stdout %q; want %d and nothing", r.code, r.stdout, exitUsage)
			}
			if strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "fanfare") {
				t.Errorf("stderr %q is not one line that begins with the command", r.stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("stderr %q does not contain %q", r.stderr, want)
				}
			}
			if strings.Contains(r.stderr, "secret") {
				t.Errorf("stderr %q repeats a password", r.stderr)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{
		{"--help"}, {"help"}, {"serve", "--help"}, {"publish", "-h"}, {"help", "subscribe"}, {"streams", "--help"},
		{"close", "--help"}, {"migrate", "--help"}, {"health", "--help"},
	} {
		out := mustRun(t, "", args...)
		if !strings.Contains(out, "Examples:\n  ") {
			t.Errorf("fanfare %q teaches by no example:\n%s", args, out)
		}
	}
	r := command(t, "")
	if r.code != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, "Publish and subscribe:\n") {
		t.Errorf("fanfare alone: %+v, want its help on standard error and exit code 2", r)
	}
}

func TestVersion(t *testing.T) {
	out := mustRun(t, "", "version")
	if !strings.HasPrefix(out, "fanfare ") {
		t.Errorf("version prints %q", out)
	}
	if flag := mustRun(t, "", "--version"); flag != out {
		t.Errorf("--version prints %q, version %q", flag, out)
	}
}

// The environment comes after flags and before defaults. deadServer and other
// dead addresses tell in the error which one was taken.
func TestEnvironment(t *testing.T) {
	other := "FANFARE_SERVER=127.0.0.2:1"
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
		not  string
	}{
		{"variable", []string{other}, []string{"streams"}, exitFailed, "127.0.0.2:1", ""},
		{"flag wins", []string{other}, []string{"streams", "--server", deadServer}, exitFailed, deadServer, "127.0.0.2"},
		{"empty counts as none", []string{"FANFARE_FROM="}, []string{"subscribe", "c", "s", "--server", deadServer}, exitFailed, "no server answers", ""},
		{"bad value", []string{"FANFARE_COUNT=many"}, []string{"subscribe", "c", "s"}, exitUsage, `FANFARE_COUNT takes a number from 0 to 18446744073709551615, not "many"; see`, "strconv"},
		{"bad start", []string{"FANFARE_FROM=x"}, []string{"subscribe", "c", "s"}, exitUsage, "--from", ""},
		{"dashes", []string{"FANFARE_DRAIN_DELAY=-1s", "FANFARE_STORE=postgres://h/d"}, []string{"serve"}, exitUsage, "--drain-delay must not", ""},
		{"exclusion among variables", []string{"FANFARE_DATA=x", "FANFARE_LINES=true"}, []string{"publish", "c", "s"}, exitUsage, "--data and --lines exclude", ""},
		{"flag beats excluded variable", []string{"FANFARE_FROM=x"}, []string{"subscribe", "c", "s", "--last", "1", "--server", deadServer}, exitFailed, "no server answers", "--from"},
		{"of another command", []string{"FANFARE_FROM=x"}, []string{"streams", "--server", deadServer}, exitFailed, "no server answers", "warning"},
		{"unknown", []string{"FANFARE_SEVER=x", "FANFARE_SCHEME=y"}, []string{"version"}, exitOK, "warning: no flag belongs to the environment variable FANFARE_SCHEME, FANFARE_SEVER\n", ""},
		{"Kubernetes", []string{"FANFARE_SERVICE_HOST=10.0.0.1", "FANFARE_PORT=tcp://10.0.0.1:7420", "FANFARE_PORT_7420_TCP=x", "FANFARE_TEST_X=y", "PATH=/bin"}, []string{"version"}, exitOK, "", "warning"},
		{"version is no flag", []string{"FANFARE_VERSION=true"}, nil, exitUsage, "environment variable FANFARE_VERSION", ""},
		{"help is no flag", []string{"FANFARE_HELP=true"}, []string{"streams", "--server", deadServer}, exitFailed, "no server answers", "Usage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := commandWith(t, c.env, "", c.args...)
			if r.code != c.code || !strings.Contains(r.stderr, c.want) {
				t.Errorf("exit code %d, stderr %q; want %d and %q", r.code, r.stderr, c.code, c.want)
			}
			if c.not != "" && strings.Contains(r.stderr, c.not) {
				t.Errorf("stderr %q contains %q", r.stderr, c.not)
			}
		})
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	for _, args := range [][]string{
		{"publish", "c", "s", "--data", "x"},
		{"publish", "c", "s", "--lines"},
		{"subscribe", "c", "s"},
		{"close", "c", "s"},
		{"streams"},
		{"health"},
	} {
		r := command(t, "line\n", append(args, "--server", deadServer)...)
		if r.code != exitFailed || strings.Count(r.stderr, "\n") != 1 ||
			!strings.Contains(r.stderr, "no server answers at "+deadServer) || !strings.Contains(r.stderr, "fanfare serve") {
			t.Errorf("fanfare %q: exit code %d, stderr %q", args, r.code, r.stderr)
		}
	}
}
