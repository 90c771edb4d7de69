package service

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/service/hub"
)

// healthzServer is a server whose readiness a test sets.
func healthzServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	store, bus := &fakeStore{}, &fakeBus{}
	cfg.Logger = slog.New(slog.DiscardHandler)
	return New(store, hub.New(bus, store, EncodeFrame, hub.Config{}), bus, cfg)
}

// makeReady shows the server a store that answers and a bus that listens.
func makeReady(s *Server, at time.Time) {
	s.health.observe(func(h *healthState) { h.store.well(at); h.bus.well(at) })
}

func get(t *testing.T, s *Server, method, path string) *httptest.ResponseRecorder {
	t.Helper()
	answer := httptest.NewRecorder()
	s.HTTPHandler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, http.NoBody))
	return answer
}

func readHealthz(t *testing.T, s *Server) (code int, document healthz) {
	t.Helper()
	answer := get(t, s, http.MethodGet, "/healthz")
	if err := json.Unmarshal(answer.Body.Bytes(), &document); err != nil {
		t.Fatalf("%v in %s", err, answer.Body)
	}
	return answer.Code, document
}

// What the document says is what an operator reads: its names are kept.
func TestHealthzDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time is 2000-01-01T00:00:00Z
		s := healthzServer(t, Config{Version: "v1.2.3", Instance: "db1-17"})
		elapse(time.Second)
		makeReady(s, time.Now())
		elapse(1500 * time.Millisecond)
		const want = `{
  "status": "ready",
  "since": "2000-01-01T00:00:01Z",
  "reasons": [],
  "draining": false,
  "channel": {
    "kind": "postgresql",
    "listening": true,
    "since": "2000-01-01T00:00:01Z"
  },
  "store": {
    "answering": true,
    "since": "2000-01-01T00:00:01Z"
  },
  "hub": {
    "streams": 0,
    "subscribers": 0,
    "tail_bytes": 0,
    "page_bytes": 0,
    "frames": 0,
    "ephemeral": 0,
    "slow_subscribers": 0
  },
  "published": 0,
  "version": "v1.2.3",
  "instance": "db1-17",
  "started": "2000-01-01T00:00:00Z",
  "now": "2000-01-01T00:00:02.5Z"
}
`
		if got := get(t, s, http.MethodGet, "/healthz").Body.String(); got != want {
			t.Errorf("the document is\n%swant\n%s", got, want)
		}
	})
}

// The document and the health service give one verdict at any moment, and the
// document says why and since when.
func TestHealthzFollowsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, bus := &fakeStore{}, &fakeBus{}
		s := New(store, hub.New(bus, store, EncodeFrame, hub.Config{}), bus, Config{Logger: slog.New(slog.DiscardHandler)})
		w := &healthWorld{t: t, healthService: s.health, store: store, bus: bus}
		began := time.Now().UTC()
		// check waits for d and checks what is then said.
		check := func(d time.Duration, ready bool, since time.Duration, reasons ...string) healthz {
			t.Helper()
			elapse(d)
			w.want(ready)
			code, document := readHealthz(t, s)
			status, wantCode := "not ready", http.StatusServiceUnavailable
			if ready {
				status, wantCode = "ready", http.StatusOK
			}
			if code != wantCode || document.Status != status || !slices.Equal(document.Reasons, reasons) {
				t.Errorf("%d, %+v; want %q because of %q", code, document, status, reasons)
			}
			if got := document.Since.Sub(began); got < since || got > since+pingInterval+outageTolerance {
				t.Errorf("%s since %s after the beginning, want about %s", status, got, since)
			}
			return document
		}
		check(0, false, 0, "the store has not answered yet", "the listener is not connected")
		w.running(func() {
			check(time.Minute, false, 0, "the listener is not connected")
			bus.set(1)
			check(time.Minute, true, time.Minute)

			// A blip is shown, and changes no verdict.
			bus.set(0)
			document := check(500*time.Millisecond, true, time.Minute)
			if document.Channel.Listening || document.Now.Sub(document.Channel.Since) > time.Second {
				t.Errorf("a listener that is away is shown as %+v", document.Channel)
			}
			bus.set(2)
			document = check(time.Minute, true, time.Minute)
			// A flapping listener is known by this time.
			if got := document.Channel.Since.Sub(began); !document.Channel.Listening || got < 2*time.Minute {
				t.Errorf("it listens since %s", got)
			}

			store.setErr(fmt.Errorf("ping: %w: %s", backlog.ErrUnavailable, driverText))
			document = check(time.Minute, false, 3*time.Minute, "the store is not available")
			if document.Store.Answering || document.Store.Since.After(document.Since) {
				t.Errorf("a store that is away is shown as %+v", document.Store)
			}
			bus.set(0)
			check(time.Minute, false, 3*time.Minute, "the store is not available", "the listener is not connected")
			store.setErr(nil)
			bus.set(3)
			check(time.Minute, true, 5*time.Minute)
			s.health.drain()
			if document := check(time.Minute, false, 6*time.Minute, "the server is draining"); !document.Draining || !document.Store.Answering {
				t.Errorf("a draining server is shown as %+v", document)
			}
		})
	})
}

