// Package browser serves fanfare.js, Fanfare's client for web pages: one ES module
// without dependencies, which subscribes to what package clientlib/sse serves, over
// EventSource or fetch, and resumes by itself. README.md has its manual, and
// fanfare.d.ts its types.
package browser

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"net/http"
	"time"
)

//go:embed fanfare.js
var module []byte

// Handler serves the module, whatever the path of a request: mount it where pages
// are to import it from, such as /fanfare.js. Pages of any origin may, as the module
// holds nothing secret. Browsers ask each time whether the copy that they keep is
// still the same one (ETag), so that a page never runs with the module of a server
// that was upgraded since. Methods other than GET and HEAD are answered 405.
func Handler() http.Handler {
	sum := sha256.Sum256(module)
	etag := `"` + hex.EncodeToString(sum[:16]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are possible here", http.StatusMethodNotAllowed)
			return
		}
		header := w.Header()
		header.Set("Content-Type", "text/javascript; charset=utf-8")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-cache")
		header.Set("ETag", etag)
		header.Set("Access-Control-Allow-Origin", "*")
		header.Set("Cross-Origin-Resource-Policy", "cross-origin")
		// Without a time there is no Last-Modified: a binary does not know when it changed.
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(module))
	})
}
