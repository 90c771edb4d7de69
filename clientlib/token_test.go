package clientlib

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// tokenSeries is a source that numbers its tokens, and takes a while for new ones.
type tokenSeries struct {
	mu      sync.Mutex
	current int
	fetched int
}

func (s *tokenSeries) token(_ context.Context, refresh bool) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refresh {
		elapse(time.Second)
		s.current++
		s.fetched++
	}
	return fmt.Sprint("token-", s.current), nil
}

// Scenario S61, symptom: each of many subscriptions fetched a token when all were
// refused at once.
func TestOneNewTokenForAllThatWereRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &tokenSeries{}
		cache := newTokenCache(source.token)
		var subscriptions [100]access
		for i := range subscriptions {
			subscriptions[i].tokens = &cache
			if _, err := subscriptions[i].authorize(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for i := range subscriptions {
			a := &subscriptions[i]
			all.Go(func() {
				if !a.renew(&Error{Code: codes.Unauthenticated}) {
					t.Error("a refused token is not renewed")
				}
				ctx, err := a.authorize(t.Context())
				md, _ := metadata.FromOutgoingContext(ctx)
				if got := md.Get("authorization"); err != nil || len(got) != 1 || got[0] != "Bearer token-1" {
					t.Errorf("sends %q, %v", got, err)
				}
				if a.renew(&Error{Code: codes.Unauthenticated}) {
					t.Error("a second refusal in a row is not final")
				}
				a.accepted()
				if !a.renew(&Error{Code: codes.Unauthenticated}) {
					t.Error("a refusal after a success is final")
				}
			})
		}
		all.Wait()
		if source.fetched != 1 {
			t.Errorf("%d tokens were fetched", source.fetched)
		}
	})
}

func TestTokensThatExpireSoonAreRenewed(t *testing.T) {
	jwt := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	now := time.Now().Unix()
	for _, test := range []struct {
		token string
		want  bool
	}{
		{jwt(fmt.Sprintf(`{"exp":%d}`, now+3600)), false},
		{jwt(fmt.Sprintf(`{"exp":%d}`, now+5)), true},
		{jwt(fmt.Sprintf(`{"exp":%d.5}`, now-5)), true},
		{jwt(`{"sub":"somebody"}`), false},
		{jwt(`{"exp":"tomorrow"}`), false},
		{"e30.%.c2ln", false},
		{"opaque", false},
		{"", false},
	} {
		var refreshes []bool
		cache := newTokenCache(func(_ context.Context, refresh bool) (string, error) {
			refreshes = append(refreshes, refresh)
			return test.token, nil
		})
		if _, err := cache.get(t.Context(), ""); err != nil {
			t.Error(err)
		}
		if renewed := len(refreshes) == 2 && refreshes[1]; renewed != test.want {
			t.Errorf("%s: asked for %v", test.token, refreshes)
		}
	}
}

func TestWaitingForATokenEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := newTokenCache(func(ctx context.Context, _ bool) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		})
		long, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = cache.get(long, "") }()
		synctest.Wait()
		ctx, cancelShort := context.WithTimeout(t.Context(), time.Second)
		defer cancelShort()
		if _, err := cache.get(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
