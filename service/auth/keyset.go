package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/MicahParks/jwkset"
)

// keySet is a JWK Set (RFC 7517, section 5).
type keySet []json.RawMessage

// UnmarshalJSON implements json.Unmarshaler. It refuses what is no set: that would be one
// without keys, which withdraws all that there were.
func (s *keySet) UnmarshalJSON(text []byte) error {
	var keys []json.RawMessage
	if _, err := readMembers(text, map[string]any{"keys": &keys}); err != nil {
		return err
	}
	if keys == nil {
		return errors.New("it has no list of keys")
	}
	*s = keys
	return nil
}

// parseKeySet returns the keys of a set that verify tokens, and how many others it has:
// section 5 of RFC 7517 has ignored what is not understood, and what misses something or
// is out of range.
func parseKeySet(text []byte) (keys []Key, leftOut int, err error) {
	var set keySet
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, 0, fmt.Errorf("the answer is not a set of keys: %w", err)
	}
	for _, raw := range set {
		if key, ok := parseKey(raw); ok {
			keys = append(keys, key)
		} else {
			leftOut++
		}
	}
	return keys, leftOut, nil
}

// parseKey makes a key of one in a set, if it is a public one for signatures.
func parseKey(raw json.RawMessage) (Key, bool) {
	var m jwkset.JWKMarshal
	if json.Unmarshal(raw, &m) != nil || checkKeyID(m.KID) != nil {
		return Key{}, false
	}
	// The set vouches for the key. Certificates would have to match it in forms that not
	// all issuers keep to.
	m.X5C, m.X5T, m.X5TS256, m.X5U = nil, "", "", ""
	parsed, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return Key{}, false
	}
	if m.USE != "" && m.USE != jwkset.UseSig || len(m.KEYOPS) > 0 && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify) {
		return Key{}, false
	}
	key, err := newPublicKey(m.KID, parsed.Key())
	if err != nil {
		return Key{}, false
	}
	if m.ALG != "" {
		key.algorithms = slices.DeleteFunc(key.algorithms, func(a string) bool { return a != m.ALG.String() })
	}
	return key, len(key.algorithms) > 0
}
