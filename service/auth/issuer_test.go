package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// secret is one of 32 bytes, the shortest there may be.
var secret = []byte("0123456789abcdef0123456789abcdef")

// signer signs tokens with a private key or a secret.
type signer struct {
	method jwt.SigningMethod
	key    any
}

// Private keys of the kinds that there are, made once: RSA keys take long.
var (
	rsaSigner     = sync.OnceValue(func() signer { return signer{jwt.SigningMethodRS256, must(rsa.GenerateKey(rand.Reader, 2048))} })
	p256Signer    = sync.OnceValue(func() signer { return ecSigner(jwt.SigningMethodES256, elliptic.P256()) })
	p384Signer    = sync.OnceValue(func() signer { return ecSigner(jwt.SigningMethodES384, elliptic.P384()) })
	p521Signer    = sync.OnceValue(func() signer { return ecSigner(jwt.SigningMethodES512, elliptic.P521()) })
	ed25519Signer = sync.OnceValue(newEd25519Signer)
	secretSigner  = func() signer { return signer{jwt.SigningMethodHS256, secret} }
)

func ecSigner(method jwt.SigningMethod, curve elliptic.Curve) signer {
	return signer{method, must(ecdsa.GenerateKey(curve, rand.Reader))}
}

func newEd25519Signer() signer {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return signer{jwt.SigningMethodEdDSA, private}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// public is the public key, in PEM.
func (s signer) public() []byte { return publicPEM(s.key.(crypto.Signer).Public()) }

func publicPEM(public any) []byte {
	der := must(x509.MarshalPKIXPublicKey(public))
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// keys are what a verifier needs to know of the signer, under an id.
func (s signer) keys(t testing.TB, id string) []Key {
	t.Helper()
	if text, ok := s.key.([]byte); ok {
		key, err := ParseSecret(id, text)
		if err != nil {
			t.Fatal(err)
		}
		return []Key{key}
	}
	keys, err := ParsePublicKeys(id, s.public())
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// change is something about a token that is not as usual.
type change func(*jwt.Token)

func header(name string, value any) change { return func(t *jwt.Token) { t.Header[name] = value } }

// claim sets a claim; nil takes it away.
func claim(name string, value any) change {
	return func(t *jwt.Token) {
		if value == nil {
			delete(t.Claims.(jwt.MapClaims), name)
			return
		}
		t.Claims.(jwt.MapClaims)[name] = value
	}
}

// sign makes a token of somebody who may subscribe to chat/*, which is valid for an hour
// but for the changes.
func (s signer) sign(t testing.TB, changes ...change) string {
	t.Helper()
	token := jwt.NewWithClaims(s.method, jwt.MapClaims{
		"sub":     "somebody",
		"exp":     time.Now().Add(time.Hour).Unix(),
		"fanfare": Permissions{Subscribe: []Permission{{Channel: "chat/*", Scope: "*"}}},
	})
	for _, c := range changes {
		c(token)
	}
	text, err := token.SignedString(s.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// newVerifier returns a Verifier without a log.
func newVerifier(t testing.TB, config Config) *Verifier {
	t.Helper()
	config.Logger = slog.New(slog.DiscardHandler)
	v, err := NewVerifier(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// leaks reports whether a text has a part of a token in it that is long enough to be of
// use.
func leaks(text, token string) bool {
	for _, part := range strings.Split(token, ".") {
		for i := 0; i+12 <= len(part); i += 4 {
			if strings.Contains(text, part[i:i+12]) {
				return true
			}
		}
	}
	return false
}
