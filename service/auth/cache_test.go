package auth

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A cached token is refused as soon as it expires.
func TestCachedTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVerifier(t, Config{Keys: secretSigner().keys(t, ""), Leeway: 10 * time.Second})
		token := secretSigner().sign(t, claim("exp", time.Now().Add(20*time.Second).Unix()))
		first, err := v.Verify(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		elapse(30*time.Second - time.Nanosecond)
		if again, err := v.Verify(t.Context(), token); again != first || err != nil {
			t.Errorf("before the deadline: %v, %v; it is not cached", again, err)
		}
		elapse(time.Nanosecond)
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrExpired) {
			t.Errorf("at the deadline: %v", err)
		}
	})
}

// What was verified long ago is verified again: its key may have been withdrawn.
func TestCachedTokensAreVerifiedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVerifier(t, Config{Keys: secretSigner().keys(t, "")})
		token := secretSigner().sign(t)
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		v.keys = ed25519Signer().keys(t, "")
		elapse(cacheAge - time.Nanosecond)
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Errorf("within a minute: %v", err)
		}
		elapse(time.Nanosecond)
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) {
			t.Errorf("after a minute: %v", err)
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	var c cache
	now := time.Now()
	hash := func(i int) (h tokenHash) {
		h[0], h[1], h[2] = byte(i), byte(i>>8), byte(i>>16)
		return h
	}
	used := &Identity{}
	c.put(hash(0), used, now)
	for i := 1; i < 10*cacheEntries; i++ {
		c.put(hash(i), &Identity{}, now)
		if c.get(hash(0), now) != used {
			t.Fatalf("what is used is forgotten after %d others", i)
		}
		if n := len(c.newer) + len(c.older); n > 2*cacheEntries {
			t.Fatalf("it has %d entries", n)
		}
	}
	if c.get(hash(1), now) != nil {
		t.Error("what is not used is kept")
	}
}

// elapse lets the clock of a synctest bubble, which no test waits for, run on.
func elapse(d time.Duration) { <-time.After(d) }

func BenchmarkVerify(b *testing.B) {
	for _, s := range []signer{secretSigner(), rsaSigner(), p256Signer(), ed25519Signer()} {
		v := newVerifier(b, Config{Keys: s.keys(b, "")})
		token := s.sign(b)
		b.Run(s.method.Alg()+"/first", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.verify(b.Context(), token); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.method.Alg()+"/again", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(b.Context(), token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
