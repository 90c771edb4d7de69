package auth

import (
	"context"
	"crypto"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"golang.org/x/time/rate"
)

const (
	// jwksRefresh is how often the keys of an issuer are fetched.
	jwksRefresh = 5 * time.Minute
	// jwksTimeout bounds one fetch.
	jwksTimeout = 5 * time.Second
	// jwksPause is at least between two fetches that tokens of unknown keys cause:
	// anybody can make up such tokens.
	jwksPause = 10 * time.Second
	// maxJWKSBytes bounds a set: hundreds of keys, with their certificates.
	maxJWKSBytes = 1 << 20
)

// jwks are the keys of an issuer, fetched from a URL. What was fetched last stays in
// force while they cannot be fetched.
type jwks struct {
	// fetched are the keys that are known; refreshing fetches them anew to find a key,
	// and nowhere is the kid of none.
	fetched    *keyStore
	refreshing jwkset.Storage
	nowhere    string
	// turn has room for one who looks for a key that is not known: others wait, and
	// find it.
	turn  chan struct{}
	limit *rate.Limiter
}

// keyStore are keys, and whether they were ever fetched: an issuer may withdraw all.
type keyStore struct {
	jwkset.Storage
	complete atomic.Bool
}

// KeyReplaceAll implements jwkset.Storage. It is how fetched keys come.
func (s *keyStore) KeyReplaceAll(ctx context.Context, keys []jwkset.JWK) error {
	err := s.Storage.KeyReplaceAll(ctx, keys)
	if err == nil {
		s.complete.Store(true)
	}
	return err
}

// newJWKS tries to fetch the keys, and does so again and again until ctx ends.
func newJWKS(ctx context.Context, url string, logger *slog.Logger) (*jwks, error) {
	fetched := &keyStore{Storage: jwkset.NewMemoryStorage()}
	fetching, err := jwkset.NewStorageFromHTTP(url, jwkset.HTTPClientStorageOptions{
		Storage:                   fetched,
		Client:                    &http.Client{Transport: boundedTransport{http.DefaultTransport}, CheckRedirect: noRedirect},
		Ctx:                       ctx,
		HTTPTimeout:               jwksTimeout,
		NoErrorReturnFirstHTTPReq: true,
		RefreshInterval:           jwksRefresh,
		RefreshErrorHandler: func(ctx context.Context, err error) {
			logger.WarnContext(ctx, "the keys of the issuer of tokens cannot be fetched", "error", withoutSecrets(err))
		},
	})
	if err != nil {
		return nil, errors.New("the URL of the keys cannot be parsed") // it may hold a password
	}
	refreshing, err := jwkset.NewHTTPClient(jwkset.HTTPClientOptions{
		HTTPURLs:          map[string]jwkset.Storage{url: fetching},
		RateLimitWaitMax:  jwksTimeout,
		RefreshUnknownKID: rate.NewLimiter(rate.Inf, 1), // keys has the limit
	})
	if err != nil {
		return nil, err
	}
	return &jwks{
		fetched: fetched, refreshing: refreshing, nowhere: rand.Text(),
		turn: make(chan struct{}, 1), limit: rate.NewLimiter(rate.Every(jwksPause), 1),
	}, nil
}

// withoutSecrets is why a fetch failed, with the place of its URL alone: its user and its
// query may hold a password.
func withoutSecrets(err error) error {
	var failed *url.Error
	if !errors.As(err, &failed) {
		return err
	}
	u, err := url.Parse(failed.URL)
	if err != nil {
		return errors.New("the URL of the keys cannot be parsed")
	}
	place := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return &url.Error{Op: failed.Op, URL: place.String(), Err: failed.Err}
}

// keys returns the keys that may have signed a token; kid is empty if it names none. If
// there are none, they are fetched first, unless that was not long ago.
func (j *jwks) keys(ctx context.Context, algorithm, kid string) ([]Key, error) {
	keys, err := j.known(ctx, algorithm, kid)
	if len(keys) > 0 || err != nil && !errors.Is(err, ErrNoKeys) {
		return keys, err
	}
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	keys, err = j.known(ctx, algorithm, kid)
	if len(keys) > 0 || !j.limit.Allow() {
		return keys, err
	}
	// It fetches what it does not find. That is for all who come within the pause: it
	// must not end with one call, nor depend on what its token names.
	fetch, cancel := context.WithTimeout(context.WithoutCancel(ctx), jwksTimeout)
	defer cancel()
	_, _ = j.refreshing.KeyRead(fetch, j.nowhere)
	return j.known(ctx, algorithm, kid)
}

// known are the keys that may have signed a token, of those that were fetched. The error
// is ErrNoKeys if they never were.
func (j *jwks) known(ctx context.Context, algorithm, kid string) ([]Key, error) {
	all, err := j.fetched.KeyReadAll(ctx)
	if err != nil {
		return nil, err
	}
	if !j.fetched.complete.Load() {
		return nil, ErrNoKeys
	}
	var keys []Key
	for _, k := range all {
		id := k.Marshal().KID
		if kid != "" && id != "" && id != kid || !mayVerify(k, algorithm) {
			continue
		}
		if key, err := newPublicKey("", publicOf(k.Key())); err == nil && slices.Contains(key.algorithms, algorithm) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// mayVerify reports whether a key is for signatures with an algorithm, as far as its set
// says what it is for.
func mayVerify(k jwkset.JWK, algorithm string) bool {
	m := k.Marshal()
	return (m.ALG == "" || m.ALG.String() == algorithm) &&
		(m.USE == "" || m.USE == jwkset.UseSig) &&
		(len(m.KEYOPS) == 0 || slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify))
}

// publicOf is the public part of a key.
func publicOf(key any) crypto.PublicKey {
	if private, ok := key.(interface{ Public() crypto.PublicKey }); ok {
		return private.Public()
	}
	return key
}

// noRedirect has whoever answers with a redirection not be followed: it could lead to a
// place without TLS, or into the network of the server.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// boundedTransport bounds the bodies of responses.
type boundedTransport struct{ http.RoundTripper }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = &boundedBody{response.Body, maxJWKSBytes}
	}
	return response, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxJWKSBytes)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
