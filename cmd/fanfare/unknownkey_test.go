package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/auth"
)

// Symptom: a page with a good token gave up for ever. Cause: its key was younger than the
// keys of the issuer that were known, which were not to be fetched again yet, and an
// EventSource takes 401 as final.
func TestPageWithATokenOfAKeyThatIsNotKnownYetComesAgain(t *testing.T) {
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"keys": []}`))
	}))
	defer issuer.Close()
	verifier, err := auth.NewVerifier(t.Context(), auth.Config{JWKSURL: issuer.URL, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()}).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/streams?channel=c", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	access := &webAccess{verifier: verifier}
	for i, final := range []bool{true, false} { // the issuer is asked for the first, and not again within 10 s
		_, err := access.authorize(r, []clientlib.Stream{{Channel: "c"}})
		if refusal := (*sse.Refusal)(nil); err == nil || errors.As(err, &refusal) != final {
			t.Errorf("%d: %v", i, err)
		}
	}
}
