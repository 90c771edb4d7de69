package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// Whatever a browser or another client opens over HTTP, and however it shows its token, ends
// with the token: not before, and it is told why.
func TestStreamsOverHTTPEndWithTheirTokens(t *testing.T) {
	t.Parallel()
	secret, key := secretFile(t)
	signing := filepath.Join(t.TempDir(), "signing")
	if err := os.WriteFile(signing, []byte(strings.Repeat("k", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startEmbedded(t, "--jwt-secret-file", secret, "--jwt-leeway", "0s", "--signed-url-key-file", signing, "--http-cookie", "session")
	site := siteURL(t, s.stdout)
	// Long enough for a busy machine to open all of it.
	token := signToken(t, key, 5*time.Second, auth.Permissions{Subscribe: []auth.Permission{{Channel: "c", Scope: "s"}}})
	signed := post(t, site+"/v1/signed-url", `{"streams": [{"channel": "c", "scope": "s"}], "seconds": 60}`, bearer(token))
	if signed.status != http.StatusOK {
		t.Fatalf("signed: status %d, %s", signed.status, signed.body)
	}
	// It ends with the token, which is good for less.
	ends, err := time.Parse(time.RFC3339, signed.fields["expires"].(string))
	if err != nil || time.Until(ends) > 5*time.Second {
		t.Fatalf("the signed URL ends at %s, %v", ends, err)
	}
	notEarly := func(name string) {
		if left := time.Until(ends); left > 0 {
			t.Errorf("%s: it ended %s before the token", name, left)
		}
	}
	var ending sync.WaitGroup
	for name, tab := range map[string]*browserTab{
		"header":         open(t, nil, site+"/v1/streams/c/s", bearer(token)),
		"header, HTTP/2": open(t, unencryptedHTTP2(t), site+"/v1/streams/c/s", bearer(token)),
		"cookie":         open(t, nil, site+"/v1/streams/c/s", header("Cookie", "session="+token)),
		"signed URL":     open(t, nil, site+signed.fields["url"].(string)),
	} {
		late := time.AfterFunc(patience, tab.close)
		ending.Go(func() {
			defer late.Stop()
			var last string
			for event := range tab.events {
				last = event.Type + " " + event.Data
			}
			notEarly(name)
			if !strings.HasPrefix(last, "fanfare.reconnect ") || !strings.Contains(last, "TOKEN_EXPIRED") {
				t.Errorf("%s: the last event is %s", name, last)
			}
		})
	}
	for way := range ways {
		subscribe := remote[fanfarev1.SubscribeRequest, fanfarev1.SubscribeResponse](t, way, s, fanfarev1.FanfareService_Subscribe_FullMethodName)
		ending.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			request := connect.NewRequest(&fanfarev1.SubscribeRequest{Channel: "c", Scope: "s"})
			request.Header().Set("Authorization", "Bearer "+token)
			stream, err := subscribe.CallServerStream(ctx, request)
			if err != nil {
				t.Errorf("%s: %v", ways[way].name, err)
				return
			}
			defer stream.Close()
			responses := 0
			for stream.Receive() {
				responses++
			}
			notEarly(ways[way].name)
			wantError(t, stream.Err(), connect.CodeUnauthenticated, "TOKEN_EXPIRED")
			if responses < 3 { // Subscribed, CaughtUp and Closing
				t.Errorf("%s: %d responses", ways[way].name, responses)
			}
		})
	}
	ending.Wait()
	if p := get(t, site+"/v1/streams/c/s", bearer(token)); p.status != http.StatusUnauthorized || p.fields["reason"] != "TOKEN_EXPIRED" {
		t.Errorf("afterwards: %+v", p)
	}
}
