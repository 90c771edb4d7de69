package service

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Symptom: a web page read a service of the developer's machine. Cause: its name
// had been made to lead to 127.0.0.1, and the service answered whatever Host it
// was asked for.
func TestLoopbackOnly(t *testing.T) {
	served := LoopbackOnly(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(origin string) bool { return origin == "https://allowed.example" })
	for _, test := range []struct {
		host, origin string
		allowed      bool
	}{
		{"localhost", "", true},
		{"LocalHost:7480", "", true},
		{"127.0.0.1", "", true},
		{"127.0.0.1:7480", "", true},
		{"127.8.9.10:7480", "", true},
		{"[::1]", "", true},
		{"[::1]:7480", "", true},
		{"[::ffff:127.0.0.1]:7480", "", true},
		{"", "", true}, // HTTP/1.0
		{"localhost", "http://localhost:3000", true},
		{"localhost", "http://[::1]:3000", true},

		{"evil.example", "", false},
		{"evil.example:7480", "", false},
		{"localhost.evil.example", "", false},
		{"127.0.0.1.evil.example:7480", "", false},
		{"evil.example@127.0.0.1", "", false},
		{"0.0.0.0:7480", "", false}, // leads to this machine from a page on any host
		{"[::]:7480", "", false},
		{"192.168.1.7:7480", "", false},
		{"10.0.0.7", "", false},
		{"2130706433", "", false}, // 127.0.0.1 in one number
		{"0x7f.1", "", false},
		{":7480", "", false},
		{"localhost", "https://evil.example", false},
		{"localhost", "null", false},
		{"localhost", "http://", false},
		{"localhost", "%", false},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", http.NoBody)
		request.Host = test.host
		if test.origin != "" {
			request.Header.Set("Origin", test.origin)
		}
		answer := httptest.NewRecorder()
		served.ServeHTTP(answer, request)
		want := http.StatusForbidden
		if test.allowed {
			want = http.StatusOK
		}
		if answer.Code != want {
			t.Errorf("Host %q, Origin %q: %d, want %d", test.host, test.origin, answer.Code, want)
		}
	}
}
