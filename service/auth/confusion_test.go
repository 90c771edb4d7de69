package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var p256Curve = elliptic.P256()

// forge makes a token of a header and of claims that allow everything. sign gets what is
// to be signed; nil: nothing.
func forge(header map[string]any, sign func(text string) []byte) string {
	claims := map[string]any{"exp": time.Now().Add(time.Hour).Unix(), "sub": "root", "fanfare": everything()}
	part := func(v any) string { return base64.RawURLEncoding.EncodeToString(must(json.Marshal(v))) }
	text := part(header) + "." + part(claims)
	if sign == nil {
		return text + "."
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sign(text))
}

// Scenario S137, symptom: a token was taken that anybody could have signed. Cause: its own
// alg chose the check, so the public key was used as a secret, or nothing was checked.
func TestTokensDoNotChooseHowTheyAreVerified(t *testing.T) {
	t.Parallel()
	for _, s := range []signer{rsaSigner(), p256Signer(), ed25519Signer()} {
		alg := s.method.Alg()
		withoutID := newVerifier(t, Config{Keys: s.keys(t, "")})
		withID := newVerifier(t, Config{Keys: s.keys(t, "current")})
		block, _ := pem.Decode(s.public())
		forged := map[string]string{
			"an empty signature":          forge(map[string]any{"alg": alg}, nil),
			"a signature of zeros":        forge(map[string]any{"alg": alg}, func(string) []byte { return make([]byte, 64) }),
			"no alg":                      forge(map[string]any{}, nil),
			"alg as a number":             forge(map[string]any{"alg": 256}, nil),
			"alg as a list":               forge(map[string]any{"alg": []string{alg}}, nil),
			"crit":                        forge(map[string]any{"alg": alg, "crit": []string{"exp"}}, nil),
			"no parts":                    "token",
			"four parts":                  s.sign(t) + ".x",
			"two parts":                   s.sign(t)[:strings.LastIndexByte(s.sign(t), '.')],
			"an algorithm that is no JWS": forge(map[string]any{"alg": "RSA-OAEP", "enc": "A256GCM"}, nil),
		}
		for _, none := range []string{"none", "None", "NONE", "nOnE", ""} {
			forged["alg "+none] = forge(map[string]any{"alg": none}, nil)
		}
		for name, secret := range map[string][]byte{
			"PEM":                     s.public(),
			"PEM without a last line": bytes.TrimSpace(s.public()),
			"DER":                     block.Bytes,
			"nothing":                 {},
		} {
			for _, method := range []*jwt.SigningMethodHMAC{jwt.SigningMethodHS256, jwt.SigningMethodHS384, jwt.SigningMethodHS512} {
				forged[method.Alg()+" with "+name] = forge(map[string]any{"alg": method.Alg()}, func(text string) []byte { return must(method.Sign(text, secret)) })
			}
		}
		mine := newEd25519Signer()
		for _, h := range []map[string]any{
			{"jwk": map[string]string{"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(mine.public())}},
			{"jku": "https://attacker.example/keys"}, {"x5u": "https://attacker.example/cert"}, {"x5c": []string{"MII"}},
			{"kid": "../../../../dev/null"}, {"kid": "' UNION SELECT 'key' --"}, {"kid": "withdrawn"}, {"kid": "current\x00"},
			{"kid": []string{"current"}}, {"kid": map[string]string{}},
		} {
			h["alg"] = "EdDSA"
			forged[fmt.Sprint(h)] = forge(h, func(text string) []byte { return must(mine.method.Sign(text, mine.key)) })
		}
		for name, token := range forged {
			for _, v := range []*Verifier{withoutID, withID} {
				identity, err := v.Verify(t.Context(), token)
				if !errors.Is(err, ErrInvalid) || identity != nil {
					t.Errorf("%s, %s: %+v, %v", alg, name, identity, err)
				}
				if err != nil && leaks(err.Error(), token) {
					t.Errorf("%s, %s: the error has the token in it: %v", alg, name, err)
				}
			}
		}
		if _, err := withID.Verify(t.Context(), s.sign(t, header("kid", "current"))); err != nil {
			t.Errorf("%s: a good token: %v", alg, err)
		}
	}
}

// A key of the algorithm of one curve must not verify what claims to be of another, and
// the RSA algorithms are for RSA keys.
func TestAlgorithmsBelongToTheirKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    signer
		algs []string
	}{
		{secretSigner(), []string{"HS256", "HS384", "HS512"}},
		{rsaSigner(), []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}},
		{p256Signer(), []string{"ES256"}},
		{p384Signer(), []string{"ES384"}},
		{p521Signer(), []string{"ES512"}},
		{ed25519Signer(), []string{"EdDSA"}},
	} {
		v := newVerifier(t, Config{Keys: c.s.keys(t, "")})
		for _, alg := range append(append([]string{}, publicAlgorithms...), "HS256", "HS384", "HS512", "none") {
			method := jwt.GetSigningMethod(alg)
			signature, err := method.Sign("x", c.s.key)
			canSign := err == nil && len(signature) > 0
			token := forge(map[string]any{"alg": alg}, func(text string) []byte {
				signature, _ := method.Sign(text, c.s.key)
				return signature
			})
			_, err = v.Verify(t.Context(), token)
			if want := contains(c.algs, alg); (err == nil) != want || want && !canSign {
				t.Errorf("a key for %v takes %s: %v", c.algs, alg, err)
			}
		}
	}
}

