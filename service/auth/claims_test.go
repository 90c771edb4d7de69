package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// signText signs claims as they stand, which need not be what an encoder would write.
func (s signer) signText(t testing.TB, header map[string]any, claims string) string {
	t.Helper()
	parts := map[string]any{"alg": s.method.Alg(), "typ": "JWT"}
	for name, value := range header {
		parts[name] = value
	}
	text := base64.RawURLEncoding.EncodeToString(must(json.Marshal(parts))) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	return text + "." + base64.RawURLEncoding.EncodeToString(must(s.method.Sign(text, s.key)))
}

// Symptom: a token was taken that its issuer had bound to something else, such as a key of
// the client. Cause: golang-jwt does not look at crit.
func TestTokensWithCriticalExtensionsAreRefused(t *testing.T) {
	t.Parallel()
	v := newVerifier(t, Config{Keys: secretSigner().keys(t, "")})
	for _, crit := range []any{[]string{"https://example.com/bound-to"}, []string{"b64"}, []string{"exp"}, []string{}, "exp", nil} {
		token := secretSigner().signText(t, map[string]any{"crit": crit, "https://example.com/bound-to": "x"}, in(600))
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "crit") {
			t.Errorf("crit is %v: %v", crit, err)
		}
	}
	if _, err := v.Verify(t.Context(), secretSigner().signText(t, map[string]any{"CRIT": []string{"x"}}, in(600))); err != nil {
		t.Errorf("a parameter that is not crit: %v", err)
	}
}

// in are claims that are valid for some seconds, with what is appended.
func in(seconds int, more ...string) string {
	return fmt.Sprintf(`{"exp": %d%s}`, time.Now().Unix()+int64(seconds), strings.Join(append([]string{""}, more...), ", "))
}

// Symptom: a token was taken after its exp, as it had an EXP that had not passed, and a
// claim Fanfare gave rights, which matters where users may choose names of claims. Of two
// claims of a name the second was taken, and within fanfare names were taken in any
// spelling. Cause: encoding/json compares names without regard to case, and takes the last.
func TestNamesInTokensAreComparedAsTheyAre(t *testing.T) {
	t.Parallel()
	v := newVerifier(t, Config{Keys: secretSigner().keys(t, ""), Issuer: "me"})
	for _, c := range []struct {
		name, claims string
		want         error
	}{
		{"exp has passed, EXP has not", in(-1000, `"iss": "me"`, fmt.Sprintf(`"EXP": %d`, time.Now().Unix()+600)), ErrExpired},
		{"EXP alone", fmt.Sprintf(`{"EXP": %d, "iss": "me"}`, time.Now().Unix()+600), ErrInvalid},
		{"NBF is no nbf", in(600, `"iss": "me"`, `"NBF": 99999999999`), nil},
		{"another iss behind Iss", in(600, `"iss": "you"`, `"Iss": "me"`), ErrInvalid},
		{"exp twice", in(-1000, `"iss": "me"`, fmt.Sprintf(`"exp": %d`, time.Now().Unix()+600)), ErrInvalid},
		{"exp twice, once escaped", in(-1000, `"iss": "me"`, fmt.Sprintf(`"\u0065xp": %d`, time.Now().Unix()+600)), ErrInvalid},
		{"fanfare twice", in(600, `"iss": "me"`, `"fanfare": {}`, `"fanfare": {"admin": true}`), ErrInvalid},
		{"a claim of no interest twice", in(600, `"iss": "me"`, `"x": 1`, `"x": 1`), ErrInvalid},
		{"Fanfare behind fanfare", in(600, `"iss": "me"`, `"fanfare": {}`, `"Fanfare": {"admin": true}`), nil},
		{"Fanfare before fanfare", in(600, `"iss": "me"`, `"Fanfare": {"admin": true}`, `"fanfare": {}`), nil},
		{"Fanfare alone", in(600, `"iss": "me"`, `"Fanfare": {"admin": true}`), nil},
		{"Admin", in(600, `"iss": "me"`, `"fanfare": {"Admin": true}`), ErrInvalid},
		{"a list of permissions in another spelling", in(600, `"iss": "me"`, `"fanfare": {"Subscribe": [{"channel": "a"}]}`), ErrInvalid},
		{"a list with the long s", in(600, `"iss": "me"`, `"fanfare": {"ſubscribe": [{"channel": "a"}]}`), ErrInvalid},
		{"a list twice", in(600, `"iss": "me"`, `"fanfare": {"publish": [], "publish": [{"channel": "a"}]}`), ErrInvalid},
		{"Scope", in(600, `"iss": "me"`, `"fanfare": {"subscribe": [{"channel": "a", "Scope": "*"}]}`), ErrInvalid},
		{"channel twice", in(600, `"iss": "me"`, `"fanfare": {"subscribe": [{"channel": "a", "channel": "*"}]}`), ErrInvalid},
		{"a permission null", in(600, `"iss": "me"`, `"fanfare": {"subscribe": [null]}`), ErrInvalid},
		{"a name without an end in sight", in(600, `"iss": "me"`, `"fanfare": {"`+strings.Repeat("x", 4000)+`": 1}`), ErrInvalid},
		{"no object", `[]`, ErrInvalid},
		{"null", `null`, ErrInvalid},
		{"something behind", in(600, `"iss": "me"`) + "{}", ErrInvalid},
	} {
		identity, err := v.Verify(t.Context(), secretSigner().signText(t, nil, c.claims))
		if !errors.Is(err, c.want) || err == nil && (identity.Allows(Admin, "", "") || identity.AllowsAny(Subscribe)) {
			t.Errorf("%s: %+v, %v", c.name, identity, err)
		}
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%s: an error of %d bytes", c.name, len(err.Error()))
		}
	}
}

