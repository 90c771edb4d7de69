package main

import (
	"net/http"
	"strings"

	"github.com/fanfare-io/fanfare/clientlib/browser"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	webconsole "github.com/fanfare-io/fanfare/cmd/fanfare/internal/console"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
	"github.com/fanfare-io/fanfare/gen/openapi"
)

const (
	streamsPath = "/v1/streams"
	signPath    = "/v1/signed-url"
)

// webRoutes are what is served at which path. What is nil is not served.
type webRoutes struct {
	// health answers /healthz and /livez.
	health http.Handler
	events *sse.Handler
	// calls answers JSON over HTTP, Connect, gRPC-Web and gRPC.
	calls   *transcode.Handler
	access  *webAccess
	origins []string
	// console is true if there is the page.
	console bool
}

func (routes *webRoutes) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", routes.health)
	mux.Handle("/livez", routes.health)
	mux.Handle("/fanfare.js", browser.Handler())
	mux.Handle(streamsPath, routes.events)
	mux.Handle(streamsPath+"/", routes.events)
	mux.Handle(signPath, corsFor(routes.origins, true)(only(http.MethodPost, routes.sign)))
	if routes.calls != nil {
		mux.HandleFunc("GET /openapi.json", serveDescription)
		calls := corsFor(routes.origins, false)(routes.calls)
		mux.Handle("/v1/", calls)
		for _, service := range routes.calls.Services() {
			mux.Handle(service, calls)
		}
	}
	if routes.console {
		mux.Handle(webconsole.Path, webconsole.Handler())
		mux.HandleFunc("GET /{$}", redirectToConsole)
	}
	nothing := "there is nothing at this path; /openapi.json describes what there is"
	if routes.calls == nil {
		nothing = "there is nothing at this path; an edge serves event streams, and fanfare serve --http everything else"
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { transcode.Refuse(w, http.StatusNotFound, nothing) })
	return mux
}

// only answers requests of one method.
func only(method string, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method {
			w.Header().Set("Allow", method)
			transcode.Refuse(w, http.StatusMethodNotAllowed, "the method must be "+method)
			return
		}
		next(w, r)
	})
}

// redirectToConsole names the console by a path that is relative, as a proxy may serve all
// of this below another one. http.Redirect would name it from the root.
func redirectToConsole(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", strings.TrimPrefix(webconsole.Path, "/"))
	w.WriteHeader(http.StatusFound)
}

func serveDescription(w http.ResponseWriter, _ *http.Request) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-cache")
	// It says what everybody may know who has the program.
	header.Set("Access-Control-Allow-Origin", "*")
	_, _ = w.Write(openapi.Document)
}