// With keys of several curves an algorithm is still that of one of them.
func TestCurvesAreNotMixedUp(t *testing.T) {
	t.Parallel()
	v := newVerifier(t, Config{Keys: append(p256Signer().keys(t, ""), p384Signer().keys(t, "")...)})
	// golang-jwt does not sign so, but it would verify.
	token := forge(map[string]any{"alg": "ES384"}, func(text string) []byte {
		digest := sha512.Sum384([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, p256Signer().key.(*ecdsa.PrivateKey), digest[:])
		if err != nil {
			t.Fatal(err)
		}
		signature := make([]byte, 96)
		r.FillBytes(signature[:48])
		s.FillBytes(signature[48:])
		return signature
	})
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) {
		t.Errorf("ES384 with a key for ES256: %v", err)
	}
}

func contains(all []string, one string) bool {
	return strings.Contains(" "+strings.Join(all, " ")+" ", " "+one+" ")
}

// Symptom: a token was taken that was not the one that was issued, but had line breaks in
// its signature. Cause: encoding/base64 leaves them out; RFC 7515, section 2, has none.
func TestTokensHaveNoLineBreaks(t *testing.T) {
	t.Parallel()
	for _, s := range []signer{secretSigner(), p256Signer()} {
		v := newVerifier(t, Config{Keys: s.keys(t, "")})
		token := s.sign(t)
		for at := range len(token) + 1 {
			for _, odd := range []string{"\n", "\r", "\r\n", " ", "=", "\x00"} {
				if _, err := v.Verify(t.Context(), token[:at]+odd+token[at:]); !errors.Is(err, ErrInvalid) {
					t.Fatalf("%s with %q at %d: %v", s.method.Alg(), odd, at, err)
				}
			}
		}
	}
}

// Whatever the text, there is no identity for what no key has signed.
func FuzzVerify(f *testing.F) {
	v := newVerifier(f, Config{Keys: append(secretSigner().keys(f, ""), p256Signer().keys(f, "id")...)})
	good := secretSigner().sign(f)
	for _, seed := range []string{"", ".", "..", "...", "e30.e30.", good, good + "=", good + "\n", good[1:], forge(map[string]any{"alg": "none"}, nil), forge(map[string]any{"alg": "ES256", "kid": "id"}, nil)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		identity, err := v.Verify(t.Context(), token)
		if (identity == nil) == (err == nil) {
			t.Fatalf("%+v and %v", identity, err)
		}
		if err == nil && token != good {
			t.Fatalf("%q is taken for a token", token)
		}
	})
}
