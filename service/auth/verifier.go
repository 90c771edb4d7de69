package auth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// MaxTokenBytes bounds a token.
const MaxTokenBytes = 8 << 10

// maxTriedKeys bounds how many keys are tried on a token that does not say which is its
// own, so what a token that somebody made up can cost.
const maxTriedKeys = 16

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
	// ErrUnknownKey is an ErrInvalid that is not final: no key that is known can have
	// signed the token, and the issuer could not be asked since the token came. Trying
	// again after 10 s may help.
	ErrUnknownKey = fmt.Errorf("%w with the keys that are known by now", ErrInvalid)
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
	leeway   time.Duration
	keys     []Key
	jwks     *jwks // nil without a URL
	parser   *jwt.Parser
	internal string
	trusted  *Identity
	cache    cache
}

// NewVerifier returns a Verifier. With a JWKSURL it tries for 5 s to fetch the keys, and
// succeeds also if it cannot: they are fetched later. They are then fetched every 5 min
// until ctx ends, every 30 s while they cannot be, and when a token names one that is not
// known, but not within 10 s of the last time, unless one came while they were fetched.
func NewVerifier(ctx context.Context, config Config) (*Verifier, error) {
	config = config.withDefaults()
	if len(config.Keys) == 0 && config.JWKSURL == "" {
		return nil, errors.New("a key, or a URL of keys, is needed to verify tokens")
	}
	v := &Verifier{leeway: config.Leeway, keys: config.Keys, trusted: Trusted()}
	methods := algorithms(config.Keys)
	if config.JWKSURL != "" {
		var err error
		if v.jwks, err = newJWKS(ctx, config.JWKSURL, config.Logger); err != nil {
			return nil, err
		}
		methods = append(methods, publicAlgorithms...)
	}
	v.parser = newParser(methods, config)
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // it never fails
	v.internal = "internal-" + base64.RawURLEncoding.EncodeToString(secret)
	return v, nil
}

func newParser(methods []string, config Config) *jwt.Parser {
	options := []jwt.ParserOption{
		jwt.WithValidMethods(methods), jwt.WithLeeway(config.Leeway),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithStrictDecoding(),
	}
	if config.Issuer != "" {
		options = append(options, jwt.WithIssuer(config.Issuer))
	}
	if config.Audience != "" {
		options = append(options, jwt.WithAudience(config.Audience))
	}
	return jwt.NewParser(options...)
}

// Internal returns a token that only this process knows and that allows everything, for
// connections of the server to itself. It must not leave the process.
func (v *Verifier) Internal() string { return v.internal }

// Verify returns who has a token, which is without the word Bearer. If no key that is known
// has signed it, it may wait until the issuer's are fetched, for 10 s at most. The error is
// ErrExpired, ErrInvalid, ErrUnknownKey, ErrNoKeys or that of ctx. A token that was verified
// within the last minute costs a hash.
func (v *Verifier) Verify(ctx context.Context, token string) (*Identity, error) {
	if subtle.ConstantTimeCompare([]byte(token), []byte(v.internal)) == 1 {
		return v.trusted, nil
	}
	if len(token) > MaxTokenBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrInvalid, len(token), MaxTokenBytes)
	}
	if strings.ContainsAny(token, "\r\n") {
		// encoding/base64 leaves them out, and many texts would be one token.
		return nil, fmt.Errorf("%w: it has a line break in it", ErrInvalid)
	}
	now, hash := time.Now(), tokenHash(sha256.Sum256([]byte(token)))
	if known := v.cache.get(hash, now); known != nil {
		if known.Expired(now) {
			return nil, ErrExpired
		}
		return known, nil
	}
	identity, err := v.verify(ctx, token)
	if err == nil {
		v.cache.put(hash, identity, now)
	}
	return identity, err
}

