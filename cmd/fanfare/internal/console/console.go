// Package console has the page on which people see a replica's streams and health,
// watch a stream and publish to it.
//
// The page is built from web/ into dist/, which is committed and embedded, so that
// building the program takes no npm. It asks nothing but the server that it came from:
// what it shows comes from the JSON endpoints, /healthz and the event streams beside it,
// by addresses relative to its own, so that it works under the prefix of a proxy that
// removes it.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Path is where [Handler] is to be mounted.
const Path = "/console/"

//go:embed dist
var dist embed.FS

// contentSecurityPolicy lets the page load and ask what is on its own origin, and
// nothing else: no inline script or style, no frame, no plug-in, no form that leaves.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page at [Path] and what it loads below that. The answers are the
// same for everybody and hold nothing of the server's: they need no authentication.
func Handler() http.Handler {
	return http.HandlerFunc(serve)
}

func serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the console is only read", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, Path)
	if name == "" {
		name = "index.html"
	}
	f, ok := files()[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	f.serve(w, r)
}

// file is one of dist, ready to be served.
type file struct {
	contentType string
	etag        string
	plain, gzip []byte
}

// files are those of dist by their names.
var files = sync.OnceValue(func() map[string]*file {
	out := make(map[string]*file)
	// An embedded file system has no errors.
	_ = fs.WalkDir(dist, "dist", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := dist.ReadFile(name)
		if err == nil {
			out[strings.TrimPrefix(name, "dist/")] = newFile(name, content)
		}
		return err
	})
	return out
})

func newFile(name string, content []byte) *file {
	digest := sha256.Sum256(content)
	f := &file{
		contentType: contentTypeOf(name),
		etag:        hex.EncodeToString(digest[:12]),
		plain:       content,
	}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // a level that there is
	_, _ = z.Write(content)                                    // a buffer takes everything
	_ = z.Close()
	f.gzip = packed.Bytes()
	return f
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// Kept, and asked for again each time: after an upgrade no page mixes versions.
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	body := f.plain
	if acceptsGzip(r) {
		body = f.gzip
		h.Set("Content-Encoding", "gzip")
		h.Set("ETag", `"`+f.etag+`-gzip"`)
	} else {
		h.Set("ETag", `"`+f.etag+`"`)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
