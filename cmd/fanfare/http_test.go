package main

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
)

// page is what a server answered over HTTP.
type page struct {
	status int
	header http.Header
	body   string
	fields map[string]any // of JSON
}

func get(t *testing.T, url string, change ...func(*http.Request)) page {
	t.Helper()
	return getFrom(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, url, change...)
}

func getFrom(t *testing.T, client *http.Client, url string, change ...func(*http.Request)) page {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(request)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	p := page{status: response.StatusCode, header: response.Header, body: string(body)}
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(body, &p.fields); err != nil {
			t.Errorf("%v in %s", err, body)
		}
	}
	return p
}

// kind is the kind of the bus, in the page.
func (p page) kind() any {
	channel, _ := p.fields["channel"].(map[string]any)
	return channel["kind"]
}

// healthURL is where a server says its health page is.
func healthURL(t *testing.T, stdout *transcript) string {
	t.Helper()
	return stdout.await(t, `health on (http://\S+/healthz)\n`)[1]
}

// The health page follows a server's life; liveness is as long as it.
func TestHealthOverHTTP(t *testing.T) {
	p := startEmbeddedProcess(t, "--drain-delay", "1h")
	url := healthURL(t, p.stdout)
	ready := get(t, url)
	if ready.status != http.StatusOK || ready.fields["status"] != "ready" || ready.kind() != "in-process" {
		t.Errorf("ready: %+v", ready)
	}
	livez := strings.Replace(url, "/healthz", "/livez", 1)
	if alive := get(t, livez); alive.status != http.StatusOK {
		t.Errorf("alive: %+v", alive)
	}
	if other := get(t, strings.Replace(url, "/healthz", "/nothing", 1)); other.status != http.StatusNotFound {
		t.Errorf("another page: %+v", other)
	}
	p.signal(syscall.SIGTERM)
	p.stderr.await(t, "draining")
	eventually(t, "the page says that it drains", func() bool {
		draining := get(t, url)
		return draining.status == http.StatusServiceUnavailable && draining.fields["draining"] == true
	})
	if alive := get(t, livez); alive.status != http.StatusOK {
		t.Errorf("alive while draining: %+v", alive)
	}
}

// While the database is away there is a health page, of the same form as later.
func TestHealthOverHTTPWhileWaiting(t *testing.T) {
	own := pgtest.Start(t)
	database := own.NewDatabase(t)
	own.Stop("fast")
	// A socket, since the banner with the port comes when the server is ready.
	path := filepath.Join(t.TempDir(), "http.sock")
	s := startUnready(t, database, "--http", "unix://"+path)
	s.stderr.await(t, "waiting for the database")
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	waiting := getFrom(t, client, "http://fanfare.example/healthz")
	if waiting.status != http.StatusServiceUnavailable || waiting.fields["status"] != "not ready" || waiting.kind() != "postgresql" {
		t.Errorf("waiting: %+v", waiting)
	}
	if alive := getFrom(t, client, "http://localhost/livez"); alive.status != http.StatusOK {
		t.Errorf("alive while waiting: %+v", alive)
	}
	own.StartAgain()
	s.awaitReady()
	ready := getFrom(t, client, "http://localhost/healthz")
	if ready.status != http.StatusOK || ready.kind() != "postgresql" {
		t.Errorf("ready: %+v", ready)
	}
	names := func(p page) []string { return slices.Sorted(maps.Keys(p.fields)) }
	if !slices.Equal(names(waiting), names(ready)) {
		t.Errorf("the page has %q, and while waiting %q", names(ready), names(waiting))
	}
	if !strings.Contains(s.stdout.String(), "health on unix://"+path+", /healthz\n") {
		t.Errorf("printed %q", s.stdout)
	}
}

// A web page that has its name lead to this host reads nothing. Where the server
// is meant for other hosts, it goes by whatever name they have for it.
func TestHealthForOtherNames(t *testing.T) {
	rebound := func(r *http.Request) { r.Host = "attacker.example" }
	local := startEmbedded(t)
	url := healthURL(t, local.stdout)
	if p := get(t, url, rebound); p.status != http.StatusForbidden || strings.Contains(p.body, "ready") {
		t.Errorf("%+v", p)
	}
	if p := get(t, url, func(r *http.Request) { r.Host = "localhost:1" }); p.status != http.StatusOK {
		t.Errorf("%+v", p)
	}
	remote := startEmbedded(t, "--http", "0.0.0.0:0", "--insecure-allow-remote")
	_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(healthURL(t, remote.stdout), "http://"), "/healthz"))
	if err != nil {
		t.Fatal(err)
	}
	if p := get(t, "http://127.0.0.1:"+port+"/healthz", rebound); p.status != http.StatusOK {
		t.Errorf("%+v", p)
	}
}

