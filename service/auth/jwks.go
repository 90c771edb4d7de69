package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// jwksRefresh is how often the keys of an issuer are fetched, jwksRetry after how long
	// again if they could not be.
	jwksRefresh = 5 * time.Minute
	jwksRetry   = 30 * time.Second
	// jwksTimeout bounds one fetch.
	jwksTimeout = 5 * time.Second
	// jwksPause is at least between two fetches that tokens of unknown keys cause, but for
	// one that follows another: anybody can make up such tokens.
	jwksPause = 10 * time.Second
	// maxJWKSBytes bounds a set: hundreds of keys, with their certificates.
	maxJWKSBytes = 1 << 20
)

// jwks are the keys of an issuer, fetched from a URL by one goroutine. What was fetched
// last stays in force while they cannot be fetched, however long that takes: who keeps the
// issuer away must not keep everybody from the server.
type jwks struct {
	url    string
	client *http.Client
	logger *slog.Logger
	// wanted has room for one: a fetch has begun that a token has caused. ended is
	// closed when there will be no more.
	wanted, ended chan struct{}
	// failing is true if the last fetch failed, or there was none. It is the goroutine's.
	failing bool

	mu    sync.Mutex // guards what follows
	limit *rate.Limiter
	// under is closed when the fetch that is under way has ended; nil if none is.
	under chan struct{}
	// begun and done number the fetches that began and ended last, from 1.
	begun, done uint64
	// unpermitted is true if the one that began last needed no permit of limit.
	unpermitted bool
	// keys are replaced together; none of them changes. They are of the fetch number of,
	// which ended at last; 0: there are none yet.
	keys []Key
	of   uint64
	last time.Time
}

// newJWKS tries to fetch the keys, and does so again and again until ctx ends.
func newJWKS(ctx context.Context, address string, logger *slog.Logger) (*jwks, error) {
	if _, err := url.ParseRequestURI(address); err != nil {
		return nil, errors.New("the URL of the keys cannot be parsed") // it may hold a password
	}
	j := &jwks{
		url: address, client: &http.Client{CheckRedirect: noRedirect, Timeout: jwksTimeout}, logger: logger,
		wanted: make(chan struct{}, 1), ended: make(chan struct{}),
		limit: rate.NewLimiter(rate.Every(jwksPause), 1), failing: true,
	}
	j.beginLocked()
	j.fetch(ctx)
	go j.run(ctx)
	return j, nil
}

// fitting are the keys that may have signed a token, of those that are known; kid is empty
// if it names none.
func (j *jwks) fitting(algorithm, kid string) []Key {
	j.mu.Lock()
	keys := j.keys
	j.mu.Unlock()
	var fit []Key
	for _, k := range keys {
		if slices.Contains(k.algorithms, algorithm) && (kid == "" || k.id == "" || k.id == kid) {
			fit = append(fit, k)
		}
	}
	return fit
}

// numbers returns those of the fetches that began last and ended last, and of that which
// the keys are of.
func (j *jwks) numbers() (begun, done, of uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.begun, j.done, j.of
}

// refetched waits for the end of a fetch after number done: of that which is under way, or
// else of one that it begins. It reports whether there was one. The fetch does not end with
// ctx: it is for all who come meanwhile. follows says that the caller came while number
// done was under way.
func (j *jwks) refetched(ctx context.Context, done uint64, follows bool) bool {
	under, over := j.begin(done, follows)
	if under == nil {
		return over
	}
	select {
	case <-under:
		return true
	case <-ctx.Done():
	case <-j.ended:
	}
	return false
}

// begin returns what is closed at the end of the fetch that is under way, or that begins;
// nil if none may begin, or if one after number done is over. Those who came while one was
// under way have another without a permit: its answer may be older than their key, and
// anybody can have one begin. Those who come during that one have not, as such fetches would
// never end.
func (j *jwks) begin(done uint64, follows bool) (under chan struct{}, over bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.under != nil || j.done > done {
		return j.under, j.done > done
	}
	unpermitted := follows && !j.unpermitted
	if !unpermitted && !j.limit.Allow() {
		return nil, false
	}
	j.beginLocked()
	j.unpermitted = unpermitted
	j.wanted <- struct{}{} // there is room: it is taken before the fetch ends
	return j.under, false
}

func (j *jwks) beginLocked() {
	j.under = make(chan struct{})
	j.begun++
	j.unpermitted = false
}

// run fetches the keys until ctx ends.
func (j *jwks) run(ctx context.Context) {
	defer close(j.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wanted:
		case <-time.After(j.rest()):
			j.mu.Lock()
			if j.under == nil {
				j.beginLocked()
			} else {
				<-j.wanted // this is the fetch
			}
			j.mu.Unlock()
		}
		j.fetch(ctx)
	}
}

// rest is how long to wait with the next fetch.
func (j *jwks) rest() time.Duration {
	if j.failing {
		return jwksRetry
	}
	return jwksRefresh
}

// fetch fetches the keys, and wakes who waits for that.
func (j *jwks) fetch(ctx context.Context) {
	keys, leftOut, err := j.get(ctx)
	if ctx.Err() != nil {
		return // ended tells
	}
	j.log(ctx, len(keys), leftOut, err)
	j.failing = err != nil
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = j.begun
	if err == nil {
		j.keys, j.of, j.last = keys, j.done, time.Now()
	}
	close(j.under)
	j.under = nil
}

// log tells how a fetch ended, unless it went well, as the last one did.
func (j *jwks) log(ctx context.Context, keys, leftOut int, err error) {
	j.mu.Lock()
	last := j.last
	j.mu.Unlock()
	switch {
	case err != nil && last.IsZero():
		j.logger.WarnContext(ctx, "the keys of the issuer of tokens cannot be fetched, and none are known", "error", err)
	case err != nil:
		j.logger.WarnContext(ctx, "the keys of the issuer of tokens cannot be fetched; those that are known stay in force",
			"error", err, "age", time.Since(last).Round(time.Second))
	case keys == 0:
		j.logger.WarnContext(ctx, "the issuer of tokens has no key that verifies any", "left_out", leftOut)
	case j.failing:
		j.logger.InfoContext(ctx, "the keys of the issuer of tokens were fetched", "keys", keys, "left_out", leftOut)
	}
}

// get fetches a set, and returns its keys that verify tokens, and how many others it has.
func (j *jwks) get(ctx context.Context) (keys []Key, leftOut int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url, http.NoBody)
	if err != nil {
		return nil, 0, withoutSecrets(err)
	}
	response, err := j.client.Do(request)
	if err != nil {
		return nil, 0, withoutSecrets(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("the answer has the status %d, not 200", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxJWKSBytes+1))
	switch {
	case err != nil:
		return nil, 0, err
	case len(text) > maxJWKSBytes:
		return nil, 0, fmt.Errorf("the answer has more than %d bytes", maxJWKSBytes)
	}
	return parseKeySet(text)
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

// noRedirect has whoever answers with a redirection not be followed: it could lead to a
// place without TLS, or into the network of the server.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