// A store that hangs is told apart from one that refuses.
func TestHealthzOfAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hangingStore{}
		bus := &fakeBus{}
		bus.set(1)
		s := New(store, hub.New(bus, store, EncodeFrame, hub.Config{}), bus, Config{Logger: slog.New(slog.DiscardHandler)})
		w := &healthWorld{t: t, healthService: s.health, bus: bus}
		w.running(func() {
			elapse(10 * time.Second)
			code, document := readHealthz(t, s)
			if want := []string{"the store does not answer within 2s"}; code != http.StatusServiceUnavailable || !slices.Equal(document.Reasons, want) {
				t.Errorf("%d, %q; want %q", code, document.Reasons, want)
			}
		})
	})
}

// An embedded store has no listener and no connection to speak of.
func TestHealthzSpeaksOfTheBusThatIsThere(t *testing.T) {
	for kind, want := range map[string]string{
		"":            "the listener is not connected",
		BusPostgreSQL: "the listener is not connected",
		BusInProcess:  "the in-process bus does not run",
	} {
		s := healthzServer(t, Config{BusKind: kind})
		s.health.observe(func(h *healthState) { h.store.well(time.Now()) })
		_, document := readHealthz(t, s)
		if !slices.Equal(document.Reasons, []string{want}) {
			t.Errorf("%q: %q, want %q", kind, document.Reasons, want)
		}
		if kind == BusInProcess && document.Channel.Kind != BusInProcess || kind != BusInProcess && document.Channel.Kind != BusPostgreSQL {
			t.Errorf("%q is shown as %q", kind, document.Channel.Kind)
		}
	}
}

func TestHealthzKeepsDriverTextInTheLog(t *testing.T) {
	log := &lines{}
	s := healthzServer(t, Config{})
	s.health.logger = slog.New(slog.NewTextHandler(log, nil))
	makeReady(s, time.Now())
	s.health.observe(func(h *healthState) {
		h.store.away(time.Now().Add(-time.Minute), readFailureOf(wrapped(backlog.ErrUnavailable)))
	})
	if body := get(t, s, http.MethodGet, "/healthz").Body.String(); strings.Contains(body, "10.0.0.7") {
		t.Errorf("a driver's text is in %s", body)
	}
	if line, _ := log.last(); !strings.Contains(line, driverText) || !strings.Contains(line, "channel=well") {
		t.Errorf("the log says %s", line)
	}
}

func TestHealthzOverHTTP(t *testing.T) {
	s := healthzServer(t, Config{})
	server := httptest.NewServer(s.HTTPHandler())
	defer server.Close()
	call := func(method, path string) (*http.Response, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close() //nolint:errcheck // it was read
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Header.Get("Cache-Control") != "no-store" || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s has the headers %v", method, path, answer.Header)
		}
		return answer, string(body)
	}
	for _, ready := range []bool{false, true} {
		readiness := http.StatusServiceUnavailable
		if ready {
			makeReady(s, time.Now())
			readiness = http.StatusOK
		}
		for path, code := range map[string]int{"/healthz": readiness, "/healthz?verbose": readiness, "/livez": http.StatusOK} {
			answer, body := call(http.MethodGet, path)
			if answer.StatusCode != code || answer.Header.Get("Content-Type") != "application/json" || !json.Valid([]byte(body)) {
				t.Errorf("ready %t: GET %s is %s, %v, %s", ready, path, answer.Status, answer.Header, body)
			}
			head, none := call(http.MethodHead, path)
			if head.StatusCode != code || none != "" || head.ContentLength <= 0 {
				t.Errorf("ready %t: HEAD %s is %s with %d bytes of %d", ready, path, head.Status, len(none), head.ContentLength)
			}
		}
	}
	for _, path := range []string{"/healthz", "/livez"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodTrace, "BREW"} {
			answer, body := call(method, path)
			if answer.StatusCode != http.StatusMethodNotAllowed || answer.Header.Get("Allow") != "GET, HEAD" || json.Valid([]byte(body)) {
				t.Errorf("%s %s is %s, Allow %q", method, path, answer.Status, answer.Header.Get("Allow"))
			}
		}
	}
	for _, path := range []string{"/", "/healthz/", "/healthz/x", "/metrics"} {
		if answer, _ := call(http.MethodGet, path); answer.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s is %s", path, answer.Status)
		}
	}
}
