package console

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func ask(t *testing.T, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	answer := httptest.NewRecorder()
	Handler().ServeHTTP(answer, request)
	return answer
}

// The page names what it loads relative to itself: a proxy may put it under a prefix.
func TestThePageLoadsOnlyWhatIsBesideIt(t *testing.T) {
	page := ask(t, http.MethodGet, Path).Body.String()
	named := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(named) < 4 {
		t.Fatalf("the page names %q", named)
	}
	for _, n := range named {
		name := n[1]
		if strings.HasPrefix(name, "../") {
			continue // for who has no JavaScript
		}
		if answer := ask(t, http.MethodGet, Path+name); answer.Code != http.StatusOK {
			t.Errorf("%s is answered %d", name, answer.Code)
		}
	}
	if inline := regexp.MustCompile(`<script[^>]*>[^<]|<style|\son[a-z]+=|\sstyle=`).FindString(page); inline != "" {
		t.Errorf("the page has inline %q, which its policy forbids", inline)
	}
}

func TestEveryFileHasItsTypeAndItsPolicy(t *testing.T) {
	for path, contentType := range map[string]string{
		Path:                       "text/html; charset=utf-8",
		Path + "console.js":        "text/javascript; charset=utf-8",
		Path + "console-style.css": "text/css; charset=utf-8",
		Path + "icon.svg":          "image/svg+xml",
		Path + "licenses.txt":      "text/plain; charset=utf-8",
	} {
		answer := ask(t, http.MethodGet, path)
		h := answer.Header()
		if answer.Code != http.StatusOK || h.Get("Content-Type") != contentType {
			t.Errorf("%s: %d, %s", path, answer.Code, h.Get("Content-Type"))
		}
		if h.Get("Content-Security-Policy") != contentSecurityPolicy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s lacks what protects it: %v", path, h)
		}
	}
	if strings.Contains(contentSecurityPolicy, "unsafe") {
		t.Error("the policy lets something unsafe in")
	}
}

func TestFilesAreSentOnceAndCompressed(t *testing.T) {
	const script = Path + "console.js"
	plain, packed := ask(t, http.MethodGet, script), ask(t, http.MethodGet, script, "Accept-Encoding", "br, gzip;q=0.8")
	if packed.Header().Get("Content-Encoding") != "gzip" || plain.Header().Get("Content-Encoding") != "" {
		t.Fatalf("compressed: %v, plain: %v", packed.Header(), plain.Header())
	}
	if n := packed.Body.Len(); n > 100<<10 {
		t.Errorf("the script has %d bytes, compressed; it is to stay below 100 KiB", n)
	}
	z, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := io.ReadAll(z); err != nil || !bytes.Equal(unpacked, plain.Body.Bytes()) {
		t.Errorf("%d bytes, %v; want the %d that are sent plain", len(unpacked), err, plain.Body.Len())
	}
	for _, answer := range []*httptest.ResponseRecorder{plain, packed} {
		h := answer.Header()
		if h.Get("Cache-Control") != "no-cache" || h.Get("Vary") != "Accept-Encoding" {
			t.Errorf("it is kept without being asked for again: %v", h)
		}
		again := ask(t, http.MethodGet, script, "If-None-Match", h.Get("ETag"), "Accept-Encoding", h.Get("Content-Encoding"))
		if again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("asked for again with its ETag it is answered %d, with %d bytes", again.Code, again.Body.Len())
		}
	}
	if plain.Header().Get("ETag") == packed.Header().Get("ETag") {
		t.Error("what differs has one ETag")
	}
}

func TestAcceptEncoding(t *testing.T) {
	for value, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "br": false, "*": true, "gzip;q=0": false, "gzip; q=0.000": false,
		"*;q=0": false, "gzip;q=0, *": false, "*;q=0, gzip": true, "deflate, gzip;q=1.0": true, "gzip;q=x": false, "xgzip": false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept-Encoding", value)
		if got := acceptsGzip(r); got != want {
			t.Errorf("%q: %t, want %t", value, got, want)
		}
	}
}

func TestThereIsNothingElse(t *testing.T) {
	for _, path := range []string{Path + "nothing", Path + "../console.go", Path + "dist/console.js", Path + "web/package.json", "/console"} {
		if answer := ask(t, http.MethodGet, path); answer.Code != http.StatusNotFound {
			t.Errorf("%s is answered %d", path, answer.Code)
		}
	}
	answer := ask(t, http.MethodPost, Path)
	if answer.Code != http.StatusMethodNotAllowed || answer.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST is answered %d, %v", answer.Code, answer.Header())
	}
	if head := ask(t, http.MethodHead, Path); head.Code != http.StatusOK || head.Body.Len() > 0 {
		t.Errorf("HEAD is answered %d, with %d bytes", head.Code, head.Body.Len())
	}
}
