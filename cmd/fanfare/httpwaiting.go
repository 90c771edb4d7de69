package main

import (
	"encoding/json"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Reasons, as JSON tells them, why a server does nothing yet or any more. Each says that
// nothing was published.
const (
	reasonNoStore   = "STORE_UNAVAILABLE"
	reasonNoServer  = "NOT_LISTENING"
	reasonServerEnd = "DRAINING"
)

const messageServerEnd = "the server ends"

// waitingPage is what is served over HTTP before there is a store.
func (o *serveOptions) waitingPage(logger *slog.Logger) http.Handler {
	health := service.New(absentStore{}, nil, absentBus{}, o.serviceConfig(logger)).HTTPHandler()
	return notReady(health, o.web.events(logger), transcode.Problem{Reason: reasonNoStore, Message: "the server waits for its database"})
}

// notReady has the health pages, and says of everything else that it is not there at
// the moment, and why. Pages of the origins that events allows may read that: to them an
// answer that they may not read is final.
func notReady(health http.Handler, events sse.Config, why transcode.Problem) http.Handler {
	why.Code, why.RetryIn = connect.CodeUnavailable.String(), 1
	body, err := json.Marshal(why)
	if err != nil {
		panic(err) // it is text and numbers
	}
	body = append(body, '\n')
	mux := http.NewServeMux()
	mux.Handle("/healthz", health)
	mux.Handle("/livez", health)
	streams := sse.New(nil, events)
	mux.Handle(streamsPath, streams)
	mux.Handle(streamsPath+"/", streams)
	mux.Handle("/", corsFor(events.AllowedOrigins, true)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Set("Retry-After", "1")
		header.Set("Content-Type", "application/json")
		header.Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write(body) // the client has gone
	})))
	return mux
}

// absentStore and absentBus stand for those that are not there yet. The health
// page asks nothing of them, as nobody runs the server that it is of.
type (
	absentStore struct{ backlog.Store }
	absentBus   struct{ hub.Bus }
)
