package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/replica"
)

// startEdge starts an edge in front of servers, in a process of its own, and waits until
// it serves.
func startEdge(t *testing.T, args ...string) (edge *process, site string) {
	t.Helper()
	edge = launch(t, binaryCommand(t, append([]string{"edge", "--http", "127.0.0.1:0"}, args...)...))
	return edge, siteURL(t, edge.stdout)
}

// Browsers of an edge miss nothing, see nothing twice and stay connected when the replica
// that it subscribes at is killed, and so is the one after.
func TestEdgeGoesOnAtAnotherReplica(t *testing.T) {
	database := pgtest.NewDatabase(t)
	a, b := startProcess(t, "--store", database), startProcess(t, "--store", database)
	_, site := startEdge(t, "--server", a.address, "--server", b.address, "--drain-delay", "0")
	const tabs = 10
	var watching []*browserTab
	for range tabs {
		tab := open(t, nil, site+"/v1/streams/c/s")
		tab.await("fanfare.caught_up")
		watching = append(watching, tab)
	}
	received := func(from int) {
		t.Helper()
		for i, tab := range watching {
			for n := from; n < from+100; n++ {
				if data := tab.nextFrame(); data != fmt.Sprint(n) {
					t.Fatalf("browser %d got %q, want %d", i, data, n)
				}
			}
		}
	}
	publishNumbers(t, b.address, "c", "s", 0, 100)
	received(0)
	// Whichever it subscribes at: the other is replaced.
	for killed := range 2 {
		gone, left := a, b
		if subscribersAt(t, b.address) > 0 {
			gone, left = b, a
		}
		if n := subscribersAt(t, gone.address); n != 1 {
			t.Errorf("the edge has %d subscriptions of one stream", n)
		}
		if err := gone.command.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		publishNumbers(t, left.address, "c", "s", 100*(killed+1), 100*(killed+2))
		received(100 * (killed + 1))
		again := startProcess(t, "--store", database, "--grpc", gone.address)
		a, b = again, left
	}
}

// subscribersAt is how many subscriptions of the stream c/s a server has.
func subscribersAt(t *testing.T, address string) int {
	t.Helper()
	for line := range strings.Lines(mustRun(t, "", "streams", "--json", "--server", address)) {
		var stream struct {
			Channel     string
			Subscribers int
		}
		if stream = jsonOf[struct {
			Channel     string
			Subscribers int
		}](t, page{body: line}); stream.Channel == "c" {
			return stream.Subscribers
		}
	}
	return 0
}

// An edge says whether there is a server, drains on SIGTERM, and serves nothing but what
// browsers read.
func TestEdgeServesAndDrains(t *testing.T) {
	s := startEmbeddedProcess(t, "--drain-delay", "1h")
	edge, site := startEdge(t, "--server", s.address, "--drain-delay", "1s")
	if p := get(t, site+"/healthz"); p.status != http.StatusOK || p.fields["status"] != "ready" {
		t.Errorf("ready: %+v", p)
	}
	for path, status := range map[string]int{
		"/livez": 200, "/fanfare.js": 200, "/v1/streams?channel=": 400,
		"/": 404, "/console/": 404, "/v1/list-streams": 404, "/openapi.json": 404, "/v1/publish": 404, "/fanfare.v1.FanfareService/Publish": 404,
	} {
		if p := get(t, site+path); p.status != status {
			t.Errorf("%s: status %d, want %d: %.200s", path, p.status, status, p.body)
		}
	}
	if p := post(t, site+"/v1/publish", publishJSON("c", "s", "x")); p.status != http.StatusNotFound {
		t.Errorf("publish at an edge: status %d", p.status)
	}
	if p := get(t, site+"/v1/streams?channel=c", func(r *http.Request) { r.Host = "attacker.example" }); p.status != http.StatusForbidden {
		t.Errorf("by another name: status %d", p.status)
	}
	tab := open(t, nil, site+"/v1/streams/c/s")
	tab.await("fanfare.caught_up")
	edge.signal(syscall.SIGTERM)
	eventually(t, "the page says that the edge drains", func() bool {
		p := get(t, site+"/healthz")
		return p.status == http.StatusServiceUnavailable && p.fields["draining"] == true
	})
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	if data := tab.nextFrame(); data != "x" {
		t.Errorf("while draining: %q", data)
	}
	if event := tab.await("fanfare.reconnect"); !strings.Contains(event.Data, "DRAINING") {
		t.Errorf("%+v", event)
	}
	if err := edge.end(); err != nil {
		t.Errorf("the edge ended with %v", err)
	}

	_, other := startEdge(t, "--server", s.address)
	// It still serves, and says that it will not for long.
	s.signal(syscall.SIGTERM)
	eventually(t, "the page says that there is no server", func() bool {
		p := get(t, other+"/healthz")
		return p.status == http.StatusServiceUnavailable && strings.Contains(p.body, errNoServer.Error())
	})
	if p := get(t, other+"/livez"); p.status != http.StatusOK {
		t.Errorf("alive without a server: %+v", p)
	}
}

