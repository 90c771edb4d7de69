package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
)

func TestSecretsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, id string
		text     []byte
		want     string // empty: it is taken
	}{
		{"empty", "", nil, "has 0 bytes"},
		{"short", "", secret[:31], "has 31 bytes, a secret must have 32 at least"},
		{"short but for its line break", "", append(bytes.Clone(secret[:31]), '\n'), "has 31 bytes"},
		{"short but for its line break of Windows", "", append(bytes.Clone(secret[:31]), '\r', '\n'), "has 31 bytes"},
		{"long enough", "", secret, ""},
		{"with a line break", "", append(bytes.Clone(secret), '\n'), ""},
		{"long", "", bytes.Repeat([]byte{'x'}, 4097), "may have 4096 at most"},
		{"public key", "", p256Signer().public(), "it is a PEM file with a PUBLIC KEY, not a secret"},
		{"id", strings.Repeat("k", 257), secret, "the key id has 257 bytes"},
	} {
		_, err := ParseSecret(c.id, c.text)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && len(c.text) > 0 && strings.Contains(err.Error(), string(c.text[:8])) {
			t.Errorf("%s: the error repeats the secret: %v", c.name, err)
		}
	}
}

// A final line break is not part of a secret: editors and echo add one.
func TestLineBreakIsNotPartOfASecret(t *testing.T) {
	t.Parallel()
	for _, ending := range []string{"\n", "\r\n"} {
		key, err := ParseSecret("", append(bytes.Clone(secret), ending...))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newVerifier(t, Config{Keys: []Key{key}}).Verify(t.Context(), secretSigner().sign(t)); err != nil {
			t.Errorf("with %q: %v", ending, err)
		}
	}
}

func TestPublicKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	block := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	weak := must(rsa.GenerateKey(rand.Reader, 1024))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	private := must(x509.MarshalPKCS8PrivateKey(p256Signer().key))
	for _, c := range []struct {
		name string
		text []byte
		keys int
		want string
	}{
		{"empty", nil, 0, "no PEM block"},
		{"secret", secret, 0, "no PEM block"},
		{"private key", block("PRIVATE KEY", private), 0, "has a PRIVATE KEY"},
		{"certificate", block("CERTIFICATE", []byte{1}), 0, "has a CERTIFICATE"},
		{"damaged", block("PUBLIC KEY", []byte{1, 2, 3}), 0, "asn1"},
		{"short RSA key", publicPEM(&weak.PublicKey), 0, "has 1024 bits, it must have 2048 to 8192"},
		{"another curve", publicPEM(&p224.PublicKey), 0, "of the curve P-224"},
		{"good and damaged", append(p256Signer().public(), block("PUBLIC KEY", []byte{1})...), 0, "asn1"},
		{"good", p256Signer().public(), 1, ""},
		{"PKCS #1", block("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&rsaSigner().key.(*rsa.PrivateKey).PublicKey)), 1, ""},
		{"several", append(p256Signer().public(), ed25519Signer().public()...), 2, ""},
		{"with text around", []byte("a comment\n" + string(p256Signer().public()) + "another"), 1, ""},
	} {
		keys, err := ParsePublicKeys("", c.text)
		if len(keys) != c.keys || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d keys, %v", c.name, len(keys), err)
		}
	}
	if _, err := ParsePublicKeys(strings.Repeat("k", 257), p256Signer().public()); err == nil {
		t.Error("a long id is taken")
	}
}
