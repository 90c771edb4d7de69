package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// claims are those of a token that matter here.
type claims struct {
	jwt.RegisteredClaims
	Fanfare Permissions `json:"fanfare"`
}

// UnmarshalJSON implements json.Unmarshaler. It refuses names that it does not know: they
// could be meant to restrict, or be misspelt.
func (p *Permissions) UnmarshalJSON(text []byte) error {
	type plain Permissions // without this method
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	*p = Permissions{}
	return d.Decode((*plain)(p))
}

// Grant is what a token that is signed here says.
type Grant struct {
	Subject, Issuer, Audience string // empty: none
	// Lifetime is for how long the token is valid from now on, 1 s at least.
	Lifetime    time.Duration
	Permissions Permissions
}

// Sign makes a token, signed with HS256 and a key of [ParseSecret], for development and
// for tests.
func Sign(key Key, g Grant) (string, error) {
	secret, ok := key.material.([]byte)
	switch {
	case !ok:
		return "", errors.New("only a secret signs tokens here")
	case g.Lifetime < time.Second:
		return "", fmt.Errorf("a token cannot be valid for %s, but for a second at least", g.Lifetime)
	}
	now := time.Now()
	c := claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Subject:   g.Subject,
			Issuer:    g.Issuer,
			IssuedAt:  jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(now.Add(g.Lifetime)),
		},
		Fanfare: g.Permissions,
	}
	if g.Audience != "" {
		c.Audience = jwt.ClaimStrings{g.Audience}
	}
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, c)
	if key.id != "" {
		token.Header["kid"] = key.id
	}
	return token.SignedString(secret)
}
