package main

import (
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/rs/cors"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
)

// guardedWeb adds what every answer has, and answers where a handler panics. Nothing is
// logged of a request: its URL and its headers may hold credentials.
func guardedWeb(next http.Handler, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		// A signed URL is not to be told to whom a page leads.
		header.Set("Referrer-Policy", "no-referrer")
		// Pages have a policy of their own.
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		answer := &begunWriter{ResponseWriter: w}
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p) // the connection is to be broken
			}
			logger.Error("a panic while a request over HTTP was answered", "panic", p, "stack", string(debug.Stack()))
			// An answer that has begun ends in the middle, so that nobody takes it for a whole
			// one. Otherwise the connection is broken, too, whose state nobody knows: that
			// drops what is not sent yet. EventSource comes again after that alone, and gives up
			// for ever on an error.
			if !answer.begun && !isEventStream(r) {
				transcode.Refuse(w, http.StatusInternalServerError, "a fault in the server; its log has the details")
				_ = http.NewResponseController(w).Flush() // the client has gone
			}
			panic(http.ErrAbortHandler)
		}()
		next.ServeHTTP(answer, r)
	})
}

// isEventStream reports whether a request is for an event stream.
func isEventStream(r *http.Request) bool {
	return r.URL.Path == streamsPath || strings.HasPrefix(r.URL.Path, streamsPath+"/")
}

// begunWriter knows whether an answer has begun.
type begunWriter struct {
	http.ResponseWriter
	begun bool
}

func (w *begunWriter) WriteHeader(status int) {
	w.begun = w.begun || status >= http.StatusOK
	w.ResponseWriter.WriteHeader(status)
}

func (w *begunWriter) Write(p []byte) (int, error) {
	w.begun = true
	return w.ResponseWriter.Write(p)
}

// Flush is for those who ask whether a writer can.
func (w *begunWriter) Flush() { _ = w.FlushError() }

// FlushError begins an answer, too.
func (w *begunWriter) FlushError() error {
	w.begun = true
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for an [http.ResponseController].
func (w *begunWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// originMatcher reports whether an origin is one of those allowed; nil if none is.
func originMatcher(allowed []string) func(origin string) bool {
	if len(allowed) == 0 {
		return nil
	}
	patterns := make([]*regexp.Regexp, len(allowed))
	for i, origin := range allowed {
		patterns[i] = regexp.MustCompile("^(?i:" + strings.Replace(regexp.QuoteMeta(origin), `\*`, ".*", 1) + ")$")
	}
	return func(origin string) bool {
		return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(origin) })
	}
}

// corsFor lets pages of the allowed origins read the answers of calls. Credentials are
// those that a page adds by itself; where cookies is true, a browser's cookies, too.
func corsFor(allowed []string, cookies bool) func(http.Handler) http.Handler {
	if len(allowed) == 0 {
		return func(next http.Handler) http.Handler { return next } // the library's default is everybody
	}
	return cors.New(cors.Options{
		AllowedOrigins: allowed,
		AllowedMethods: []string{http.MethodGet, http.MethodPost, http.MethodPut},
		AllowedHeaders: []string{
			"Authorization", "Content-Type", "Content-Encoding", "X-Server-Timeout", "Traceparent", "Tracestate",
			"Connect-Protocol-Version", "Connect-Timeout-Ms", "Connect-Content-Encoding", "Connect-Accept-Encoding",
			"Grpc-Timeout", "X-Grpc-Web", "X-User-Agent",
		},
		ExposedHeaders:   []string{"Grpc-Status", "Grpc-Message", "Grpc-Status-Details-Bin", "Retry-After"},
		AllowCredentials: cookies && !slices.Contains(allowed, "*"),
		MaxAge:           600,
	}).Handler
}
