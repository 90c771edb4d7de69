package sse_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
)

// logs is a log that goroutines write.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Credentials in a URL, a header or a cookie are in no log, whatever goes wrong.
func TestCredentialsAreNotLogged(t *testing.T) {
	var log logs
	s := newSigner(t, key1)
	fails := true
	e := start(t, func(c *sse.Config, server *http.Server) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		server.ErrorLog = slog.NewLogLogger(c.Logger.Handler(), slog.LevelError)
		c.Authorize = func(r *http.Request, streams []clientlib.Stream) (sse.Grant, error) {
			if fails {
				return sse.Grant{}, http.ErrHandlerTimeout
			}
			return s.Verify(r, streams)
		}
	})
	signed := sign(t, s, one)
	credentials := []string{"Authorization", "Bearer topsecret", "Cookie", "session=topsecret"}
	e.open(signed, credentials...).ends()
	fails = false
	e.status(signed+"&last=x", credentials...)
	e.status(signed+"x", credentials...)
	e.open(signed, credentials...).until("caught_up")
	e.Close()
	signature := signed[strings.Index(signed, "signature="):]
	if text := log.String(); !strings.Contains(text, "cannot authorize") || strings.Contains(text, "topsecret") || strings.Contains(text, signature) {
		t.Errorf("the log is %s", text)
	}
}

// Symptom: while the issuer of tokens or the servers were away, the log had a line for each
// attempt of each browser, thousands a second; and one for each browser that had left before
// it was authorized.
func TestTroubleOfManyBrowsersIsToldOnceASecond(t *testing.T) {
	var log logs
	asked := make(chan struct{})
	e := start(t, func(c *sse.Config, _ *http.Server) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.Authorize = func(r *http.Request, streams []clientlib.Stream) (sse.Grant, error) {
			if streams[0] == stream("left") {
				asked <- struct{}{}
				<-r.Context().Done()
				return sse.Grant{}, fmt.Errorf("asking the issuer: %w", errors.Join(r.Context().Err(), errors.New("gave up")))
			}
			return sse.Grant{}, errors.New("the issuer is away")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/v1/streams/orders/left", nil)
	if err != nil {
		t.Fatal(err)
	}
	var left sync.WaitGroup
	left.Go(func() {
		if response, err := e.server.Client().Do(r); err == nil {
			_ = response.Body.Close()
			t.Error("who had left was answered")
		}
	})
	<-asked
	cancel()
	left.Wait()
	eventually(t, "the one that left was postponed", func() bool { return e.Stats().Postponed == 1 })
	began, attempts := time.Now(), 1
	for ; attempts < 50; attempts++ {
		e.open(one).ends()
	}
	eventually(t, "a second has passed, and the rest was told", func() bool { // more come all the time
		e.open(one).ends()
		attempts++
		return strings.Contains(log.String(), "left_out")
	})
	text := log.String()
	if lines := strings.Count(text, "\n"); lines > int(time.Since(began)/time.Second)+1 || strings.Contains(text, "gave up") || !strings.Contains(text, "the issuer is away") {
		t.Errorf("%d attempts in %s are told so: %s", attempts, time.Since(began), text)
	}
}

// Symptom: nobody could see in the log why a browser's token was refused. Each reason is told
// at once and then counted, with the cause that the browser is not told; that a token has
// expired is normal.
func TestRefusalsAreLoggedByTheirReasons(t *testing.T) {
	var log logs
	e := start(t, func(c *sse.Config, _ *http.Server) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.Authorize = func(_ *http.Request, streams []clientlib.Stream) (sse.Grant, error) {
			switch streams[0].Scope {
			case "nobody":
				return sse.Grant{}, &sse.Refusal{Status: 401, Message: "log in"}
			case "expired":
				return sse.Grant{}, &sse.Refusal{Status: 401, Reason: "TOKEN_EXPIRED", Message: "renew it"}
			case "invalid":
				return sse.Grant{}, &sse.Refusal{Status: 401, Message: "not valid", Cause: errors.New("the key is not known")}
			default:
				return sse.Grant{}, &sse.Refusal{Status: 403, Message: "not yours"}
			}
		}
	})
	if got := e.status("/v1/streams/orders/nobody"); got != 401 {
		t.Errorf("without a credential: %d", got)
	}
	for range 3 {
		for scope, want := range map[string]int{"expired": 401, "invalid": 401, "denied": 403} {
			if got := e.status("/v1/streams/orders/" + scope); got != want {
				t.Errorf("%s: %d", scope, got)
			}
		}
	}
	text := log.String()
	for _, line := range []string{`reason=UNAUTHENTICATED error="log in"`, `reason=UNAUTHENTICATED error="the key is not known"`, `reason=PERMISSION_DENIED error="not yours"`} {
		if strings.Count(text, line) != 1 || !strings.Contains(text, `level=WARN msg="refused a browser" peer.address=127.0.0.1:`) {
			t.Errorf("%s is not told once: %s", line, text)
		}
	}
	if strings.Contains(text, "renew it") {
		t.Errorf("what is normal is told: %s", text)
	}
}

// What is no event stream is refused in the same form, and told in the same log; but trouble
// that passes is an error there, as no EventSource asks.
func TestOtherRequestsAreRefusedAlike(t *testing.T) {
	var log logs
	h := sse.New(nil, sse.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, c := range []struct {
		err    error
		status int
		body   string
		header string
		logged string
	}{
		{
			&sse.Refusal{Status: 401, Message: "not valid", Cause: errors.New("the key is not known")}, 401,
			`{"code":"unauthenticated","message":"not valid","reason":"UNAUTHENTICATED"}`, "Www-Authenticate", `level=WARN msg="refused a browser" peer.address=192.0.2.1:1234 reason=UNAUTHENTICATED error="the key is not known"`,
		},
		{
			errors.New("the issuer is away"), 503,
			`{"code":"unavailable","message":"credentials cannot be verified at the moment; try again","reason":"UNAVAILABLE"}`, "Retry-After", `level=ERROR msg="cannot authorize a browser" error="the issuer is away"`,
		},
	} {
		w := httptest.NewRecorder()
		h.Refuse(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/signed-url", nil), c.err)
		if w.Code != c.status || w.Body.String() != c.body+"\n" || w.Header().Get(c.header) == "" {
			t.Errorf("%v: %d, %v, %s", c.err, w.Code, w.Header(), w.Body)
		}
		if !strings.Contains(log.String(), c.logged) {
			t.Errorf("%v: the log is %s", c.err, log.String())
		}
	}
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
