package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeFile writes a file of a test, and returns its path.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// aSecret is a file with a secret as somebody makes one.
func aSecret(t testing.TB) string {
	t.Helper()
	return writeFile(t, "secret", rand.Text()+rand.Text()+"\n")
}

func publicKeyPEM(t testing.TB) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func TestFlagsOfAuthentication(t *testing.T) {
	t.Parallel()
	weak := writeFile(t, "weak", "hunter2-hunter2")
	public := writeFile(t, "key.pem", publicKeyPEM(t))
	token := writeFile(t, "token", "hunter2 with spaces")
	huge := writeFile(t, "huge", strings.Repeat("x", maxKeyFileBytes+1))
	serve := []string{"serve", "--store", "sqlite::memory:"}
	for _, c := range []struct {
		args []string
		env  []string
		want string
	}{
		{append(serve, "--jwt-secret-file", weak), nil, "--jwt-secret-file " + weak + ": it has 15 bytes, a secret must have 32 at least"},
		{append(serve, "--jwt-secret-file", "id="+weak), nil, "--jwt-secret-file " + weak + ": it has 15 bytes"},
		{append(serve, "--jwt-secret-file", public), nil, "it is a PEM file with a PUBLIC KEY, not a secret"},
		{append(serve, "--jwt-secret-file", "/nowhere/secret"), nil, "--jwt-secret-file /nowhere/secret: no such file"},
		{append(serve, "--jwt-secret-file", t.TempDir()), nil, "is a directory"},
		{append(serve, "--jwt-secret-file", huge), nil, "it has more than 1048576 bytes"},
		{append(serve, "--jwt-public-key-file", weak), nil, "--jwt-public-key-file " + weak + ": there is no PEM block"},
		{append(serve, "--jwt-public-key-file", public, "--jwt-public-key-file", weak), nil, "there is no PEM block"},
		{append(serve, "--jwt-jwks-url", "issuer.example/keys"), nil, "--jwt-jwks-url must be a URL that begins with https://"},
		{append(serve, "--jwt-jwks-url", "ftp://user:hunter2@issuer.example/keys"), nil, "--jwt-jwks-url must be a URL"},
		{append(serve, "--jwt-jwks-url", "http://user:hunter2@issuer.example/keys"), nil, "or with http:// and localhost or a loopback address"},
		{append(serve, "--jwt-jwks-url", "http://127.0.0.1.issuer.example/keys"), nil, "or with http:// and localhost or a loopback address"},
		{append(serve, "--jwt-issuer", "x"), nil, "--jwt-issuer and --jwt-audience need keys"},
		{append(serve, "--jwt-audience", "x"), nil, "--jwt-issuer and --jwt-audience need keys"},
		{append(serve, "--jwt-leeway", "-1s"), nil, "--jwt-leeway must be from 0 to 1h"},
		{append(serve, "--jwt-leeway", "2h"), nil, "--jwt-leeway must be from 0 to 1h"},
		{serve, []string{"FANFARE_JWT_SECRET_FILE=" + aSecret(t) + "\n" + weak}, "it has 15 bytes"},
		{[]string{"streams", "--token", "hunter2"}, nil, "a token on a command line can be read by everybody on this machine: put it into a file for --token-file, or into FANFARE_TOKEN"},
		{[]string{"streams"}, []string{"FANFARE_TOKEN=hunter2 x"}, "FANFARE_TOKEN holds no token"},
		{[]string{"streams", "--token-file", token}, nil, "--token-file " + token + " holds no token"},
		{[]string{"publish", "c", "s", "--lines", "--token-file", "/nowhere/token"}, nil, "--token-file /nowhere/token: no such file"},
		{[]string{"streams"}, []string{"FANFARE_TOKEN=x", "FANFARE_TOKEN_FILE=y"}, "--token and --token-file exclude each other"},
		{[]string{"token"}, nil, "--jwt-secret-file is needed"},
		{[]string{"token", "--jwt-secret-file", weak}, nil, "it has 15 bytes"},
		{[]string{"token", "--jwt-secret-file", aSecret(t), "--expires-in", "999ms"}, nil, "--expires-in must be at least 1s"},
		{[]string{"token", "--jwt-secret-file", aSecret(t), "--subscribe", "chat=a=b"}, nil, `--subscribe "chat=a=b" has more than one =`},
		{[]string{"token", "--jwt-secret-file", aSecret(t), "--publish", "c", "--publish", "a==b"}, nil, `--publish "a==b" has more than one =`},
		{[]string{"token", "--jwt-secret-file", aSecret(t), "--work", "=="}, nil, `--work "==" has more than one =`},
		{[]string{"token", "--jwt-secret-file", aSecret(t), "everything"}, nil, "takes no arguments"},
	} {
		r := commandWith(t, c.env, "", c.args...)
		if r.code != exitUsage || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, c.want) {
			t.Errorf("fanfare %q: %+v, want %q", c.args, r, c.want)
		}
		if strings.Contains(r.stderr, "hunter2") {
			t.Errorf("fanfare %q repeats a secret: %s", c.args, r.stderr)
		}
	}
}