// verify tries the keys that are known. Only if none of them has signed the token, and one
// of the issuer's that is not known may have, those are fetched.
func (v *Verifier) verify(ctx context.Context, token string) (*Identity, error) {
	if v.jwks == nil {
		identity, _, err := v.verifyKnown(token)
		return identity, refusal(err)
	}
	came, done, of := v.jwks.numbers()
	identity, missing, err := v.verifyKnown(token)
	// A fetch that had begun before the token came may bring keys that are older than its.
	for follows := false; missing && done <= came && v.jwks.refetched(ctx, done, follows); follows = true {
		_, done, of = v.jwks.numbers()
		identity, missing, err = v.verifyKnown(token)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case missing && of == 0:
		return nil, ErrNoKeys
	case missing && of <= came:
		return nil, fmt.Errorf("%w: %w", ErrUnknownKey, err)
	}
	return identity, refusal(err)
}

// verifyKnown verifies a token with the keys that are known. missing is true if none of
// them has signed it, and none is known of the issuer that could have.
func (v *Verifier) verifyKnown(token string) (identity *Identity, missing bool, err error) {
	var c claims
	_, err = v.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (keys any, err error) {
		keys, missing, err = v.keysOf(t)
		return keys, err
	})
	switch {
	case err == nil:
		return &Identity{Subject: c.Subject, Expires: c.ExpiresAt.Time, leeway: v.leeway, permissions: c.Fanfare}, false, nil
	case errors.Is(err, errNoKeyFits), errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return nil, missing, err
	default:
		return nil, false, err
	}
}

var errNoKeyFits = errors.New("no key has its algorithm and its kid")

// keysOf are the keys that may have signed a token. missing is true if none of them is the
// issuer's, and one could be.
func (v *Verifier) keysOf(t *jwt.Token) (set any, missing bool, err error) {
	// Who does not understand what crit names must refuse the token (RFC 7515, section
	// 4.1.11), and nothing that it may name is understood here.
	if _, has := t.Header["crit"]; has {
		return nil, false, errors.New("its header has crit, of which no extension is known")
	}
	kid, err := keyID(t)
	if err != nil {
		return nil, false, err
	}
	algorithm := t.Method.Alg()
	keys := fitting(v.keys, algorithm, kid)
	if v.jwks != nil && slices.Contains(publicAlgorithms, algorithm) {
		theirs := v.jwks.fitting(algorithm, kid)
		missing = len(theirs) == 0
		keys = append(keys, theirs...)
	}
	if len(keys) == 0 {
		return nil, missing, errNoKeyFits
	}
	return triedKeys(keys, kid), missing, nil
}

// triedKeys are as many of some keys as are tried, those that a token names before others.
func triedKeys(keys []Key, kid string) jwt.VerificationKeySet {
	slices.SortStableFunc(keys, func(a, b Key) int {
		switch {
		case a.id == kid && b.id != kid:
			return -1
		case a.id != kid && b.id == kid:
			return 1
		default:
			return 0
		}
	})
	var set jwt.VerificationKeySet
	for _, k := range keys[:min(len(keys), maxTriedKeys)] {
		set.Keys = append(set.Keys, k.material)
	}
	return set
}

// keyID is the kid of a token; empty if it has none.
func keyID(t *jwt.Token) (string, error) {
	value, has := t.Header["kid"]
	if !has {
		return "", nil
	}
	kid, ok := value.(string)
	if !ok || kid == "" || checkKeyID(kid) != nil {
		return "", fmt.Errorf("its kid is not a text of 1 to %d bytes", maxKeyIDBytes)
	}
	return kid, nil
}

// refusal is why a token is refused; nil if it is not.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	for _, other := range otherFaults {
		if errors.Is(err, other) {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if errors.Is(err, jwt.ErrTokenExpired) {
		return ErrExpired
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}

// otherFaults are what may be wrong with a token that has expired, too: then a fresh one
// like it would not do.
var otherFaults = []error{
	jwt.ErrTokenMalformed, jwt.ErrTokenUnverifiable, jwt.ErrTokenSignatureInvalid, jwt.ErrTokenRequiredClaimMissing,
	jwt.ErrTokenInvalidAudience, jwt.ErrTokenInvalidIssuer, jwt.ErrTokenUsedBeforeIssued, jwt.ErrTokenNotValidYet,
}