// A second server on a host needs another port for clients, and no flag more:
// where nobody chose the address of the health page, a port that is in use leaves
// the server without it. It failed with the address in use.
func TestHTTPPortInUse(t *testing.T) {
	// The default port may be this test's or another program's: in use it is.
	if lis, err := net.Listen("tcp", defaultHTTPAddress); err == nil {
		t.Cleanup(func() { lis.Close() })
	}
	arguments := func() []string {
		return []string{"serve", "--data-dir", t.TempDir(), "--grpc", "127.0.0.1:0", "--drain-delay", "0"}
	}
	second := start(t, nil, arguments()...)
	address := second.stdout.await(t, `serving on (\S+); try: `)[1]
	if out := second.stdout.String(); !strings.Contains(out, "\nnothing over HTTP: "+defaultHTTPAddress+" is in use\n") {
		t.Errorf("printed %q", out)
	}
	warnings := strings.Count(second.stderr.String(), "level=WARN")
	if log := second.stderr.String(); warnings != 1 || !strings.Contains(log, "--http") || !strings.Contains(log, defaultHTTPAddress) {
		t.Errorf("logged %q, want one warning with the port and the flag", log)
	}
	mustRun(t, "", "health", "--server", address)
	second.interrupt()
	if code := second.end(); code != exitOK {
		t.Errorf("exit code %d", code)
	}

	const want = defaultHTTPAddress + " is in use by another process: stop it, or choose another address with --http"
	if r := command(t, "", append(arguments(), "--http", defaultHTTPAddress)...); r.code != exitFailed || !strings.Contains(r.stderr, want) {
		t.Errorf("chosen by the flag: %+v", r)
	}
	if r := commandWith(t, []string{"FANFARE_HTTP=" + defaultHTTPAddress}, "", arguments()...); r.code != exitFailed || !strings.Contains(r.stderr, want) {
		t.Errorf("chosen in the environment: %+v", r)
	}
}

func TestNoHTTP(t *testing.T) {
	s := startEmbedded(t, "--http", "off")
	if out := s.stdout.String(); strings.Contains(out, "health on") {
		t.Errorf("printed %q", out)
	}
	mustRun(t, "", "health", "--server", s.address)
}

// A client that asks nothing does not hold up the end.
func TestSilentHTTPClient(t *testing.T) {
	s := startEmbedded(t)
	address := strings.TrimSuffix(strings.TrimPrefix(healthURL(t, s.stdout), "http://"), "/healthz")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.interrupt()
	if code := s.end(); code != exitOK || time.Since(began) > patience/2 {
		t.Errorf("exit code %d after %s", code, time.Since(began))
	}
}

// Symptom: serve --grpc 0.0.0.0:7420 --insecure-allow-remote left HTTP where it is by
// default, at 127.0.0.1:7480, and open to every page that a browser of the host shows
// (DNS rebinding): the flag lifted the check of the name for an address that nobody chose.
func TestAllowingOtherHostsOpensNoAddressThatNobodyChose(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args          []string
		authenticates bool
		own           bool
	}{
		{nil, false, true},
		{[]string{"--insecure-allow-remote"}, false, true},
		{[]string{"--insecure-allow-remote", "--http", "127.0.0.1:7480"}, false, false},
		{[]string{"--http", "127.0.0.1:7480"}, false, true},
		{nil, true, false},
	} {
		for _, name := range []string{"serve", "edge"} {
			cmd, _, err := newProgram(nil, nil, nil, nil).rootCommand().Find([]string{name})
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.ParseFlags(c.args); err != nil {
				t.Fatal(err)
			}
			o := webOptions{maxConnections: 1, retry: time.Second}
			if err := o.check(cmd, c.authenticates); err != nil {
				t.Fatal(err)
			}
			remote, err := cmd.Flags().GetBool("insecure-allow-remote")
			if err != nil {
				t.Fatal(err)
			}
			if own := o.ownHost(c.authenticates, remote); own != c.own {
				t.Errorf("%s %q, authentication %t: for this host only is %t", name, c.args, c.authenticates, own)
			}
		}
	}
}

// Symptom: below another path, as a proxy may serve a server, its first page led to the
// proxy's own /console/.
func TestConsoleIsNamedByARelativePath(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	redirectToConsole(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	if location := w.Header().Get("Location"); w.Code != http.StatusFound || location != "console/" {
		t.Errorf("status %d, Location %q", w.Code, location)
	}
	s := startEmbedded(t)
	if p := get(t, siteURL(t, s.stdout)+"/"); p.status != http.StatusOK || !strings.Contains(p.body, "<html") {
		t.Errorf("status %d, %.200s", p.status, p.body)
	}
}
