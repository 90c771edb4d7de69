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

// UnmarshalJSON implements json.Unmarshaler. Other claims do not matter: issuers add their
// own.
func (c *claims) UnmarshalJSON(text []byte) error {
	*c = claims{}
	_, err := readMembers(text, map[string]any{
		"iss": &c.Issuer, "sub": &c.Subject, "aud": &c.Audience, "fanfare": &c.Fanfare,
		"exp": &date{&c.ExpiresAt}, "nbf": &date{&c.NotBefore}, "iat": &date{&c.IssuedAt},
	})
	return err
}

// UnmarshalJSON implements json.Unmarshaler. It refuses names that it does not know: they
// could be meant to restrict, or be misspelt.
func (p *Permissions) UnmarshalJSON(text []byte) error {
	*p = Permissions{}
	if string(text) == "null" {
		return nil
	}
	return readAllMembers(text, map[string]any{"subscribe": &p.Subscribe, "publish": &p.Publish, "work": &p.Work, "admin": &p.Admin})
}

// UnmarshalJSON implements json.Unmarshaler. It refuses names that it does not know.
func (p *Permission) UnmarshalJSON(text []byte) error {
	*p = Permission{}
	return readAllMembers(text, map[string]any{"channel": &p.Channel, "scope": &p.Scope})
}

// readAllMembers is readMembers for an object in which no other name may be.
func readAllMembers(text []byte, into map[string]any) error {
	others, err := readMembers(text, into)
	if err == nil && len(others) > 0 {
		return fmt.Errorf("the name %.*q is not known", maxLoggedName, others[0])
	}
	return err
}

// maxLoggedName is how many characters of a name an error tells: anybody can make up
// tokens, and what is wrong with them is logged.
const maxLoggedName = 64

// readMembers reads the members of a JSON object by their names, and returns the names of
// the others. encoding/json alone would take exp from EXP, too, and of several members the
// last. RFC 7519, section 4, has names compared as they are, and be there once.
func readMembers(text []byte, into map[string]any) (others []string, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	seen := make(map[string]bool)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // between members there are names alone
		if seen[name] {
			return nil, fmt.Errorf("the name %.*q is there twice", maxLoggedName, name)
		}
		seen[name] = true
		value, known := into[name]
		if !known {
			others = append(others, name)
			value = new(json.RawMessage)
		}
		if err := d.Decode(value); err != nil {
			return nil, fmt.Errorf("%.*q: %w", maxLoggedName, name, err)
		}
	}
	return others, nil
}

// latestDate is the end of the times that the protocol can tell, the year 10000, in
// seconds since 1970.
const latestDate = 253402300800

// date reads a time in seconds since 1970 (NumericDate of RFC 7519, section 2), null as
// none. It refuses numbers that an int64 cannot hold: golang-jwt makes any time of them.
type date struct{ to **jwt.NumericDate }

// UnmarshalJSON implements json.Unmarshaler.
func (d *date) UnmarshalJSON(text []byte) error {
	var seconds *float64
	if err := json.Unmarshal(text, &seconds); err != nil || seconds == nil {
		return err
	}
	if *seconds <= -latestDate || *seconds >= latestDate {
		return fmt.Errorf("the time %g is not between -%d and %d", *seconds, int64(latestDate), int64(latestDate))
	}
	*d.to = new(jwt.NumericDate)
	return (*d.to).UnmarshalJSON(text)
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
