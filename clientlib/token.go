package clientlib

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// expiryMargin is how long a token must still be good when a call begins.
const expiryMargin = 10 * time.Second

// tokenCache has the token that the source returned last, so that calls that are all
// refused at once fetch one new token, not one each.
type tokenCache struct {
	source TokenSource // may be nil
	// turn guards last, and the source, as a mutex whose wait a context ends.
	turn chan struct{}
	last string
}

func newTokenCache(source TokenSource) tokenCache {
	return tokenCache{source: source, turn: make(chan struct{}, 1)}
}

// tokenError is the failure of a token source.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return fmt.Sprintf("get a token: %v", e.err) }

func (e *tokenError) Unwrap() error { return e.err }

// get returns a token that is not the one refused, if that is not empty.
func (c *tokenCache) get(ctx context.Context, refused string) (string, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return "", &tokenError{context.Cause(ctx)}
	}
	if refused != "" && c.last != refused {
		return c.last, nil
	}
	token, err := c.source(ctx, refused != "")
	if err == nil && refused == "" && expiresSoon(token) {
		token, err = c.source(ctx, true)
	}
	if err == nil {
		err = checkToken(token)
	}
	if err != nil {
		return "", &tokenError{err}
	}
	c.last = token
	return token, nil
}

// checkToken is the error of a token that no header carries, such as one that was read
// from a file with its line break: grpc would say that of a call, without what is wrong.
func checkToken(token string) error {
	if i := strings.IndexFunc(token, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
		return fmt.Errorf("byte %d of the token is not printable ASCII", i)
	}
	return nil
}

// expiresSoon reports whether token is a JSON Web Token whose expiration time is near or
// past.
func expiresSoon(token string) bool {
	expires, known := expiryOf(token)
	return known && expires.Before(time.Now().Add(expiryMargin).Truncate(time.Second))
}

// expiryOf is when a JSON Web Token (RFC 7519) expires. It verifies nothing.
func expiryOf(token string) (expires time.Time, known bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, false
	}
	var claims struct {
		Expires *float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Expires == nil {
		return time.Time{}, false
	}
	return time.Unix(int64(min(*claims.Expires, math.MaxInt32<<8)), 0), true
}

// access is how one thing that calls again and again shows who it is.
type access struct {
	tokens *tokenCache
	// used is the token of the current call, refused one that the server did not take.
	used, refused string
	// renewed is true since a token was refused, until the server takes a call.
	renewed bool
}

// authorize adds a token to a call, if there is a source.
func (a *access) authorize(ctx context.Context) (context.Context, error) {
	if a.tokens.source == nil {
		return ctx, nil
	}
	token, err := a.tokens.get(ctx, a.refused)
	if err != nil {
		return ctx, err
	}
	a.used, a.refused = token, ""
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), nil
}

// renew reports whether another try with another token is due after e.
func (a *access) renew(e *Error) bool {
	if e.Code != codes.Unauthenticated || a.tokens.source == nil || a.renewed {
		return false
	}
	a.refused, a.renewed = a.used, true
	return true
}

func (a *access) accepted() { a.renewed = false }
