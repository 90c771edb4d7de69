package sse_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib/sse"
)

func TestCORS(t *testing.T) {
	const good, bad = "https://app.example.com", "https://evil.example.com"
	e := start(t, func(c *sse.Config, _ *http.Server) { c.AllowedOrigins = []string{good} })
	for _, c := range []struct {
		method, target, origin, want string
		status                       int
	}{
		{http.MethodOptions, one, good, good, 204}, {http.MethodOptions, one, bad, "", 204},
		{http.MethodHead, one, good, good, 200}, {http.MethodHead, one, bad, "", 200},
		{http.MethodGet, one + "?last=x", good, good, 400}, {http.MethodGet, "/v1/none", good, good, 404},
	} {
		headers := []string{"Origin", c.origin}
		if c.method == http.MethodOptions {
			headers = append(headers, "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization,cache-control,last-event-id")
		}
		response, cancel := e.request(c.method, c.target, headers...)
		cancel()
		h := response.Header
		if response.StatusCode != c.status || h.Get("Access-Control-Allow-Origin") != c.want {
			t.Errorf("%s %s from %s: %s, %v", c.method, c.target, c.origin, response.Status, h)
		}
		if c.want != "" && h.Get("Access-Control-Allow-Credentials") != "true" {
			t.Errorf("%s %s: credentials are not allowed", c.method, c.target)
		}
		if c.method == http.MethodOptions && c.want != "" && (h.Get("Access-Control-Allow-Headers") != "authorization,cache-control,last-event-id" || h.Get("Access-Control-Max-Age") != "7200") {
			t.Errorf("the preflight allows %v", h)
		}
	}
	below := start(t, func(c *sse.Config, _ *http.Server) { c.AllowedOrigins = []string{"https://*.example.com"} })
	for origin, want := range map[string]string{good: good, "https://a.b.example.com": "https://a.b.example.com", "https://example.com": "", "https://evilexample.com": "", "https://app.example.com.evil.com": "", "http://app.example.com": ""} {
		response, cancel := below.request(http.MethodHead, one, "Origin", origin)
		cancel()
		if got := response.Header.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("to %s %q is allowed", origin, got)
		}
	}
	any := start(t, func(c *sse.Config, _ *http.Server) { c.AllowedOrigins = []string{"*"} })
	response, _ := any.request(http.MethodHead, one, "Origin", bad)
	if h := response.Header; h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("every origin is allowed, and gets %v", h)
	}
	none := start(t, nil)
	response, _ = none.request(http.MethodHead, one, "Origin", good)
	if got := response.Header.Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("without a list %q is allowed", got)
	}
}

// Symptom: with https://* every page of the web could read what a visitor's cookie shows.
func TestAnOriginThatStandsForTooManyIsRefused(t *testing.T) {
	for _, origin := range []string{
		"https://*", "https://*.com", "https://*.", "*://app.example.com", "https*", "*.example.com", "https://*example.com", "https://app.*", "https://app.*.com",
		"https://*.*.example.com", "https://*.example.*", "https://*.example.com:*", "https://app*.example.com", "https://*.0.1", "https://*..com", "https://*.example.",
		"**", "", "app.example.com", "https://app.example.com/", "https://user@app.example.com", "https://*.example.com/x",
	} {
		if err := sse.CheckOrigins([]string{"https://app.example.com", origin}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", origin)) {
			t.Errorf("%q: %v", origin, err)
		}
	}
	for _, origin := range []string{"*", "https://app.example.com", "https://*.example.com", "https://*.app.example.com:8443", "http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:8080", "capacitor://localhost"} {
		if err := sse.CheckOrigins([]string{origin}); err != nil {
			t.Error(err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New has taken https://*")
		}
	}()
	sse.New(nil, sse.Config{AllowedOrigins: []string{"https://*"}})
}

// Credentials are for origins that are listed: a list with a * has none for anybody.
func TestAListWithEveryOriginHasNoCredentials(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.AllowedOrigins = []string{"https://app.example.com", "*"} })
	response, _ := e.request(http.MethodHead, one, "Origin", "https://app.example.com")
	if h := response.Header; h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("it gets %v", h)
	}
}
