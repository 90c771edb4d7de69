package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Symptom: every token was refused after the issuer's proxy had answered 200 and
// {"error": …} once. Cause: what has no member keys was taken for a set without keys.
func TestAnswersThatAreNoSetLeaveTheKeys(t *testing.T) {
	t.Parallel()
	set := string(jwkSet(jwk(p256Signer(), "ec")))
	for _, answer := range []string{
		`{}`, `{"error": "try again"}`, `{"keys": null}`, `{"KEYS": []}`, `{"keys": {}}`, `{"keys": "none"}`, `null`, `[]`, `[` + set + `]`, `"keys"`, "",
		set[:len(set)-1], set + "<html>", set + set, "\xff" + set,
	} {
		i := startIssuer(t)
		i.serve([]byte(set))
		v := newVerifier(t, Config{JWKSURL: i.url})
		i.serve([]byte(answer))
		if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", "unknown"))); !errors.Is(err, ErrInvalid) || i.fetched.Load() != 2 {
			t.Fatalf("%q: %v after %d fetches", answer, err, i.fetched.Load())
		}
		if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", "ec"))); err != nil {
			t.Errorf("after %q the key is gone: %v", answer, err)
		}
	}
}

// Symptom: an issuer added a key of a form that is not known here to its set, and none of
// the others was taken any more. RFC 7517, section 5, has such keys ignored.
func TestKeysThatAreNotUnderstoodAreLeftOut(t *testing.T) {
	t.Parallel()
	good := func() map[string]any { return jwk(p256Signer(), "odd") }
	with := func(fields ...any) map[string]any {
		key := good()
		for n := 0; n < len(fields); n += 2 {
			key[fields[n].(string)] = fields[n+1]
		}
		return key
	}
	for name, odd := range map[string]any{
		"another type":             map[string]any{"kty": "FUTURE", "kid": "odd"},
		"no type":                  map[string]any{"kid": "odd"},
		"another use":              with("use", "tls"),
		"a use that is no text":    with("use", 1),
		"another operation":        with("key_ops", []string{"future"}),
		"operations as text":       with("key_ops", "verify"),
		"a kid that is a number":   with("kid", 7),
		"a kid that is too long":   with("kid", strings.Repeat("k", maxKeyIDBytes+1)),
		"a point beside the curve": with("x", good()["y"]),
		"a coordinate missing":     with("y", ""),
		"what is no Base64":        with("x", "!"),
		"another curve":            with("crv", "secp256k1"),
		"a weak RSA key":           map[string]any{"kty": "RSA", "kid": "odd", "n": "AQAB", "e": "AQAB"},
		"a short Ed25519 key":      map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": "odd", "x": "AQAB"},
		"a number":                 1,
		"null":                     nil,
		"a list":                   []any{},
	} {
		i := startIssuer(t)
		i.serve(must(json.Marshal(map[string]any{"keys": []any{odd, jwk(ed25519Signer(), "good")}})))
		v := newVerifier(t, Config{JWKSURL: i.url})
		if _, err := v.Verify(t.Context(), ed25519Signer().sign(t, header("kid", "good"))); err != nil {
			t.Errorf("beside a key with %s: %v", name, err)
		}
		if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", "odd"))); !errors.Is(err, ErrInvalid) {
			t.Errorf("with %s: %v", name, err)
		}
	}
}

