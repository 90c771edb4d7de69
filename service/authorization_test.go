package service

import (
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/service/auth"
)

// Whoever passes calls on is told of a token what the call would be told, and the log
// says what is wrong.
func TestTokensOfCallsThatArePassedOn(t *testing.T) {
	g := newGuarded(t)
	good := "Bearer " + signed(t, grant("somebody", "chat"))
	expired := signed(t, auth.Grant{Lifetime: time.Second})
	elapseUntilExpired(t, expired)
	for name, c := range map[string]struct {
		show []string
		want string
	}{
		"a good token":     {[]string{good}, ""},
		"nothing":          {nil, "UNAUTHENTICATED"},
		"garbage":          {[]string{"Bearer garbage"}, "UNAUTHENTICATED"},
		"two tokens":       {[]string{good, good}, "UNAUTHENTICATED"},
		"an expired token": {[]string{"Bearer " + expired}, "TOKEN_EXPIRED"},
	} {
		err := g.Authenticate(t.Context(), c.show...)
		if c.want == "" && err != nil || c.want != "" && reasonOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	eventually(t, "the log tells of refusals", func() bool {
		return strings.Contains(g.log.String(), "a valid token is needed") || strings.Contains(g.log.String(), "a token is needed")
	})
	g.Server.cfg.Verifier = nil
	if err := g.Authenticate(t.Context()); err != nil {
		t.Errorf("without tokens: %v", err)
	}
}
