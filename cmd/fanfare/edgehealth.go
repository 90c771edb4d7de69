package main

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service"
)

// edgeHealth is what an edge says of itself.
type edgeHealth struct {
	conn *grpc.ClientConn
	// connected is closed when a server was connected for the first time.
	connected chan struct{}
	started   time.Time

	mu sync.Mutex // guards what follows
	// ready is true while a server is connected that is ready, since when is since.
	ready bool
	since time.Time
	// refusal is why the servers do not take the edge's token; empty if they do.
	refusal  string
	draining bool
	once     sync.Once
}

func newEdgeHealth(conn *grpc.ClientConn) *edgeHealth {
	now := time.Now()
	return &edgeHealth{conn: conn, connected: make(chan struct{}), started: now, since: now}
}

// note notes whether a server is connected, and reports whether that is news.
func (h *edgeHealth) note(ready bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ready {
		h.once.Do(func() { close(h.connected) })
	}
	if h.ready == ready {
		return false
	}
	h.ready, h.since = ready, time.Now()
	return true
}

// noteToken notes why the servers do not take the edge's token, empty if they do, and
// reports whether that is news.
func (h *edgeHealth) noteToken(refusal string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusal == refusal {
		return false
	}
	h.refusal, h.since = refusal, time.Now()
	return true
}

func (h *edgeHealth) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining, h.since = true, time.Now()
}

// edgeDocument is the document of an edge's /healthz. Times are in UTC.
type edgeDocument struct {
	service.Readiness
	Events  edgeCounters `json:"events"`
	Version string       `json:"version,omitempty"`
	Started time.Time    `json:"started"`
	Now     time.Time    `json:"now"`
}

// edgeCounters say how many browsers are connected and how many streams they watch.
type edgeCounters struct {
	Connections int `json:"connections"`
	Streams     int `json:"streams"`
}

func (h *edgeHealth) document() (document edgeDocument, status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var reasons []string
	if !h.ready {
		reasons = append(reasons, errNoServer.Error())
	}
	if h.refusal != "" {
		reasons = append(reasons, h.refusal)
	}
	if h.draining {
		reasons = append(reasons, "the edge is draining")
	}
	document = edgeDocument{
		Readiness: service.NewReadiness(h.since, h.draining, reasons),
		Version:   buildVersion(), Started: utc(h.started), Now: utc(time.Now()),
	}
	return document, document.HTTPStatus()
}

func utc(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// handler serves /healthz and /livez. stats are of the event streams; nil before there
// are any.
func (h *edgeHealth) handler(stats func() sse.Stats) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		document, status := h.document()
		if stats != nil {
			now := stats()
			document.Events = edgeCounters{Connections: now.Connections, Streams: now.Streams}
		}
		writeHealth(w, status, document)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeHealth(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	return mux
}

func writeHealth(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(document) // the client has gone
}
