package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// newSite serves a chat without nginx.
func newSite(t *testing.T) *httptest.Server {
	t.Helper()
	pool, _ := newChat(t)
	site := httptest.NewServer((&web{pool: pool, name: "chat-1", logger: slog.New(slog.DiscardHandler)}).handler())
	t.Cleanup(site.Close)
	return site
}

// request is answered with a status and a body.
func request(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(bounded(t), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	r.Host = r.Header.Get("Host")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func messageJSON(key, author, body string) string {
	return `{"key":"` + key + `","author":"` + author + `","body":"` + body + `"}`
}

func TestRequestsThatAreRefused(t *testing.T) {
	site := newSite(t)
	key := newKey()
	for _, test := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/rooms/lobby/messages", "hello", 400, "JSON"},
		{"/rooms/lobby/messages", messageJSON("7", "Ann", "hello"), 400, "key is not a UUID"},
		{"/rooms/lobby/messages", messageJSON(key, "", "hello"), 400, "author has 0 characters, it must have 1 to 40"},
		{"/rooms/lobby/messages", messageJSON(key, strings.Repeat("é", 41), "hello"), 400, "author has 41 characters"},
		{"/rooms/lobby/messages", messageJSON(key, `A\nB`, "hello"), 400, "author has the control character U+000A"},
		{"/rooms/lobby/messages", messageJSON(key, "Ann", `  \n `), 400, "body has 0 characters, it must have 1 to 4000"},
		{"/rooms/lobby/messages", messageJSON(key, "Ann", `a\u0000b`), 400, "body has the control character U+0000"},
		{"/rooms/lobby/messages", messageJSON(key, "Ann", strings.Repeat("x", 4001)), 400, "body has 4001 characters"},
		{"/rooms/lobby/messages", messageJSON(key, "Ann", strings.Repeat("x", 100_000)), 413, "65536 bytes"},
		{"/rooms/nowhere/messages", messageJSON(key, "Ann", "hello"), 404, "no such room"},
		{"/rooms/a%00b/messages", messageJSON(key, "Ann", "hello"), 404, "no such room"},
		{"/rooms/lobby/activity", `{"kind":"dancing","name":"Ann"}`, 400, "kind is not"},
		{"/rooms/lobby/activity", `{"kind":"typing","name":" "}`, 400, "name has 0 characters"},
		{"/rooms/nowhere/activity", `{"kind":"typing","name":"Ann"}`, 404, "no such room"},
	} {
		status, answer := request(t, http.MethodPost, site.URL+test.path, test.body)
		if status != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%s %.60s is answered %d %s, want %d and %q", test.path, test.body, status, answer, test.status, test.want)
		}
	}
	if status, answer := request(t, http.MethodGet, site.URL+"/rooms/lobby/history", ""); status != 200 || !strings.Contains(answer, `"messages":[]`) {
		t.Errorf("after that the history is %d %s", status, answer)
	}
	if status, _ := request(t, http.MethodPost, site.URL+"/rooms/lobby/messages", messageJSON(key, "Ann", "hello"), "Sec-Fetch-Site", "cross-site"); status != 403 {
		t.Errorf("a message from another site's page is answered %d", status)
	}
	for _, path := range []string{"/rooms/nowhere", "/rooms/nowhere%2f..", "/rooms/"} {
		if status, _ := request(t, http.MethodGet, site.URL+path, ""); status != 404 {
			t.Errorf("%s is answered %d", path, status)
		}
	}
}

// What people write is text in the page, whatever it looks like.
func TestPageShowsText(t *testing.T) {
	site := newSite(t)
	author, body := `<img src=x onerror=alert(1)>`, `</p><script>alert(2)</script>\n\" onclick=\"alert(3)`
	if status, answer := request(t, http.MethodPost, site.URL+"/rooms/lobby/messages", messageJSON(newKey(), author, body)); status != 201 {
		t.Fatalf("%d %s", status, answer)
	}
	status, page := request(t, http.MethodGet, site.URL+"/rooms/lobby", "")
	if status != 200 || !strings.Contains(page, "&lt;img src=x onerror=alert(1)&gt;") || !strings.Contains(page, "&lt;script&gt;alert(2)") {
		t.Errorf("the page is %d:\n%s", status, page)
	}
	if strings.Contains(page, "<img") || strings.Contains(page, "<script>") || strings.Contains(page, `" onclick="`) {
		t.Errorf("the page has markup that somebody wrote:\n%s", page)
	}
}

func TestCommandLineSaysWhatIsMissing(t *testing.T) {
	t.Setenv("FANFARE_STORE", "")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"serve"}, "--database names no database"},
		{[]string{"demo"}, "--database names no database"},
		{[]string{"demo", "extra"}, "extra"},
		{[]string{"demo", "--database", "postgres://x", "--fanfare", "/nowhere/fanfare"}, "/nowhere/fanfare"},
		{[]string{"demo", "--database", "postgres://x", "--fanfare", "/bin/sh", "--nginx", "/bin/sh", "--nginx-config", "../../deploy/nginx", "--site", "here"}, "--site"},
		{[]string{"demo", "--database", "postgres://x", "--fanfare", "/bin/sh", "--nginx", "/bin/sh", "--nginx-config", "/nowhere"}, "/nowhere/fanfare-streams.conf"},
	} {
		command := newCommand()
		command.SetArgs(test.args)
		command.SetErr(io.Discard)
		if err := command.ExecuteContext(bounded(t)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("chat %v: %v, want %q", test.args, err, test.want)
		}
	}
}
