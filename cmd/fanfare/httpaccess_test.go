package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/service/auth"
)

// secretFile is a file with a secret that tokens are signed with, and its key.
func secretFile(t *testing.T) (path string, key auth.Key) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "secret")
	secret := []byte(strings.Repeat("0123456789abcdef", 4))
	if err := os.WriteFile(path, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := auth.ParseSecret("", secret)
	if err != nil {
		t.Fatal(err)
	}
	return path, key
}

func signToken(t *testing.T, key auth.Key, lifetime time.Duration, permissions auth.Permissions) string {
	t.Helper()
	token, err := auth.Sign(key, auth.Grant{Subject: "ann", Lifetime: lifetime, Permissions: permissions})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A token is shown by header or cookie, or a URL is signed for a short time: each lets a
// browser see what the token allows and nothing else. The same token decides about JSON,
// Connect and gRPC-Web; a cookie, which a browser sends without its page's doing, does
// not. Nothing of it is logged.
func TestTokensOverHTTP(t *testing.T) {
	secret, key := secretFile(t)
	signing := filepath.Join(t.TempDir(), "signing")
	if err := os.WriteFile(signing, []byte(strings.Repeat("k", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startEmbedded(t, "--jwt-secret-file", secret, "--signed-url-key-file", signing, "--http-cookie", "session", "--log-level", "debug")
	site := siteURL(t, s.stdout)
	room := []auth.Permission{{Channel: "chat", Scope: "room-1"}}
	reader := signToken(t, key, time.Hour, auth.Permissions{Subscribe: room})
	writer := signToken(t, key, time.Hour, auth.Permissions{Publish: room})
	cookie := header("Cookie", "other=1; session="+reader)

	if p := post(t, site+"/v1/publish", publishJSON("chat", "room-1", "hello"), bearer(writer)); p.status != http.StatusOK {
		t.Fatalf("publish: status %d, %s", p.status, p.body)
	}
	events := site + "/v1/streams/chat/"
	sign := func(body string, change ...func(*http.Request)) page {
		return post(t, site+"/v1/signed-url", body, change...)
	}
	signed := sign(`{"streams": [{"channel": "chat", "scope": "room-1"}]}`, cookie)
	if signed.status != http.StatusOK || strings.Contains(signed.body, reader) {
		t.Fatalf("signed: status %d, %s", signed.status, signed.body)
	}
	signedURL := site + signed.fields["url"].(string)

	for name, tab := range map[string]*browserTab{
		"header": open(t, nil, events+"room-1", bearer(reader)),
		"cookie": open(t, nil, events+"room-1", cookie),
		"signed": open(t, nil, signedURL+"&from=oldest"),
	} {
		if tab.status != http.StatusOK {
			t.Errorf("%s: status %d", name, tab.status)
		} else if data := tab.nextFrame(); data != "hello" {
			t.Errorf("%s: got %q", name, data)
		}
	}
	for name, c := range map[string]struct {
		page   page
		status int
	}{
		"no token":               {get(t, events+"room-1"), 401},
		"another's signature":    {get(t, events+"room-1", bearer(reader[:len(reader)-4]+"AAAA")), 401},
		"another scheme":         {get(t, events+"room-1", header("Authorization", "Basic "+reader)), 401},
		"the token in the URL":   {get(t, events+"room-1?token="+reader+"&access_token="+reader), 400},
		"another scope":          {get(t, events+"room-2", bearer(reader)), 403},
		"another scope, cookie":  {get(t, events+"room-2", cookie), 403},
		"another right":          {get(t, events+"room-1", bearer(writer)), 403},
		"one of two":             {get(t, site+"/v1/streams?stream=chat/room-1&stream=chat/room-2", bearer(reader)), 403},
		"URL for another stream": {get(t, strings.Replace(signedURL, "room-1", "room-2", 1)), 401},
		"URL for longer":         {get(t, strings.Replace(signedURL, "expires=", "expires=1", 1)), 401},
		"sign without token":     {sign(`{"streams": [{"channel": "chat", "scope": "room-1"}]}`), 401},
		"sign for another":       {sign(`{"streams": [{"channel": "chat", "scope": "room-2"}]}`, bearer(reader)), 403},
		"sign for none":          {sign(`{"streams": []}`, bearer(reader)), 400},
		"sign for ever":          {sign(`{"streams": [{"channel": "chat", "scope": "room-1"}], "seconds": 1000000}`, bearer(reader)), 400},
		"publish, no token":      {post(t, site+"/v1/publish", publishJSON("chat", "room-1", "x")), 401},
		"publish, reader":        {post(t, site+"/v1/publish", publishJSON("chat", "room-1", "x"), bearer(reader)), 403},
		"publish, cookie":        {post(t, site+"/v1/publish", publishJSON("chat", "room-1", "x"), header("Cookie", "session="+writer)), 401},
		"Connect, no token":      {post(t, site+"/fanfare.v1.FanfareService/Publish", publishJSON("chat", "room-1", "x")), 401},
		"close":                  {post(t, site+"/v1/close", `{"channel": "chat", "scope": "room-1"}`, bearer(writer)), 403},
		"read another scope":     {get(t, site+"/v1/frames?channel=chat&scope=room-2", bearer(reader)), 403},
		"health":                 {get(t, site+"/healthz"), 200},
		"console":                {get(t, site+"/console/"), 200},
		"last cookie good":       {sign(`{"streams": [{"channel": "chat", "scope": "room-1"}]}`, header("Cookie", "session=bad; session="+reader)), 200},
		"first cookie good":      {sign(`{"streams": [{"channel": "chat", "scope": "room-1"}]}`, header("Cookie", "session="+reader+"; session=bad")), 200},
		"no cookie good":         {sign(`{"streams": [{"channel": "chat", "scope": "room-1"}]}`, header("Cookie", "session=bad; session=worse")), 401},
		// With authentication the server goes by whatever name others have for it.
		"by another name": {get(t, site+"/v1/frames?channel=chat&scope=room-1", bearer(reader), func(r *http.Request) { r.Host = "fanfare.example" }), 200},
	} {
		if c.page.status != c.status {
			t.Errorf("%s: status %d, want %d: %s", name, c.page.status, c.status, c.page.body)
		}
	}
	if streams := get(t, site+"/v1/list-streams", bearer(reader)); len(streams.fields["streams"].([]any)) != 1 {
		t.Errorf("streams of a reader: %s", streams.body)
	}
	s.interrupt()
	s.end()
	for _, token := range []string{reader, writer} {
		// The header of a token is the same for all; what follows is not.
		secretPart := token[strings.LastIndex(token, ".")+1:]
		if strings.Contains(s.stderr.String(), secretPart) {
			t.Error("a token was logged")
		}
	}
	if strings.Contains(s.stderr.String(), "signature=") {
		t.Error("a signed URL was logged")
	}
	// Symptom: why a browser's token was refused was nowhere to be seen.
	if log := s.stderr.String(); !strings.Contains(log, "refused a browser") || !strings.Contains(log, "signature is invalid") {
		t.Errorf("the log does not say what is wrong with tokens: %s", log)
	}
}

// Symptom: whoever was given no signed URL was told so without a reason, by which a page
// tells a token that has expired from one that will never do, and the log had not a word.
func TestRefusalsOfSignedURLsHaveReasonsAndAreLogged(t *testing.T) {
	secret, key := secretFile(t)
	s := startEmbedded(t, "--jwt-secret-file", secret, "--jwt-leeway", "0s", "--signed-url-key-file", writeFile(t, "key", strings.Repeat("k", 40)), "--log-level", "debug")
	site := siteURL(t, s.stdout)
	room := auth.Permissions{Subscribe: []auth.Permission{{Channel: "chat", Scope: "room-1"}}}
	reader, expired := signToken(t, key, time.Hour, room), signToken(t, key, time.Second, room)
	const body = `{"streams": [{"channel": "chat", "scope": "room-1"}]}`
	eventually(t, "a token expires", func() bool { return post(t, site+"/v1/signed-url", body, bearer(expired)).status != http.StatusOK })
	for _, c := range []struct {
		name, token, body   string
		status              int
		code, reason, field string
		logged              string
	}{
		{"no token", "", body, 401, "unauthenticated", "UNAUTHENTICATED", "", "a token is required"},
		{"a token of another key", reader[:len(reader)-4] + "AAAA", body, 401, "unauthenticated", "UNAUTHENTICATED", "", "signature is invalid"},
		{"a token that has expired", expired, body, 401, "unauthenticated", "TOKEN_EXPIRED", "", "TOKEN_EXPIRED"},
		{"another stream", reader, strings.Replace(body, "room-1", "room-2", 1), 403, "permission_denied", "PERMISSION_DENIED", "", "does not allow to subscribe to"},
		{"no stream", reader, `{}`, 400, "invalid_argument", "INVALID_FIELD", "streams", ""},
		{"a stream twice", reader, strings.Replace(body, "[", `[{"channel": "chat", "scope": "room-1"},`, 1), 400, "invalid_argument", "INVALID_FIELD", "streams", ""},
		{"for too long", reader, `{"seconds": 3601, ` + body[1:], 400, "invalid_argument", "INVALID_FIELD", "seconds", ""},
		{"no JSON", reader, `{`, 400, "invalid_argument", "INVALID_FIELD", "body", ""},
	} {
		p := post(t, site+"/v1/signed-url", c.body, bearer(c.token), func(r *http.Request) {
			if c.token == "" {
				r.Header.Del("Authorization")
			}
		})
		problem := p.problem(t)
		if p.status != c.status || problem.Code != c.code || problem.Reason != c.reason || problem.Field != c.field {
			t.Errorf("%s: status %d, %+v", c.name, p.status, problem)
		}
		if c.logged != "" {
			s.stderr.await(t, "refused a browser.*"+regexp.QuoteMeta(c.logged))
		}
	}
}

// Scenario S130. Symptom: tokens were looked at when a stream began only, and one that was
// opened seconds before the end went on without end. An event stream ends when its token
// or its URL does, and with a fresh one goes on after its last position.
func TestEventStreamsEndWithTheirTokens(t *testing.T) {
	secret, key := secretFile(t)
	s := startEmbedded(t, "--jwt-secret-file", secret, "--jwt-leeway", "0s")
	site := siteURL(t, s.stdout)
	all := auth.Permissions{Subscribe: []auth.Permission{{Channel: "*", Scope: "*"}}, Publish: []auth.Permission{{Channel: "*", Scope: "*"}}}
	long := signToken(t, key, time.Hour, all)
	publish := func(from, below int) {
		t.Helper()
		for i := from; i < below; i++ {
			if p := post(t, site+"/v1/publish", publishJSON("c", "s", fmt.Sprint(i)), bearer(long)); p.status != http.StatusOK {
				t.Fatalf("status %d: %s", p.status, p.body)
			}
		}
	}
	publish(0, 5)
	short := signToken(t, key, 2*time.Second, all)
	tab := open(t, nil, site+"/v1/streams/c/s", bearer(short))
	frames := tab.rest()
	publish(5, 10)
	if p := get(t, site+"/v1/streams/c/s", bearer(short)); p.status != http.StatusUnauthorized {
		t.Errorf("with the old token: status %d", p.status)
	} else if p.fields["reason"] != "TOKEN_EXPIRED" {
		t.Errorf("a page cannot tell that another token will do: %s", p.body)
	}
	if p := get(t, site+"/v1/streams/c/s", bearer(long[:len(long)-4]+"AAAA")); p.fields["reason"] != "UNAUTHENTICATED" {
		t.Errorf("a page cannot tell that somebody must log in: %s", p.body)
	}
	next := open(t, nil, site+"/v1/streams/c/s", bearer(long), header("Last-Event-ID", tab.last))
	for len(frames) < 10 {
		frames = append(frames, next.nextFrame())
	}
	for i, frame := range frames {
		if frame != fmt.Sprint(i) {
			t.Fatalf("frame %d is %q", i, frame)
		}
	}
}

// What is wrong with the flags of HTTP is told with their names, and no key.
func TestHTTPFlags(t *testing.T) {
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := writeFile(t, "key", strings.Repeat("k", 32))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", "--http-max-connections", "0"}, "--http-max-connections must be from 1 to"},
		{[]string{"serve", "--http-retry", "99ms"}, "--http-retry must be from 100ms to 1h"},
		{[]string{"edge", "--http-retry", "61m"}, "--http-retry must be from 100ms to 1h"},
		{[]string{"serve", "--http-allowed-origin", "app.example.com"}, "--http-allowed-origin"},
		{[]string{"serve", "--http-allowed-origin", "https://app.example.com/path"}, "--http-allowed-origin"},
		{[]string{"serve", "--http-allowed-origin", "https://*"}, "a * stands for"},
		{[]string{"edge", "--http-allowed-origin", "https://*.com"}, "a * stands for"},
		{[]string{"serve", "--http-allowed-origin", "https://app*.example.com"}, "a * stands for"},
		{[]string{"serve", "--http-allowed-origin", "https://*example.com"}, "a * stands for"},
		{[]string{"serve", "--http-allowed-origin", "https://app.example.com:*"}, "a * stands for"},
		{[]string{"serve", "--http-allowed-origin", "https://app.example.*"}, "a * stands for"},
		{[]string{"serve", "--http-allowed-origin", "*://app.example.com"}, "a * stands for"},
		{[]string{"serve", "--http-allowed-origin", "https://*.*.example.com"}, "a * stands for"},
		{[]string{"serve", "--http-cookie", "a b"}, "--http-cookie"},
		{[]string{"serve", "--signed-url-key-file", short}, "has 7 bytes, the least is 32"},
		{[]string{"serve", "--signed-url-key-file", short + "er"}, "--signed-url-key-file"},
		{[]string{"serve", "--http-cookie", "session"}, "--http-cookie holds a token"},
		{[]string{"serve", "--signed-url-key-file", key}, "--signed-url-key-file is for what a token allows"},
		{[]string{"edge", "--http", "off"}, "--http off"},
		{[]string{"edge", "--http", "0.0.0.0:0"}, "--insecure-allow-remote"},
		{[]string{"edge", "--server", "http://127.0.0.1:7420"}, "without http://"},
		{[]string{"edge", "--server", ""}, "--server must not be empty"},
		{[]string{"edge", "--server", "localhost"}, "did you mean localhost:7420?"},
		{[]string{"edge", "--http-cookie", "session"}, "--http-cookie holds a token"},
		{[]string{"edge", "--drain-delay", "-1s"}, "--drain-delay"},
		{[]string{"edge", "extra"}, "takes no arguments"},
	} {
		r := command(t, "", c.args...)
		if r.code != exitUsage || !strings.Contains(r.stderr, c.want) || strings.Contains(r.stderr, "hunter2") {
			t.Errorf("%q: exit code %d, %q", c.args, r.code, r.stderr)
		}
	}
}

// Symptom: --http-allowed-origin 'https://*' was taken, and pages of every site were let in
// with the cookies of their visitors. A * is a whole label below a domain, or alone, and
// then no page is let in with cookies.
func TestOriginsThatAreAllowed(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"*", "https://app.example.com", "http://localhost:3000", "https://*.example.com", "https://*.example.com:8443"} {
		if err := checkOrigin(origin); err != nil {
			t.Errorf("%s: %v", origin, err)
		}
	}
	for _, c := range []struct {
		allowed, origin string
		read, cookies   bool
	}{
		{"*", "https://attacker.example", true, false},
		{"https://*.example.com", "https://app.example.com", true, true},
		{"https://*.example.com", "https://attacker.example", false, false},
		{"https://*.example.com", "https://attackerexample.com", false, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, signPath, http.NoBody)
		r.Header.Set("Origin", c.origin)
		w := httptest.NewRecorder()
		corsFor([]string{c.allowed}, true)(http.NotFoundHandler()).ServeHTTP(w, r)
		read := w.Header().Get("Access-Control-Allow-Origin") != ""
		cookies := w.Header().Get("Access-Control-Allow-Credentials") != ""
		if read != c.read || cookies != c.cookies {
			t.Errorf("%s allows %s to read: %t, with cookies: %t", c.allowed, c.origin, read, cookies)
		}
	}
}

// jsonOf is a page's document.
func jsonOf[T any](t *testing.T, p page) (document T) {
	t.Helper()
	if err := json.Unmarshal([]byte(p.body), &document); err != nil {
		t.Errorf("%v in %.300s", err, p.body)
	}
	return document
}
