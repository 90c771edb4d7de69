package auth

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"
)

// issuerServer serves a set of keys.
type issuerServer struct {
	url string
	// fetched counts requests.
	fetched atomic.Int64

	mu      sync.Mutex // guards what follows
	respond http.HandlerFunc
}

func startIssuer(t *testing.T) *issuerServer {
	t.Helper()
	i := &issuerServer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.fetched.Add(1)
		i.mu.Lock()
		respond := i.respond
		i.mu.Unlock()
		respond(w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	i.url = server.URL
	i.serve(jwkSet())
	return i
}

func (i *issuerServer) answer(respond http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.respond = respond
}

// serve serves a set from now on.
func (i *issuerServer) serve(set []byte) {
	i.answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) })
}

// jwk is the public key of a signer in a set.
func jwk(s signer, id string, more ...string) map[string]any {
	key := must(jwkset.NewJWKFromKey(s.key, jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: id}}))
	var fields map[string]any
	if err := json.Unmarshal(must(json.Marshal(key.Marshal())), &fields); err != nil {
		panic(err)
	}
	for i := 0; i+1 < len(more); i += 2 {
		fields[more[i]] = more[i+1]
	}
	return fields
}

func jwkSet(keys ...map[string]any) []byte {
	if keys == nil {
		keys = []map[string]any{}
	}
	return must(json.Marshal(map[string]any{"keys": keys}))
}

// permitRefetch has the verifier fetch again for the next unknown key.
func permitRefetch(v *Verifier) {
	v.jwks.mu.Lock()
	defer v.jwks.mu.Unlock()
	v.jwks.limit = rate.NewLimiter(rate.Every(jwksPause), 1)
}

