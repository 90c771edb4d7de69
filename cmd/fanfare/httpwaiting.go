package main

import (
	"log/slog"
	"net/http"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
)

// comeAgain is an event stream that is none yet: EventSource gives up for ever on any
// answer but 200, and comes again after the time that it is told.
const comeAgain = "retry: 2000\n\nevent: fanfare.reconnect\ndata: {\"reason\":\"UNAVAILABLE\",\"retry_in_ms\":2000}\n\n"

// waitingPage is what is served over HTTP before there is a store.
func (o *serveOptions) waitingPage(logger *slog.Logger) http.Handler {
	health := service.New(absentStore{}, nil, absentBus{}, o.serviceConfig(logger)).HTTPHandler()
	return notReady(health, "the server waits for its database")
}

// notReady has the health pages, and says of everything else that it is not there at
// the moment.
func notReady(health http.Handler, message string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", health)
	mux.Handle("/livez", health)
	mux.HandleFunc(streamsPath, serveComeAgain)
	mux.HandleFunc(streamsPath+"/", serveComeAgain)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		transcode.Refuse(w, http.StatusServiceUnavailable, message)
	})
	return mux
}

func serveComeAgain(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		transcode.Refuse(w, http.StatusMethodNotAllowed, "the method must be GET")
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store, no-transform")
	_, _ = w.Write([]byte(comeAgain)) // the browser has gone
}

// absentStore and absentBus stand for those that are not there yet. The health
// page asks nothing of them, as nobody runs the server that it is of.
type (
	absentStore struct{ backlog.Store }
	absentBus   struct{ hub.Bus }
)
