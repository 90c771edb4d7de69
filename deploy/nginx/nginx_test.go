// Package nginx_test runs this directory's configuration in nginx, between real
// servers and their clients.
package nginx_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// patience bounds each wait.
const patience = 30 * time.Second

func inLongForm() bool { return os.Getenv("FANFARE_LONG") != "" }

func TestMain(m *testing.M) {
	code := pgtest.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// upstreams are the replicas' addresses, at most three of each kind. The places that
// remain are taken by addresses where nobody listens.
type upstreams struct{ http, grpc []string }

// proxy is a running nginx.
type proxy struct {
	// http and grpc are where it listens.
	http, grpc string
	process    *servicetest.Process
}

// start runs nginx with fanfare.conf and the locations, as Debian's nginx.conf includes
// them. edits are pairs of a text in them, which must be there, and what to put in its
// place.
func start(t *testing.T, to upstreams, edits ...string) *proxy {
	t.Helper()
	p := &proxy{http: pgtest.FreeAddress(t), grpc: pgtest.FreeAddress(t)}
	replace := []string{"listen 80;", "listen " + p.http + ";", "listen 127.0.0.1:8420 http2;", "listen " + p.grpc + " http2;"}
	for i := range 3 {
		replace = append(replace,
			fmt.Sprintf("server 127.0.0.1:748%d ", i), "server "+nth(t, to.http, i)+" ",
			fmt.Sprintf("server 127.0.0.1:742%d ", i), "server "+nth(t, to.grpc, i)+" ")
	}
	replace = append(replace, edits...)
	text := map[string]string{}
	for _, name := range []string{"fanfare.conf", "fanfare-locations.conf", "fanfare-streams.conf"} {
		text[name] = read(t, name)
	}
	for i := 0; i < len(replace); i += 2 {
		found := false
		for name, before := range text {
			text[name] = strings.ReplaceAll(before, replace[i], replace[i+1])
			found = found || text[name] != before
		}
		if !found {
			t.Fatalf("the configuration has no %q", replace[i])
		}
	}
	p.run(t, map[string]string{
		"conf.d/fanfare.conf":             text["fanfare.conf"],
		"snippets/fanfare-locations.conf": text["fanfare-locations.conf"],
		"snippets/fanfare-streams.conf":   text["fanfare-streams.conf"],
	})
	return p
}

// startWith runs nginx with another server in place of the configuration.
func startWith(t *testing.T, server string) *proxy {
	t.Helper()
	p := &proxy{http: pgtest.FreeAddress(t)}
	p.run(t, map[string]string{"conf.d/site.conf": strings.ReplaceAll(server, "LISTEN", p.http)})
	return p
}

// mainConfig is like Debian's nginx.conf in all that matters here. One worker and
// no files outside of the test's directory.
const mainConfig = `daemon off;
worker_processes 1;
pid PLACE/nginx.pid;
error_log stderr warn;
events { worker_connections 768; }
http {
	sendfile on;
	tcp_nopush on;
	gzip on;
	access_log off;
	client_body_temp_path PLACE/body;
	proxy_temp_path PLACE/proxy;
	fastcgi_temp_path PLACE/fastcgi;
	uwsgi_temp_path PLACE/uwsgi;
	scgi_temp_path PLACE/scgi;
	include PLACE/conf.d/*.conf;
}
`

// run writes the files, has nginx check them and runs it to the end of the test.
func (p *proxy) run(t *testing.T, files map[string]string) {
	t.Helper()
	program := os.Getenv("FANFARE_TEST_NGINX")
	if program == "" {
		t.Fatal("FANFARE_TEST_NGINX names no nginx: run make test, which fetches one")
	}
	place := t.TempDir()
	files["nginx.conf"] = strings.ReplaceAll(mainConfig, "PLACE", place)
	for name, content := range files {
		path := filepath.Join(place, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"-e", "stderr", "-p", place, "-c", filepath.Join(place, "nginx.conf")}
	if out, err := exec.Command(program, append([]string{"-t"}, args...)...).CombinedOutput(); err != nil || strings.Contains(string(out), "[warn]") {
		t.Fatalf("nginx -t: %v: %s", err, out)
	}
	process, err := servicetest.StartProcess(exec.Command(program, args...))
	if err != nil {
		t.Fatal(err)
	}
	p.process = process
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("nginx: %v", err)
		}
		if err := process.AwaitEnd(ctx); err != nil {
			t.Errorf("nginx: %v", err)
		}
		if t.Failed() {
			t.Logf("nginx:\n%s", process.Log())
		}
	})
	await(t, "nginx listens", func() bool {
		conn, err := net.Dial("tcp", p.http)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// nth is an address, or one where nobody listens.
func nth(t *testing.T, addresses []string, i int) string {
	if i < len(addresses) {
		return addresses[i]
	}
	return pgtest.FreeAddress(t)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