// Symptom: keys were fetched in clear over any network, and whoever could change them on
// their way had tokens of their own taken. They may be where nobody is between.
func TestKeysInClearComeFromThisHost(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://issuer.example/keys", "http://localhost:8080/keys", "http://127.0.0.1/keys", "http://[::1]:1/keys"} {
		if err := (&authOptions{jwksURL: url}).check(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// With authentication the server may serve other hosts; without, it may not. What is in
// clear is said.
func TestAuthenticationLetsOtherHostsIn(t *testing.T) {
	t.Parallel()
	for _, authentication := range []bool{false, true} {
		o := serveOptions{grpc: "0.0.0.0:7420"}
		o.web.http = httpOff
		if authentication {
			o.auth.secretFiles = []string{aSecret(t)}
		}
		if err := o.checkAddresses(t.Context()); (err == nil) != authentication {
			t.Errorf("authentication %t: %v", authentication, err)
		}
	}
	for _, c := range []struct {
		authenticates bool
		address       net.Addr
		want          string // empty: nothing is said
	}{
		{false, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, ""},
		{false, &net.TCPAddr{IP: net.IPv6zero}, "without authentication: whoever reaches this address may see everything"},
		{true, &net.TCPAddr{IP: net.IPv6zero}, "tokens and frames travel in clear"},
		{true, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, "tokens and frames travel in clear"},
		{true, &net.TCPAddr{IP: net.IPv6loopback}, ""},
		{true, &net.UnixAddr{Name: "/run/fanfare.sock", Net: "unix"}, ""},
	} {
		var log strings.Builder
		warnOfOthers(c.address, c.authenticates, "see everything", slog.New(slog.NewTextHandler(&log, nil)))
		if !strings.Contains(log.String(), c.want) || c.want == "" && log.Len() > 0 {
			t.Errorf("%+v: %q", c, log.String())
		}
	}
}

// Symptom: serve told that tokens travel in clear at the port of gRPC, and nothing of that
// of HTTP; an edge told nothing at all.
func TestEachPortForOtherHostsIsToldOf(t *testing.T) {
	t.Parallel()
	secret := aSecret(t)
	s := startEmbedded(t, "--jwt-secret-file", secret, "--http", "0.0.0.0:0")
	edge := start(t, nil, "edge", "--server", s.address, "--http", "0.0.0.0:0", "--drain-delay", "0", "--jwt-secret-file", secret)
	t.Cleanup(func() { edge.interrupt(); edge.end() })
	for _, log := range []*transcript{s.stderr, edge.stderr} {
		log.await(t, "tokens and frames travel in clear")
	}
	if n := strings.Count(s.stderr.String(), "in clear"); n != 1 {
		t.Errorf("%d warnings for one port: %s", n, s.stderr)
	}
}

// What docs/security.md shows: a secret, a server, tokens of the development, and what
// they allow. Neither token nor secret is in the server's log.
func TestTokensFromTheCommandLine(t *testing.T) {
	t.Parallel()
	secret := aSecret(t)
	s := startEmbedded(t, "--jwt-secret-file", "dev="+secret, "--jwt-audience", "fanfare", "--log-level", "debug")
	token := func(args ...string) string {
		return writeFile(t, "token", mustRun(t, "", append([]string{"token", "--jwt-secret-file", "dev=" + secret, "--jwt-audience", "fanfare"}, args...)...))
	}
	both := token("--subscribe", "chat/*", "--publish", "chat/messages=lobby")
	on := func(args ...string) []string { return append(args, "--server", s.address) }

	mustRun(t, "", on("publish", "chat/messages", "lobby", "--data", "hello", "--token-file", both)...)
	mustRun(t, "a\nb\n", on("publish", "chat/messages", "lobby", "--lines", "--token-file", both)...)
	if out := mustRun(t, "", on("subscribe", "chat/messages", "lobby", "--count", "3", "--token-file", both)...); out != "hello\na\nb\n" {
		t.Errorf("subscribe prints %q", out)
	}
	text, err := os.ReadFile(both)
	if err != nil {
		t.Fatal(err)
	}
	r := commandWith(t, []string{"FANFARE_TOKEN=" + strings.TrimSpace(string(text))}, "", on("streams", "--json")...)
	if r.code != exitOK || !strings.Contains(r.stdout, "lobby") || strings.Contains(r.stderr, "warning") {
		t.Errorf("streams with the variable: %+v", r)
	}
	admin := token("--admin")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"a token is needed, in the metadata authorization: Bearer and the token (Unauthenticated, UNAUTHENTICATED); give one with --token-file or FANFARE_TOKEN", []string{"streams"}},
		{"PERMISSION_DENIED", []string{"publish", "chat/messages", "kitchen", "--data", "x", "--token-file", both}},
		{"PERMISSION_DENIED", []string{"publish", "chat/messages", "kitchen", "--lines", "--token-file", both}},
		{"PERMISSION_DENIED", []string{"subscribe", "orders", "1", "--token-file", both}},
		{"PERMISSION_DENIED", []string{"close", "chat/messages", "lobby", "--token-file", both}},
		{"PERMISSION_DENIED", []string{"policy", "list", "--token-file", both}},
		{"PERMISSION_DENIED", []string{"streams", "--token-file", admin}},
	} {
		if r := command(t, "line\n", on(c.args...)...); r.code != exitFailed || !strings.Contains(r.stderr, c.want) {
			t.Errorf("fanfare %q: %+v, want %q", c.args, r, c.want)
		}
	}
	mustRun(t, "", on("policy", "list", "--token-file", admin)...)
	mustRun(t, "", on("close", "chat/messages", "lobby", "--token-file", admin)...)
	mustRun(t, "", on("health")...)
	s.interrupt()
	s.end()
	log := s.stderr.String() + s.stdout.String()
	for _, part := range strings.Split(strings.TrimSpace(string(text)), ".") {
		if strings.Contains(log, part[:16]) {
			t.Errorf("a token is in the log")
		}
	}
	if secretText, _ := os.ReadFile(secret); strings.Contains(log, strings.TrimSpace(string(secretText))) {
		t.Error("the secret is in the log")
	}
}

