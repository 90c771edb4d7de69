package service

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// Scenario S140, symptom: tokens stood in logs. Every way to be refused, and a call that
// goes well, at level DEBUG; and what clients are told.
func TestTokensAreNotInLogsOrErrors(t *testing.T) {
	g := newGuarded(t)
	good := signed(t, grant("somebody", "chat"))
	foreignKey, err := auth.ParseSecret("", bytes.Repeat([]byte("foreign"), 10))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := auth.Sign(foreignKey, grant("somebody", "chat"))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	tokens := []string{
		good, foreign, good + "x", good[:len(good)-7], parts[0] + "." + parts[1] + ".", parts[1] + "." + parts[0] + "." + parts[2],
		"eyJhbGciOiJub25lIn0." + parts[1] + ".", strings.Repeat("long-opaque-token-", 500), "short-opaque-token", g.verifier.Internal() + "x",
		g.verifier.Internal(),
	}
	var told, refusals strings.Builder
	for _, token := range tokens {
		// The log has one line for many that are alike.
		_, err := g.callerOf(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token)))
		if err != nil {
			fmt.Fprintln(&refusals, refusedToken(err))
		}
		for _, m := range g.methods(t) {
			_, err := g.call(with(t.Context(), "Bearer "+token), m, requests[m])
			fmt.Fprintln(&told, err, status.Convert(err).Details())
		}
		session, err := fanfarev1.NewFanfareServiceClient(g.conn).Session(with(t.Context(), "Bearer "+good))
		if err != nil {
			t.Fatal(err)
		}
		err = session.Send(&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Authenticate{Authenticate: &fanfarev1.SessionAuthenticate{Token: token}}})
		if err == nil {
			_, err = session.Recv()
		}
		fmt.Fprintln(&told, err)
	}
	log := g.log.String() + refusals.String()
	for _, want := range []string{"signature is invalid", "the limit is 8192", "UNAUTHENTICATED"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	for _, token := range append(tokens, g.verifier.Internal()) {
		for name, text := range map[string]string{"the log": log, "what clients are told": told.String()} {
			for i := 0; i+16 <= len(token); i += 8 {
				if strings.Contains(text, token[i:i+16]) {
					t.Fatalf("%s has %q in it", name, token[i:i+16])
				}
			}
		}
	}
	for _, detail := range []string{"signature", "segments", "alg", "kid", "8192"} {
		if strings.Contains(told.String(), detail) {
			t.Errorf("clients are told of %q", detail)
		}
	}
}
