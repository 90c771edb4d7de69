package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// minSecretBytes is the size of the hash of HS256: a shorter secret is the weakest
	// part (RFC 7518, section 3.2), and can be guessed from one token.
	minSecretBytes = 32
	// maxSecretBytes is far above what is of use.
	maxSecretBytes = 4096
	// minRSABits is what RFC 7518, section 3.3, asks for.
	minRSABits = 2048
	// maxRSABits bounds what one verification costs.
	maxRSABits = 8192
	// maxKeyIDBytes bounds the id of a key.
	maxKeyIDBytes = 256
)

// Key is what tokens may be signed with. The zero value is none.
type Key struct {
	// id is the kid of its tokens; empty: any, or none.
	id string
	// algorithms are those that it may be used with.
	algorithms []string
	// material is []byte or a public key, as golang-jwt takes it.
	material any
}

// ParseSecret makes a key of a secret, of which one final line break is not part. It must
// have 32 to 4,096 bytes. id is the kid of its tokens; empty: any, or none.
func ParseSecret(id string, text []byte) (Key, error) {
	text = []byte(strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"))
	switch block, _ := pem.Decode(text); {
	case block != nil:
		// Whoever has a public key could sign with it.
		return Key{}, fmt.Errorf("it is a PEM file with a %s, not a secret", block.Type)
	case len(text) < minSecretBytes:
		return Key{}, fmt.Errorf("it has %d bytes, a secret must have %d at least, chosen at random", len(text), minSecretBytes)
	case len(text) > maxSecretBytes:
		return Key{}, fmt.Errorf("it has %d bytes, a secret may have %d at most", len(text), maxSecretBytes)
	}
	return Key{id: id, algorithms: []string{"HS256", "HS384", "HS512"}, material: text}, checkKeyID(id)
}

// ParsePublicKeys makes keys of the public keys in a PEM file, which may be RSA keys of
// 2,048 to 8,192 bits, EC keys of the curves P-256, P-384 and P-521, and Ed25519 keys.
// id is the kid of their tokens; empty: any, or none.
func ParsePublicKeys(id string, text []byte) ([]Key, error) {
	if err := checkKeyID(id); err != nil {
		return nil, err
	}
	var keys []Key
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		public, err := parseBlock(block)
		if err != nil {
			return nil, err
		}
		key, err := newPublicKey(id, public)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no PEM block in it that begins with -----BEGIN PUBLIC KEY-----")
	}
	return keys, nil
}

func parseBlock(block *pem.Block) (crypto.PublicKey, error) {
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		return nil, fmt.Errorf("it has a %s, where only a PUBLIC KEY belongs: a server that verifies tokens needs nothing that signs them", block.Type)
	}
}

// publicAlgorithms are those that public keys may be used with.
var publicAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// newPublicKey makes a key that verifies the algorithms of its kind alone.
func newPublicKey(id string, public crypto.PublicKey) (Key, error) {
	algorithms, err := algorithmsOf(public)
	return Key{id: id, algorithms: algorithms, material: public}, err
}

func algorithmsOf(public crypto.PublicKey) ([]string, error) {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return nil, fmt.Errorf("the RSA key has %d bits, it must have %d to %d", bits, minRSABits, maxRSABits)
		}
		return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return []string{"ES256"}, nil
		case elliptic.P384():
			return []string{"ES384"}, nil
		case elliptic.P521():
			return []string{"ES512"}, nil
		}
		return nil, fmt.Errorf("the EC key is of the curve %s, it must be P-256, P-384 or P-521", k.Curve.Params().Name)
	case ed25519.PublicKey:
		return []string{"EdDSA"}, nil
	default:
		return nil, fmt.Errorf("a key of type %T verifies no token", public)
	}
}

func checkKeyID(id string) error {
	if len(id) > maxKeyIDBytes {
		return fmt.Errorf("the key id has %d bytes, the limit is %d", len(id), maxKeyIDBytes)
	}
	return nil
}

// algorithms are those that any of some keys may be used with.
func algorithms(keys []Key) []string {
	var all []string
	for _, k := range keys {
		all = append(all, k.algorithms...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// fitting are the keys that may have signed a token: of its algorithm, and of its kid or
// without an id.
func fitting(keys []Key, algorithm, kid string) []Key {
	var fit []Key
	for _, k := range keys {
		if slices.Contains(k.algorithms, algorithm) && (k.id == "" || k.id == kid) {
			fit = append(fit, k)
		}
	}
	return fit
}
