package browser_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib/browser"
)

func TestHandlerServesTheModuleAsItIs(t *testing.T) {
	want, err := os.ReadFile("fanfare.js")
	if err != nil {
		t.Fatal(err)
	}
	answer := serve(http.MethodGet, "")
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/javascript; charset=utf-8" {
		t.Errorf("answered %s as %q", answer.Status, answer.Header.Get("Content-Type"))
	}
	if got, err := io.ReadAll(answer.Body); err != nil || string(got) != string(want) {
		t.Errorf("%d bytes were served, %v; the file has %d", len(got), err, len(want))
	}
}

func TestHandlerSaysThatACopyIsStillTheSame(t *testing.T) {
	first := serve(http.MethodGet, "")
	etag := first.Header.Get("ETag")
	if etag == "" || first.Header.Get("Cache-Control") != "no-cache" {
		t.Fatalf("ETag %q, Cache-Control %q: a browser would not ask again", etag, first.Header.Get("Cache-Control"))
	}
	if again := serve(http.MethodGet, etag); again.StatusCode != http.StatusNotModified {
		t.Errorf("asked with the tag that it gave, it answered %s", again.Status)
	}
	if other := serve(http.MethodGet, `"of another build"`); other.StatusCode != http.StatusOK {
		t.Errorf("asked with another tag, it answered %s", other.Status)
	}
}

func TestHandlerTakesNothing(t *testing.T) {
	if answer := serve(http.MethodPost, ""); answer.StatusCode != http.StatusMethodNotAllowed || answer.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST was answered %s, Allow %q", answer.Status, answer.Header.Get("Allow"))
	}
}

func serve(method, etag string) *http.Response {
	request := httptest.NewRequest(method, "/fanfare.js", nil)
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	recorder := httptest.NewRecorder()
	browser.Handler().ServeHTTP(recorder, request)
	return recorder.Result()
}