// Symptom: a token was taken before its nbf, which was further away than an int64 can be.
// Cause: golang-jwt makes an int64 of it, whatever comes of that.
func TestTimesInTokensAreBounded(t *testing.T) {
	t.Parallel()
	v := newVerifier(t, Config{Keys: secretSigner().keys(t, "")})
	for claims, want := range map[string]error{
		in(600, `"nbf": 1e300`):                     ErrInvalid,
		in(600, `"nbf": 9223372036854775808`):       ErrInvalid,
		in(600, `"nbf": -1e300`):                    ErrInvalid,
		in(600, `"nbf": 1e400`):                     ErrInvalid,
		in(600, `"iat": 1e19`):                      ErrInvalid,
		in(600, `"iat": -1e19`):                     ErrInvalid,
		in(600, `"nbf": 253402300800`):              ErrInvalid,
		in(600, `"nbf": "0"`):                       ErrInvalid,
		in(600, `"nbf": 0`, `"iat": -253402300799`): nil,
		in(600, `"nbf": null`, `"iat": 1.5`):        nil,
		`{"exp": 253402300799.5}`:                   nil,
		`{"exp": 253402300800}`:                     ErrInvalid,
		`{"exp": -253402300799}`:                    ErrExpired,
		`{"exp": -1e19}`:                            ErrInvalid,
		`{"exp": -9223372036854775809}`:             ErrInvalid,
		`{"exp": "253402300799"}`:                   ErrInvalid,
	} {
		if _, err := v.Verify(t.Context(), secretSigner().signText(t, nil, claims)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", claims, err, want)
		}
	}
}

// Claims that are taken say what a map of their exact names says, and nothing else.
func FuzzClaims(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `{"exp": 1e300}`, `{"exp": 1, "EXP": 2, "nbf": -1.5, "aud": ["a"]}`, `{"exp": 1, "exp": 2}`,
		`{"sub": "s", "fanfare": {"subscribe": [{"channel": "a", "scope": "*"}], "admin": true}}`, `{"fanfare": {"Admin": true}}`,
		`{"Fanfare": {"admin": true}, "iss": "i", "aud": "b", "iat": null}`, `{"fanfare": {"work": [{"channel": "a", "Channel": "b"}]}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c claims
		var exact map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &c) != nil {
			return
		}
		if err := json.Unmarshal([]byte(text), &exact); err != nil {
			t.Fatalf("%q is taken, but %v", text, err)
		}
		for name, date := range map[string]interface{ Unix() int64 }{"exp": c.ExpiresAt, "nbf": c.NotBefore, "iat": c.IssuedAt} {
			var want *float64
			if raw := exact[name]; raw != nil {
				if err := json.Unmarshal(raw, &want); err != nil {
					t.Fatal(err)
				}
			}
			if none := reflect.ValueOf(date).IsNil(); none != (want == nil) {
				t.Fatalf("%q: %s is %v", text, name, date)
			} else if !none && math.Abs(float64(date.Unix())-*want) > 1 {
				t.Fatalf("%q: %s is %d", text, name, date.Unix())
			}
		}
		var subject, issuer string
		_, _ = json.Unmarshal(exact["sub"], &subject), json.Unmarshal(exact["iss"], &issuer)
		if c.Subject != subject || c.Issuer != issuer {
			t.Fatalf("%q: %+v", text, c)
		}
		if exact["fanfare"] == nil && !reflect.DeepEqual(c.Fanfare, Permissions{}) {
			t.Fatalf("%q allows %+v", text, c.Fanfare)
		}
		var again claims
		if err := json.Unmarshal(must(json.Marshal(c)), &again); err != nil || again.Subject != c.Subject || again.Fanfare.Admin != c.Fanfare.Admin {
			t.Fatalf("%q: %+v, again %+v, %v", text, c, again, err)
		}
	})
}