// Symptom: an edge whose server was not there said nothing at all.
func TestEdgeWithoutAServerSaysThatItWaits(t *testing.T) {
	edge := start(t, nil, "edge", "--server", deadServer, "--http", "127.0.0.1:0", "--drain-delay", "0")
	edge.stderr.await(t, "waiting for a server that is ready.*"+deadServer)
	edge.interrupt()
	if code := edge.end(); code != exitOK {
		t.Errorf("it ended with %d: %s", code, edge.stderr)
	}
}

// Symptom: an edge whose port failed while it drained slept on, and served nobody, until the
// time was over. It ends at once, with the error.
func TestDrainingEdgeEndsWhenAPartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("the socket is gone")
		parts := replica.NewParts()
		defer parts.Stop()
		parts.Start("http", func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return failure
			case <-ctx.Done():
				return nil
			}
		})
		ctx, end := context.WithCancel(t.Context())
		end()
		began := time.Now()
		o := edgeOptions{drainDelay: time.Hour}
		err := o.serveUntil(ctx, parts, newEdgeHealth(nil), nil, slog.New(slog.DiscardHandler))
		if took := time.Since(began); !errors.Is(err, failure) || took != time.Second {
			t.Errorf("it ended after %s with %v", took, err)
		}
	})
}

// An edge shows servers a token of its own, and verifies browsers' tokens itself; what
// they may see is the lesser of both. The token's file is read again when it changes.
func TestEdgeHasItsOwnIdentity(t *testing.T) {
	secret, key := secretFile(t)
	s := startEmbeddedProcess(t, "--jwt-secret-file", secret, "--jwt-leeway", "0s")
	file := filepath.Join(t.TempDir(), "token")
	store := func(lifetime time.Duration) {
		t.Helper()
		token := signToken(t, key, lifetime, auth.Permissions{Subscribe: []auth.Permission{{Channel: "chat", Scope: "*"}}})
		if err := os.WriteFile(file+".new", []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	store(5 * time.Second)
	_, site := startEdge(t, "--server", s.address, "--token-file", file, "--jwt-secret-file", secret)
	store(time.Hour)
	browser := signToken(t, key, time.Hour, auth.Permissions{
		Subscribe: []auth.Permission{{Channel: "chat", Scope: "room-1"}, {Channel: "secret", Scope: "*"}},
		Publish:   []auth.Permission{{Channel: "chat", Scope: "*"}},
	})
	if p := get(t, site+"/v1/streams/chat/room-1"); p.status != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", p.status)
	}
	if p := get(t, site+"/v1/streams/chat/room-2", bearer(browser)); p.status != http.StatusForbidden {
		t.Errorf("another room: status %d", p.status)
	}
	tab := open(t, nil, site+"/v1/streams/chat/room-1", bearer(browser))
	if tab.status != http.StatusOK {
		t.Fatalf("status %d", tab.status)
	}
	tab.await("fanfare.caught_up")
	serverSite := siteURL(t, s.stdout)
	// Past the end of the edge's first token.
	until := time.Now().Add(6 * time.Second)
	pace := time.NewTicker(200 * time.Millisecond)
	defer pace.Stop()
	for i := 0; time.Now().Before(until); i++ {
		if p := post(t, serverSite+"/v1/publish", publishJSON("chat", "room-1", fmt.Sprint(i)), bearer(browser)); p.status != http.StatusOK {
			t.Fatalf("status %d: %s", p.status, p.body)
		}
		if data := tab.nextFrame(); data != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", data, i)
		}
		<-pace.C
	}
}