func TestKeysOfAnIssuer(t *testing.T) {
	i := startIssuer(t)
	other := newEd25519Signer()
	secretKey := map[string]any{"kty": "oct", "kid": "secret", "k": base64.RawURLEncoding.EncodeToString(secret)}
	i.serve(jwkSet(
		jwk(rsaSigner(), "rsa", "alg", "RS256"), jwk(p256Signer(), "ec", "use", "sig"), jwk(ed25519Signer(), "ed"),
		jwk(p384Signer(), "encryption", "use", "enc"), jwk(other, ""), secretKey,
		map[string]any{"kty": "FUTURE", "kid": "future"},
	))
	v := newVerifier(t, Config{JWKSURL: i.url})
	psSigner := signer{jwt.SigningMethodPS256, rsaSigner().key}
	for _, c := range []struct {
		name  string
		token string
		want  error
	}{
		{"RSA", rsaSigner().sign(t, header("kid", "rsa")), nil},
		{"EC", p256Signer().sign(t, header("kid", "ec")), nil},
		{"Ed25519", ed25519Signer().sign(t, header("kid", "ed")), nil},
		{"without kid", p256Signer().sign(t), nil},
		{"of a key without kid", other.sign(t, header("kid", "another")), nil},
		{"another algorithm than the key's", psSigner.sign(t, header("kid", "rsa")), ErrInvalid},
		{"of a key for encryption", p384Signer().sign(t, header("kid", "encryption")), ErrInvalid},
		{"a secret in the set", secretSigner().sign(t, header("kid", "secret")), ErrInvalid},
		{"the kid of another key", p256Signer().sign(t, header("kid", "ed")), ErrInvalid},
		{"an unknown kid", p256Signer().sign(t, header("kid", "x")), ErrInvalid},
		{"an unknown key", ecSigner(jwt.SigningMethodES256, elliptic.P256()).sign(t, header("kid", "ec")), ErrInvalid},
	} {
		if _, err := v.Verify(t.Context(), c.token); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A new key is found when the first token of it comes, however many come at once, and what
// the issuer has withdrawn is refused.
func TestKeysOfAnIssuerChange(t *testing.T) {
	i := startIssuer(t)
	old, next := p256Signer(), ecSigner(jwt.SigningMethodES256, elliptic.P256())
	i.serve(jwkSet(jwk(old, "old")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	if _, err := v.Verify(t.Context(), old.sign(t, header("kid", "old"))); err != nil {
		t.Fatal(err)
	}
	before := i.fetched.Load()
	i.serve(jwkSet(jwk(next, "next")))
	var all sync.WaitGroup
	for n := range 50 {
		token := next.sign(t, header("kid", "next"), claim("n", n))
		all.Go(func() {
			if _, err := v.Verify(t.Context(), token); err != nil {
				t.Errorf("a token of the new key: %v", err)
			}
		})
	}
	all.Wait()
	if fetched := i.fetched.Load() - before; fetched != 1 {
		t.Errorf("the keys were fetched %d times", fetched)
	}
	if _, err := v.Verify(t.Context(), old.sign(t, header("kid", "old"), claim("again", true))); !errors.Is(err, ErrInvalid) {
		t.Errorf("a token of the old key: %v", err)
	}
}

// Symptom: nobody could use a new key for as long as somebody sent tokens with the kid of
// a known key and another algorithm. Cause: they used up the fetches, and fetched nothing.
func TestTokensThatNameAKnownKeyDoNotUseUpFetches(t *testing.T) {
	i := startIssuer(t)
	next := ecSigner(jwt.SigningMethodES256, elliptic.P256())
	i.serve(jwkSet(jwk(p256Signer(), "old")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	i.serve(jwkSet(jwk(p256Signer(), "old"), jwk(next, "next")))
	if _, err := v.Verify(t.Context(), rsaSigner().sign(t, header("kid", "old"))); !errors.Is(err, ErrInvalid) {
		t.Errorf("another algorithm: %v", err)
	}
	if _, err := v.Verify(t.Context(), next.sign(t, header("kid", "next"))); err != nil {
		t.Errorf("the new key: %v", err)
	}
}

// Symptom: nobody could use a new key for as long as somebody began calls and gave them
// up. Cause: the fetch ended with the call that had begun it.
func TestFetchOutlivesTheCallThatBeganIt(t *testing.T) {
	i := startIssuer(t)
	i.serve(jwkSet(jwk(p256Signer(), "old")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	ctx, cancel := context.WithCancel(t.Context())
	next := ecSigner(jwt.SigningMethodES256, elliptic.P256())
	i.answer(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		_, _ = w.Write(jwkSet(jwk(next, "next")))
	})
	if _, err := v.Verify(ctx, next.sign(t, header("kid", "next"))); !errors.Is(err, context.Canceled) {
		t.Errorf("the call that is given up: %v", err)
	}
	if _, err := v.Verify(t.Context(), next.sign(t, header("kid", "next"))); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// Symptom: who had a token of a key that was withdrawn, with all others, was told for ever
// to try again.
func TestWithdrawingAllKeysIsFinal(t *testing.T) {
	i := startIssuer(t)
	i.serve(jwkSet(jwk(p256Signer(), "ec")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	i.serve(jwkSet())
	if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", "other"))); !errors.Is(err, ErrInvalid) {
		t.Errorf("a token of a key that was never there: %v", err)
	}
	if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", "ec"))); !errors.Is(err, ErrInvalid) {
		t.Errorf("a token of the key: %v", err)
	}
}

// Symptom: a page with a good token was refused for ever. Cause: somebody had made up a kid
// just before, and the set that was fetched for that one was older than the token's key.
func TestKeyThatIsYoungerThanTheFetchUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newSlowIssuer(t, jwkSet(jwk(p256Signer(), "old")))
		begun := i.fetches()
		madeUp := i.verify(t, p256Signer().sign(t, header("kid", "made up")))
		i.set = jwkSet(jwk(ed25519Signer(), "next"))
		good := i.verify(t, ed25519Signer().sign(t, header("kid", "next")))
		late := i.verify(t, p256Signer().sign(t, header("kid", "late")))
		i.release()
		if err := <-madeUp; !errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnknownKey) {
			t.Errorf("the token that was made up: %v", err)
		}
		synctest.Wait()
		// Only one follows without a permit. Who comes during that one is not told for good.
		young := i.verify(t, ed25519Signer().sign(t, header("kid", "younger")))
		i.release()
		if err := <-good; err != nil {
			t.Errorf("the token of the new key: %v", err)
		}
		if err := <-late; !errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnknownKey) {
			t.Errorf("a token of no key: %v", err)
		}
		if err := <-young; !errors.Is(err, ErrUnknownKey) {
			t.Errorf("a token that came during the last fetch: %v", err)
		}
		if n := i.fetches() - begun; n != 2 {
			t.Errorf("the keys were fetched %d times", n)
		}
	})
}

// What an issuer does not say is not known: until it has been asked after a token came, and
// has answered, the token is not refused for good.
func TestUnknownKeysAreRefusedForGoodOnceTheIssuerHasSaidSo(t *testing.T) {
	i := startIssuer(t)
	i.serve(jwkSet(jwk(p256Signer(), "ec")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	token := ed25519Signer().sign(t, header("kid", "unknown"))
	look := func(what string, unknown bool) {
		t.Helper()
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnknownKey) != unknown {
			t.Errorf("%s: %v", what, err)
		}
	}
	look("when the issuer has said so", false)
	look("within the pause", true)
	i.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	permitRefetch(v)
	look("while the issuer is away", true)
	token = p256Signer().sign(t, header("kid", "ec"), claim("exp", "soon"))
	look("of a key that is known", false)
}

// slowIssuer answers each fetch but the first when the test says so, with the set that there
// was when it began.
type slowIssuer struct {
	verifier *Verifier
	set      []byte
	fetched  atomic.Int64
	released chan struct{}
}

// newSlowIssuer is for a test in a bubble of synctest.
func newSlowIssuer(t *testing.T, set []byte) *slowIssuer {
	i := &slowIssuer{set: set, released: make(chan struct{})}
	transport := http.DefaultTransport
	http.DefaultTransport = roundTripper(func(*http.Request) (*http.Response, error) {
		set := i.set
		if i.fetched.Add(1) > 1 {
			<-i.released
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(set))}, nil
	})
	t.Cleanup(func() { http.DefaultTransport = transport })
	i.verifier = newVerifier(t, Config{JWKSURL: "http://issuer.example/keys"})
	return i
}

func (i *slowIssuer) fetches() int64 { return i.fetched.Load() }

// release has the fetch that is under way answered.
func (i *slowIssuer) release() {
	i.released <- struct{}{}
	synctest.Wait()
}

// verify begins to verify a token, and returns when it waits for a fetch, or is done.
func (i *slowIssuer) verify(t *testing.T, token string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := i.verifier.Verify(t.Context(), token)
		done <- err
	}()
	synctest.Wait()
	return done
}

// Anybody can make up kids; they must not have the issuer asked each time.
func TestMadeUpKeysDoNotFloodTheIssuer(t *testing.T) {
	i := startIssuer(t)
	i.serve(jwkSet(jwk(p256Signer(), "ec")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	begun := time.Now()
	for n := range 200 {
		if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", fmt.Sprint(n)))); !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
	}
	allowed := 2 + int64(time.Since(begun)/jwksPause)
	if fetched := i.fetched.Load(); fetched > allowed {
		t.Errorf("the keys were fetched %d times, %d are allowed", fetched, allowed)
	}
}

// A server starts while the issuer is away, says so, and finds the keys when it is back.
// What it has fetched stays in force while the issuer is away again.
func TestIssuerThatIsAway(t *testing.T) {
	i := startIssuer(t)
	good := p256Signer().sign(t, header("kid", "ec"))
	for name, away := range map[string]http.HandlerFunc{
		"an error":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"a page":       func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"an empty set": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(jwkSet()) },
		"a redirection": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/other" {
				_, _ = w.Write(jwkSet(jwk(p256Signer(), "ec")))
				return
			}
			http.Redirect(w, r, "/other", http.StatusFound)
		},
		"a large set": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(jwkSet(jwk(p256Signer(), "ec"), map[string]any{"kty": "FUTURE", "x": strings.Repeat("x", maxJWKSBytes)}))
		},
	} {
		i.answer(away)
		var log bytes.Buffer
		v, err := NewVerifier(t.Context(), Config{JWKSURL: i.url, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := ErrNoKeys
		if name == "an empty set" {
			want = ErrInvalid // the issuer is there, and has no keys
		}
		if _, err := v.Verify(t.Context(), good); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
		if logged := strings.Contains(log.String(), "the keys of the issuer of tokens cannot be fetched"); logged == (name == "an empty set") {
			t.Errorf("%s: the log is %q", name, log.String())
		}
		i.serve(jwkSet(jwk(p256Signer(), "ec")))
		permitRefetch(v)
		if _, err := v.Verify(t.Context(), good); err != nil {
			t.Errorf("%s, when it is back: %v", name, err)
		}
		if name == "an empty set" {
			continue // the issuer has withdrawn its keys
		}
		i.answer(away)
		permitRefetch(v)
		for _, token := range []string{p256Signer().sign(t, header("kid", "unknown")), p256Signer().sign(t, header("kid", "ec"), claim("x", 1))} {
			_, err = v.Verify(t.Context(), token)
		}
		if err != nil {
			t.Errorf("%s, when it is away again: %v", name, err)
		}
	}
}

// Symptom: a key for the API of the issuer stood in the log. Cause: net/http keeps
// passwords alone out of its errors, and not what else a URL may hold.
func TestLogHasNoSecretOfTheURLOfKeys(t *testing.T) {
	i := startIssuer(t)
	i.answer(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	place := strings.TrimPrefix(i.url, "http://")
	var log bytes.Buffer
	_, err := NewVerifier(t.Context(), Config{
		JWKSURL: "http://hunter1:hunter2@" + place + "?api_key=hunter3&x=%68unter4",
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if text := log.String(); !strings.Contains(text, i.url) || !strings.Contains(text, "EOF") || strings.Contains(text, "unter") || strings.Contains(text, "api_key") {
		t.Errorf("the log is %q", text)
	}
}

// The keys of files count while the issuer is away, and beside its own.
func TestKeysOfFilesBesideThoseOfAnIssuer(t *testing.T) {
	i := startIssuer(t)
	i.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	v := newVerifier(t, Config{JWKSURL: i.url, Keys: append(p256Signer().keys(t, ""), secretSigner().keys(t, "")...)})
	for _, s := range []signer{p256Signer(), secretSigner()} {
		if _, err := v.Verify(t.Context(), s.sign(t)); err != nil {
			t.Errorf("%s: %v", s.method.Alg(), err)
		}
	}
	second := ecSigner(jwt.SigningMethodES256, elliptic.P256())
	i.serve(jwkSet(jwk(second, "second")))
	permitRefetch(v)
	for _, s := range []signer{second, p256Signer()} {
		if _, err := v.Verify(t.Context(), s.sign(t, header("kid", "second"))); err != nil {
			t.Errorf("of the issuer, or of the file: %v", err)
		}
	}
}

func TestWaitingForKeysEndsWithTheCall(t *testing.T) {
	i := startIssuer(t)
	i.serve(jwkSet(jwk(p256Signer(), "ec")))
	v := newVerifier(t, Config{JWKSURL: i.url})
	asked, release := make(chan struct{}), make(chan struct{})
	i.answer(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	})
	var first sync.WaitGroup
	first.Go(func() {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		if _, err := v.Verify(ctx, p256Signer().sign(t, header("kid", "1"))); !errors.Is(err, context.Canceled) {
			t.Errorf("the call that fetches: %v", err)
		}
	})
	<-asked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Verify(ctx, p256Signer().sign(t, header("kid", "2"))); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that waits: %v", err)
	}
	close(release)
	first.Wait()
}

// The goroutine that fetches keys ends with its context, and fetches until then.
func TestKeysAreFetchedAgainAndAgain(t *testing.T) {
	var fetched, status atomic.Int64
	status.Store(http.StatusOK)
	transport := http.DefaultTransport
	http.DefaultTransport = roundTripper(func(*http.Request) (*http.Response, error) {
		fetched.Add(1)
		return &http.Response{StatusCode: int(status.Load()), Body: io.NopCloser(bytes.NewReader(jwkSet(jwk(p256Signer(), "ec"))))}, nil
	})
	defer func() { http.DefaultTransport = transport }()
	synctest.Test(t, func(t *testing.T) {
		v := newVerifier(t, Config{JWKSURL: "http://issuer.example/keys"})
		look := func(what string, want int64, last time.Time) {
			t.Helper()
			synctest.Wait()
			v.jwks.mu.Lock()
			defer v.jwks.mu.Unlock()
			if fetched.Load() != want || !v.jwks.last.Equal(last) || len(v.jwks.keys) != 1 {
				t.Errorf("%s: %d fetches, the last that succeeded at %s, want %d and %s; %d keys", what, fetched.Load(), v.jwks.last, want, last, len(v.jwks.keys))
			}
		}
		elapse(10*jwksRefresh + time.Second)
		kept := time.Now().Add(-time.Second)
		look("in 50 min", 11, kept)
		// They are tried for sooner while they cannot be fetched, and those that are known
		// stay, however long that takes.
		status.Store(http.StatusBadGateway)
		elapse(jwksRefresh + 24*time.Hour)
		failed := 24*int64(time.Hour/jwksRetry) + 1
		look("in a day without the issuer", 11+failed, kept)
		if _, err := v.Verify(t.Context(), p256Signer().sign(t, header("kid", "ec"))); err != nil {
			t.Errorf("a day after the last fetch: %v", err)
		}
		status.Store(http.StatusOK)
		elapse(jwksRetry)
		look("when it is back", 12+failed, time.Now().Add(-time.Second))
		elapse(jwksRefresh)
		look("afterwards", 13+failed, time.Now().Add(-time.Second))
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestURLOfKeysThatIsNone(t *testing.T) {
	t.Parallel()
	if _, err := NewVerifier(t.Context(), Config{JWKSURL: "://user:password@x"}); err == nil || strings.Contains(err.Error(), "password") {
		t.Errorf("got %v", err)
	}
}
