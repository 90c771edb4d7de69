package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	gosse "github.com/tmaxmax/go-sse"

	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
)

// Symptom: while a server waited for its database, an EventSource of another origin was
// answered without a word that its page may read that, and gave up for ever; one of the
// same origin came again and had forgotten its position, by a block without an id.
func TestPagesOfOtherOriginsAreToldToComeAgain(t *testing.T) {
	t.Parallel()
	const good = "https://app.example.com"
	h := notReady(http.NotFoundHandler(), sse.Config{AllowedOrigins: []string{good}}, transcode.Problem{Reason: reasonNoStore, Message: "not yet"})
	answer := func(method, path string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{"/v1/streams?channel=c", "/v1/streams/c/s", "/v1/publish"} {
		for origin, want := range map[string]string{good: good, "https://attacker.example": "", "": ""} {
			w := answer(http.MethodGet, path, "Origin", origin)
			if got := w.Header().Get("Access-Control-Allow-Origin"); got != want {
				t.Errorf("%s for pages of %q: %q may read", path, origin, got)
			}
			if want != "" && w.Header().Get("Access-Control-Allow-Credentials") != "true" {
				t.Errorf("%s: %v", path, w.Header())
			}
		}
		w := answer(http.MethodOptions, path, "Origin", good, "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization")
		if w.Code >= 300 || w.Header().Get("Access-Control-Allow-Origin") != good {
			t.Errorf("%s: a preflight is answered %d, %v", path, w.Code, w.Header())
		}
	}
	w := answer(http.MethodGet, "/v1/streams?channel=c", "Last-Event-ID", "1-7")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/event-stream" || !strings.Contains(w.Body.String(), "retry: ") {
		t.Errorf("status %d, %v, %q", w.Code, w.Header(), w.Body)
	}
	for event, err := range gosse.Read(strings.NewReader(w.Body.String()), nil) {
		if err != nil || event.LastEventID != "1-7" {
			t.Errorf("an event that moves the position: %+v, %v", event, err)
		}
	}
	if w := answer(http.MethodPost, "/v1/streams"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", w.Code)
	}
}

// Symptom: who published while the server waited for its database was told 503 without a
// reason, and could not know whether the frame was stored.
func TestWhatIsNotReadySaysThatNothingWasPublished(t *testing.T) {
	t.Parallel()
	h := notReady(http.NotFoundHandler(), sse.Config{}, transcode.Problem{Reason: reasonNoStore, Message: "not yet"})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/publish", strings.NewReader("{}")))
	problem := page{status: w.Code, body: w.Body.String()}.problem(t)
	want := transcode.Problem{Code: "unavailable", Reason: "STORE_UNAVAILABLE", Message: "not yet", RetryIn: 1}
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || problem.Code != want.Code ||
		problem.Reason != want.Reason || problem.Message != want.Message || problem.RetryIn != want.RetryIn {
		t.Errorf("status %d, %v, %+v", w.Code, w.Header(), problem)
	}
}