// Symptom: an edge whose token had expired, or did not allow what browsers watched, refused
// them all, said that it was ready, so that a balancer kept sending them there, and did so
// still once its file had a token that does. Cause: it looked at the connection alone, and a
// session at the file near the end of its token only.
func TestEdgeTellsOfABadTokenAndTakesAGoodOne(t *testing.T) {
	secret, key := secretFile(t)
	s := startEmbeddedProcess(t, "--jwt-secret-file", secret, "--jwt-leeway", "0s")
	file := filepath.Join(t.TempDir(), "token")
	store := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	token := func(lifetime time.Duration, channel string) string {
		t.Helper()
		return signToken(t, key, lifetime, auth.Permissions{Subscribe: []auth.Permission{{Channel: channel, Scope: "*"}}})
	}
	store(token(time.Hour, "other*"))
	_, site := startEdge(t, "--server", s.address, "--token-file", file)
	healthy := func(status int, reason string) {
		t.Helper()
		eventually(t, fmt.Sprint("the page says ", status, " ", reason), func() bool {
			p := get(t, site+"/healthz")
			return p.status == status && strings.Contains(p.body, reason)
		})
	}
	// It holds a Session from here on, and that does not allow the other stream.
	open(t, nil, site+"/v1/streams/other/s").await("fanfare.caught_up")
	open(t, nil, site+"/v1/streams/chat/s").await("fanfare.reconnect")
	store(token(time.Hour, "*"))
	eventually(t, "browsers are served with the other token", func() bool {
		return open(t, nil, site+"/v1/streams/chat/s").next().Type != "fanfare.reconnect"
	})
	healthy(http.StatusOK, `"ready"`)

	store(token(time.Second, "*"))
	healthy(http.StatusServiceUnavailable, "the token has expired")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	healthy(http.StatusServiceUnavailable, "cannot be read")
	if body := get(t, site+"/healthz").body; strings.Contains(body, file) {
		t.Errorf("the page tells everybody of files: %s", body)
	}
	store("nonsense")
	healthy(http.StatusServiceUnavailable, "a valid token is needed")
	store(token(time.Hour, "*"))
	healthy(http.StatusOK, `"ready"`)
}

// Symptom: an edge with a key for signed URLs and without tokens served other hosts, and
// signed a URL of any stream for whoever asked: who cannot be told apart was trusted. It
// signs for nobody, and its streams are opened by URLs that others signed with its key.
func TestEdgeWithoutTokensSignsForNobody(t *testing.T) {
	s := startEmbedded(t)
	key := strings.Repeat("k", 40)
	edge := start(t, nil, "edge", "--server", s.address, "--http", "127.0.0.1:0", "--drain-delay", "0", "--signed-url-key-file", writeFile(t, "key", key))
	t.Cleanup(func() { edge.interrupt(); edge.end() })
	site := siteURL(t, edge.stdout)
	stream := `{"streams": [{"channel": "c", "scope": "s"}]}`
	if p := post(t, site+"/v1/signed-url", stream); p.status != http.StatusForbidden || !strings.Contains(p.body, "signs for nobody") {
		t.Errorf("signed: status %d, %s", p.status, p.body)
	}
	if p := get(t, site+"/v1/streams/c/s"); p.status != http.StatusUnauthorized {
		t.Errorf("without a signature: status %d, %s", p.status, p.body)
	}
	signer, err := sse.NewSigner([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(&url.URL{Path: "/v1/streams", RawQuery: "channel=c&scope=s"}, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	tab := open(t, nil, site+signed.String())
	if tab.status != http.StatusOK {
		t.Fatalf("with a signature: status %d", tab.status)
	}
	tab.await("fanfare.caught_up")
}
