package service

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// HTTPHandler serves, for probes and for people:
//
//   - GET /healthz: readiness, the same verdict as the health service's, as JSON;
//     200 if ready, else 503. It is answered from memory.
//   - GET /livez: 200 while the process runs.
//
// It never says what a driver said. Whoever serves it on a loopback address
// without authentication wraps it with [LoopbackOnly].
func (s *Server) HTTPHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.serveHealthz)
	mux.HandleFunc("GET /livez", serveLivez)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A cached answer would be one about the past.
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(w, r)
	})
}

// Readiness is how a document of /healthz begins, whatever it is of, for whoever asks
// different programs. Make it with [NewReadiness].
type Readiness struct {
	// Status is "ready" or "not ready", Since when that or Draining became so, in UTC.
	Status string    `json:"status"`
	Since  time.Time `json:"since"`
	// Reasons say why it is not ready; empty, not null, if it is.
	Reasons  []string `json:"reasons"`
	Draining bool     `json:"draining"`
}

// NewReadiness returns what is ready if there are no reasons why it is not.
func NewReadiness(since time.Time, draining bool, reasons []string) Readiness {
	r := Readiness{Status: "ready", Since: inDocument(since), Reasons: []string{}, Draining: draining}
	if len(reasons) > 0 {
		r.Status, r.Reasons = "not ready", reasons
	}
	return r
}

// HTTPStatus is the status that the document is answered with: 200 if ready, else 503.
func (r *Readiness) HTTPStatus() int {
	if len(r.Reasons) > 0 {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// healthz is the document of /healthz. Times are in UTC.
type healthz struct {
	Readiness
	Channel healthzChannel `json:"channel"`
	Store   healthzStore   `json:"store"`
	Hub     healthzHub     `json:"hub"`
	// Published counts the frames that clients of this server have published since it
	// started, of both kinds. Who reads it twice knows a rate.
	Published uint64    `json:"published"`
	Version   string    `json:"version,omitempty"`
	Instance  string    `json:"instance,omitempty"`
	Started   time.Time `json:"started"`
	// Now is this machine's clock, which the other times are by.
	Now time.Time `json:"now"`
}

type healthzChannel struct {
	// Kind is BusPostgreSQL, BusPoll or BusInProcess.
	Kind      string    `json:"kind"`
	Listening bool      `json:"listening"`
	Since     time.Time `json:"since"`
}

type healthzStore struct {
	Answering bool      `json:"answering"`
	Since     time.Time `json:"since"`
}

// healthzHub is what the hub holds and has done since the server started.
type healthzHub struct {
	// Streams is how many are resident, Subscribers how many subscriptions they have.
	Streams     int `json:"streams"`
	Subscribers int `json:"subscribers"`
	// TailBytes is what all tails hold, PageBytes what all pages of the backlog do that
	// are being replayed.
	TailBytes int64 `json:"tail_bytes"`
	PageBytes int64 `json:"page_bytes"`
	// Frames counts frames of resident streams that were published since, at any replica
	// or by SQL; Ephemeral the ephemeral ones among them.
	Frames    uint64 `json:"frames"`
	Ephemeral uint64 `json:"ephemeral"`
	// SlowSubscribers counts subscriptions that were ended because ephemeral frames had
	// to be dropped before they took them.
	SlowSubscribers uint64 `json:"slow_subscribers"`
}

func (s *Server) healthzHub() healthzHub {
	if s.hub == nil {
		return healthzHub{} // there is no store yet
	}
	stats := s.hub.Stats()
	return healthzHub{
		Streams:         stats.Streams,
		Subscribers:     stats.Subscribers,
		TailBytes:       stats.TailBytes,
		PageBytes:       stats.PageBytes,
		Frames:          stats.Appended + stats.Read + stats.Ephemeral,
		Ephemeral:       stats.Ephemeral,
		SlowSubscribers: stats.Slow,
	}
}

func (s *Server) serveHealthz(w http.ResponseWriter, _ *http.Request) {
	state := s.health.current()
	document := s.healthz(&state)
	writeJSON(w, document.HTTPStatus(), document)
}

func (s *Server) healthz(state *healthState) healthz {
	var reasons []string
	if !state.ready {
		reasons = state.faults()
	}
	if state.draining {
		reasons = append(reasons, "the server is draining")
	}
	return healthz{
		Readiness: NewReadiness(state.since, state.draining, reasons),
		Channel:   healthzChannel{Kind: s.cfg.BusKind, Listening: state.bus.isWell(), Since: inDocument(state.bus.since)},
		Store:     healthzStore{Answering: state.store.isWell(), Since: inDocument(state.store.since)},
		Hub:       s.healthzHub(),
		Published: s.publishes.Load(),
		Version:   s.cfg.Version,
		Instance:  s.cfg.Instance,
		Started:   inDocument(s.health.started),
		Now:       inDocument(time.Now()),
	}
}

func inDocument(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

func serveLivez(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"alive"})
}

// writeJSON writes a document of this file, indented for people.
func writeJSON(w http.ResponseWriter, status int, document any) {
	body, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		// Only for years beyond 9999.
		http.Error(w, "the document cannot be written", http.StatusInternalServerError)
		return
	}
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	// So that HEAD has it, too.
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client has gone
}
