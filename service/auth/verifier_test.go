package auth

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTokensOfEveryKindOfKey(t *testing.T) {
	t.Parallel()
	signers := []signer{secretSigner(), rsaSigner(), p256Signer(), p384Signer(), p521Signer(), ed25519Signer()}
	var all []Key
	for _, s := range signers {
		all = append(all, s.keys(t, "")...)
	}
	together := newVerifier(t, Config{Keys: all})
	for _, s := range signers {
		alone := newVerifier(t, Config{Keys: s.keys(t, "")})
		for _, v := range []*Verifier{alone, together} {
			identity, err := v.Verify(t.Context(), s.sign(t))
			if err != nil {
				t.Errorf("%s: %v", s.method.Alg(), err)
				continue
			}
			if identity.Subject != "somebody" || !identity.Allows(Subscribe, "chat/messages", "lobby") || identity.Allows(Publish, "chat/messages", "lobby") {
				t.Errorf("%s: %+v", s.method.Alg(), identity)
			}
		}
		for _, other := range signers {
			if s.method.Alg() == other.method.Alg() {
				continue
			}
			if _, err := alone.Verify(t.Context(), other.sign(t)); !errors.Is(err, ErrInvalid) {
				t.Errorf("with a key for %s a token of %s: %v", s.method.Alg(), other.method.Alg(), err)
			}
		}
	}
}