// Who serves the set vouches for its keys; certificates in it, which some issuers send with
// thumbprints of a form of their own, say nothing more.
func TestCertificatesInASetDoNotMatter(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	i.serve(jwkSet(jwk(p256Signer(), "ec", "x5t", "not-a-thumbprint", "x5t#S256", "neither", "x5u", "http://127.0.0.1:1/")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", "ec"))); err != nil {
		t.Error(err)
	}
}

// Two keys of one kid are both tried, as when an issuer replaces one and keeps its name.
func TestKeysOfOneName(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	other := newEd25519Signer()
	i.serve(jwkSet(jwk(ed25519Signer(), "same"), jwk(other, "same"), jwk(p256Signer(), "same")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	for _, s := range []signer{ed25519Signer(), other, p256Signer()} {
		if _, err := v.Verify(t.Context(), s.sign(t, header("kid", "same"))); err != nil {
			t.Errorf("%s: %v", s.method.Alg(), err)
		}
	}
}

// Symptom: a token with a kid was refused that the last of the set's keys had signed. Cause:
// keys without a name, of which there were more than are tried, came first.
func TestKeysOfTheTokensNameAreTriedFirst(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	var keys []map[string]any
	for range maxTriedKeys {
		keys = append(keys, jwk(newEd25519Signer(), ""))
	}
	i.serve(jwkSet(append(keys, jwk(ed25519Signer(), "last"))...))
	var ofFiles []Key
	for range maxTriedKeys {
		ofFiles = append(ofFiles, newEd25519Signer().keys(t, "")...)
	}
	v := newVerifier(t, Config{JWKSURL: i.url, Keys: ofFiles})
	if _, err := v.Verify(t.Context(), ed25519Signer().sign(t, header("kid", "last"))); err != nil {
		t.Error(err)
	}
}

// Symptom: while the issuer did not answer, callers with tokens of a key in a file waited
// for seconds, again and again. Cause: the issuer was asked for their kid first.
func TestTokensOfFilesDoNotWaitForAnIssuer(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	v := newVerifier(t, Config{JWKSURL: i.url, Keys: append(p256Signer().keys(t, "file"), ed25519Signer().keys(t, "")...)})
	release := make(chan struct{})
	i.answer(func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	begun := time.Now()
	for _, token := range []string{p256Signer().sign(t, header("kid", "file")), ed25519Signer().sign(t), ed25519Signer().sign(t, header("kid", "any"))} {
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Error(err)
		}
	}
	if fetched := i.fetched.Load(); fetched != 1 {
		t.Errorf("the issuer was asked %d times, after %s", fetched, time.Since(begun))
	}
}

// Symptom: a caller with a good token was told that it is not valid, which is final. Cause:
// a key of a file had its algorithm, so nobody minded that the issuer's had not come yet.
func TestKeysThatHaveNotComeMayHaveSigned(t *testing.T) {
	t.Parallel()
	i := startIssuer(t)
	i.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	v := newVerifier(t, Config{JWKSURL: i.url, Keys: p256Signer().keys(t, "")})
	theirs := ecSigner(jwt.SigningMethodES256, p256Curve)
	for _, token := range []string{theirs.sign(t), theirs.sign(t, header("kid", "theirs")), ed25519Signer().sign(t)} {
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrNoKeys) {
			t.Errorf("a token that may be the issuer's: %v", err)
		}
	}
	for name, token := range map[string]string{"garbage": "token", "a secret's": secretSigner().sign(t), "crit": theirs.sign(t, header("crit", []string{"x"}))} {
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s, which cannot be the issuer's: %v", name, err)
		}
	}
}

// Operators see from the log whether keys come, and how many of a set are of use.
func TestLogTellsOfFetches(t *testing.T) {
	i := startIssuer(t)
	i.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	var log bytes.Buffer
	v, err := NewVerifier(t.Context(), Config{JWKSURL: i.url, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	look := func(kid string, want string) {
		t.Helper()
		log.Reset()
		permitRefetch(v)
		_, _ = v.Verify(t.Context(), ed25519Signer().sign(t, header("kid", kid)))
		if text := log.String(); want == "" && text != "" || !strings.Contains(text, want) {
			t.Errorf("the log is %q, want %q", text, want)
		}
	}
	if text := log.String(); !strings.Contains(text, "cannot be fetched") || !strings.Contains(text, "502") {
		t.Errorf("the log is %q", text)
	}
	i.serve(jwkSet(jwk(p256Signer(), "ec"), map[string]any{"kty": "FUTURE"}))
	look("1", "fetched")
	look("2", "") // as before
	i.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	look("3", "503")
	i.serve(jwkSet(jwk(p256Signer(), "ec")))
	look("4", "left_out=0")
	i.serve(jwkSet(map[string]any{"kty": "FUTURE"}))
	look("5", "level=WARN")
}

// Whatever an issuer answers, there are only public keys of the kinds that are taken from
// files, and a key that is odd verifies nothing instead of failing.
func FuzzKeySet(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"keys": []}`, `{"keys": [1, null, {}]}`, `{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AA"}]}`,
		`{"keys": [{"kty": "oct", "k": "AQAB"}]}`, `{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AQAB", "d": "AQAB"}]}`,
		string(jwkSet(jwk(rsaSigner(), "rsa", "alg", "RS256"), jwk(p256Signer(), "ec", "use", "sig"))),
		string(jwkSet(jwk(ed25519Signer(), "ed"), jwk(p521Signer(), ""))),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, leftOut, err := parseKeySet(text)
		if err != nil && (len(keys) > 0 || leftOut > 0) {
			t.Fatalf("%d keys, %d left out, beside %v", len(keys), leftOut, err)
		}
		for _, k := range keys {
			allowed, err := algorithmsOf(k.material)
			if err != nil || len(k.algorithms) == 0 || len(k.id) > maxKeyIDBytes {
				t.Fatalf("%+v: %v", k, err)
			}
			for _, algorithm := range k.algorithms {
				if !slices.Contains(allowed, algorithm) || jwt.GetSigningMethod(algorithm).Verify("x", make([]byte, 256), k.material) == nil {
					t.Fatalf("%T verifies %s", k.material, algorithm)
				}
			}
		}
	})
}