// A subscription outlives its token if the file has another one by then: it goes on where
// it was. Without another one it fails, and says with which --from it can be continued.
func TestSubscribeReadsItsTokenAgain(t *testing.T) {
	t.Parallel()
	secret := aSecret(t)
	s := startEmbedded(t, "--jwt-secret-file", secret, "--jwt-leeway", "0s")
	sign := func(lifetime time.Duration) string {
		return mustRun(t, "", "token", "--jwt-secret-file", secret, "--subscribe", "*", "--publish", "*", "--expires-in", lifetime.String())
	}
	publisher := writeFile(t, "publisher", sign(time.Hour))
	token := writeFile(t, "token", sign(2*time.Second))
	r := start(t, nil, "subscribe", "c", "s", "--json", "--token-file", token, "--server", s.address)
	r.stdout.await(t, `"type":"caught_up"`)
	mustRun(t, "", "publish", "c", "s", "--data", "1", "--token-file", publisher, "--server", s.address)
	r.stdout.await(t, `"data":"1"`)
	// As an orchestrator does: another file in its place.
	next := token + ".next"
	if err := os.WriteFile(next, []byte(sign(4*time.Second)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, token); err != nil {
		t.Fatal(err)
	}
	r.stdout.await(t, `(?s)"type":"closing".*"type":"subscribed".*"resumed":true`)
	for n := 2; n <= 4; n++ {
		mustRun(t, "", "publish", "c", "s", "--data", fmt.Sprint(n), "--token-file", publisher, "--server", s.address)
	}
	r.stdout.await(t, `"data":"4"`)
	if code := r.end(); code != exitFailed || !strings.Contains(r.stderr.String(), "TOKEN_EXPIRED") || !strings.Contains(r.stderr.String(), "continue with --from ") {
		t.Errorf("exit code %d, stderr %q", code, r.stderr)
	}
	var data []string
	for _, object := range objects(t, r.stdout.String()) {
		if object["type"] == "frame" {
			data = append(data, fmt.Sprint(object["data"]))
		}
	}
	if strings.Join(data, " ") != "1 2 3 4" {
		t.Errorf("it printed %q", data)
	}
}