// Tokens with the kid of a key are verified with that key, those without one with any.
func TestKeysByTheirIDs(t *testing.T) {
	t.Parallel()
	old, current, unnamed := ecSigner(p256Signer().method, p256Curve), p256Signer(), ed25519Signer()
	v := newVerifier(t, Config{Keys: append(append(old.keys(t, "old"), current.keys(t, "new")...), unnamed.keys(t, "")...)})
	for _, c := range []struct {
		name  string
		token string
		want  error
	}{
		{"of the old key", old.sign(t, header("kid", "old")), nil},
		{"of the new key", current.sign(t, header("kid", "new")), nil},
		{"of the new key under the old name", current.sign(t, header("kid", "old")), ErrInvalid},
		{"of the new key under a name that there is not", current.sign(t, header("kid", "newer")), ErrInvalid},
		{"of the new key without a name", current.sign(t), ErrInvalid},
		{"of the key without a name", unnamed.sign(t), nil},
		{"of the key without a name, with one", unnamed.sign(t, header("kid", "any")), nil},
		{"with an empty name", unnamed.sign(t, header("kid", "")), ErrInvalid},
		{"with a number for a name", unnamed.sign(t, header("kid", 1)), ErrInvalid},
		{"with a long name", unnamed.sign(t, header("kid", strings.Repeat("k", 257))), ErrInvalid},
	} {
		if _, err := v.Verify(t.Context(), c.token); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Scenario S154, symptom: tokens fresh from an issuer whose clock was ahead were refused
// as used before their time. Cause: no leeway.
func TestClocksMayDiffer(t *testing.T) {
	for _, c := range []struct {
		leeway time.Duration // of Config
		claim  string
		at     time.Duration
		want   error
	}{
		{0, "iat", 20 * time.Second, nil},
		{0, "iat", 40 * time.Second, ErrInvalid},
		{0, "iat", 10 * time.Minute, ErrInvalid},
		{0, "nbf", 20 * time.Second, nil},
		{0, "nbf", 10 * time.Minute, ErrInvalid},
		{0, "exp", -20 * time.Second, nil},
		{0, "exp", -30 * time.Second, ErrExpired},
		{0, "exp", -10 * time.Minute, ErrExpired},
		{-1, "iat", time.Second, ErrInvalid},
		{-1, "exp", time.Second, nil},
		{-1, "exp", 0, ErrExpired},
		{time.Hour, "exp", -59 * time.Minute, nil},
		{time.Hour, "nbf", 59 * time.Minute, nil},
	} {
		t.Run(fmt.Sprint(c.leeway, c.claim, c.at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVerifier(t, Config{Keys: secretSigner().keys(t, ""), Leeway: c.leeway})
				_, err := v.Verify(t.Context(), secretSigner().sign(t, claim(c.claim, time.Now().Add(c.at).Unix())))
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		})
	}
}

func TestWhatIsRequiredOfClaims(t *testing.T) {
	t.Parallel()
	now := time.Now()
	past := claim("exp", now.Add(-time.Hour).Unix())
	anybody := Config{Keys: secretSigner().keys(t, "")}
	strict := Config{Keys: anybody.Keys, Issuer: "https://issuer.example", Audience: "fanfare"}
	for _, c := range []struct {
		name    string
		config  Config
		changes []change
		want    error
	}{
		{"no exp", anybody, []change{claim("exp", nil)}, ErrInvalid},
		{"exp as text", anybody, []change{claim("exp", "tomorrow")}, ErrInvalid},
		{"exp null", anybody, []change{claim("exp", (*int)(nil))}, ErrInvalid},
		{"exp of fractions", anybody, []change{claim("exp", float64(now.Unix())+100.5)}, nil},
		{"exp after the year 9999", anybody, []change{claim("exp", 253402300800)}, ErrInvalid},
		{"exp beyond numbers", anybody, []change{claim("exp", 1e300)}, nil}, // judged below
		{"negative exp", anybody, []change{claim("exp", -1)}, ErrExpired},
		{"issuer and audience do not matter", anybody, []change{claim("iss", "x"), claim("aud", "y")}, nil},
		{"no issuer", strict, []change{claim("aud", "fanfare")}, ErrInvalid},
		{"another issuer", strict, []change{claim("iss", "https://issuer.example.evil"), claim("aud", "fanfare")}, ErrInvalid},
		{"no audience", strict, []change{claim("iss", strict.Issuer)}, ErrInvalid},
		{"another audience", strict, []change{claim("iss", strict.Issuer), claim("aud", "fanfare2")}, ErrInvalid},
		{"one audience", strict, []change{claim("iss", strict.Issuer), claim("aud", "fanfare")}, nil},
		{"several audiences", strict, []change{claim("iss", strict.Issuer), claim("aud", []string{"other", "fanfare"})}, nil},
		{"expired", strict, []change{claim("iss", strict.Issuer), claim("aud", "fanfare"), past}, ErrExpired},
		{"expired and of another issuer", strict, []change{claim("iss", "x"), claim("aud", "fanfare"), past}, ErrInvalid},
		{"no subject", anybody, []change{claim("sub", nil)}, nil},
		{"permissions of another form", anybody, []change{claim("fanfare", "admin")}, ErrInvalid},
		{"a permission that there is not", anybody, []change{claim("fanfare", map[string]any{"deny": []Permission{}})}, ErrInvalid},
		{"a misspelt pattern", anybody, []change{claim("fanfare", map[string]any{"subscribe": []map[string]string{{"chanel": "x"}}})}, ErrInvalid},
		{"admin as text", anybody, []change{claim("fanfare", map[string]any{"admin": "false"})}, ErrInvalid},
		{"no permissions", anybody, []change{claim("fanfare", nil)}, nil},
		{"permissions null", anybody, []change{claim("fanfare", (*Permissions)(nil))}, nil},
	} {
		v := newVerifier(t, c.config)
		identity, err := v.Verify(t.Context(), secretSigner().sign(t, c.changes...))
		if c.name == "exp beyond numbers" {
			if err == nil {
				t.Errorf("%s: valid until %s", c.name, identity.Expires)
			}
			continue
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		if err != nil && identity != nil {
			t.Errorf("%s: an identity beside %v", c.name, err)
		}
	}
}

func TestTokensAreBounded(t *testing.T) {
	t.Parallel()
	v := newVerifier(t, Config{Keys: secretSigner().keys(t, "")})
	base := len(secretSigner().sign(t, claim("x", "")))
	fill := func(n int) string { return secretSigner().sign(t, claim("x", strings.Repeat("x", n))) }
	if _, err := v.Verify(t.Context(), fill((MaxTokenBytes-base)*3/4-3)); err != nil {
		t.Errorf("a token below the limit: %v", err)
	}
	if _, err := v.Verify(t.Context(), fill((MaxTokenBytes-base)*3/4+6)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "8192") {
		t.Errorf("a token above the limit: %v", err)
	}
}

func TestInternalTokenAllowsEverythingHereAlone(t *testing.T) {
	t.Parallel()
	config := Config{Keys: secretSigner().keys(t, "")}
	v, other := newVerifier(t, config), newVerifier(t, config)
	identity, err := v.Verify(t.Context(), v.Internal())
	if err != nil || !identity.AllowsAll(Subscribe) || !identity.AllowsAll(Publish) || !identity.AllowsAll(Work) || !identity.AllowsAll(Admin) ||
		!identity.Deadline().IsZero() || identity.Expired(time.Now().AddDate(1000, 0, 0)) {
		t.Errorf("got %+v, %v", identity, err)
	}
	for _, token := range []string{other.Internal(), v.Internal() + "x", v.Internal()[:len(v.Internal())-1], "internal-", ""} {
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", token, err)
		}
	}
	if v.Internal() == other.Internal() || len(v.Internal()) < 40 {
		t.Errorf("the tokens are %q and %q", v.Internal(), other.Internal())
	}
}

func TestVerifierNeedsKeys(t *testing.T) {
	t.Parallel()
	if _, err := NewVerifier(t.Context(), Config{Issuer: "x"}); err == nil {
		t.Error("there is a verifier without a key")
	}
}

func TestSignedTokensAreValid(t *testing.T) {
	t.Parallel()
	key := secretSigner().keys(t, "development")[0]
	v := newVerifier(t, Config{Keys: []Key{key}, Issuer: "me", Audience: "it"})
	grant := Grant{Subject: "s", Issuer: "me", Audience: "it", Lifetime: time.Minute, Permissions: Permissions{Admin: true}}
	token, err := Sign(key, grant)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := v.Verify(t.Context(), token)
	if err != nil || identity.Subject != "s" || !identity.Allows(Admin, "", "") || identity.AllowsAny(Subscribe) {
		t.Errorf("got %+v, %v", identity, err)
	}
	grant.Lifetime = time.Second - 1
	if _, err := Sign(key, grant); err == nil {
		t.Error("it is signed for less than a second")
	}
	if _, err := Sign(ed25519Signer().keys(t, "")[0], Grant{Lifetime: time.Minute}); err == nil {
		t.Error("a public key has signed")
	}
}
