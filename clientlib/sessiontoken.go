package clientlib

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const (
	// renewalShare is the part of a token's remaining time that is left when a session
	// is given the next one, and maxRenewalMargin the most that is.
	renewalShare     = 5
	maxRenewalMargin = time.Minute
	// renewalRetry is how long to wait after a token source has failed.
	renewalRetry = time.Second
)

// renewTokens gives the server another token whenever the session's is about to expire,
// until ctx ends, so that the call goes on, and when the source has another one once a
// subscription was denied. When the first one expires is known of a JSON Web Token only;
// of the others the server tells. Where that does not succeed the server ends the call,
// and the next one begins with another token.
func (s *session) renewTokens(ctx context.Context, a *access) {
	expires, known := expiryOf(a.used)
	for {
		denied, ok := s.awaitRenewal(ctx, expires, known)
		if !ok {
			return
		}
		refused := a.used
		if denied {
			refused = "" // it is valid, so the source need not make a new one
		}
		token, err := a.tokens.get(ctx, refused)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.client.logger.Warn("no new token for the session", "error", err)
			if !wait(ctx, renewalRetry) {
				return
			}
			known = known && time.Now().Before(expires)
			continue
		}
		if denied && token == a.used {
			continue
		}
		before := expires
		a.used = token
		s.authenticate(token)
		select {
		case expires = <-s.authenticated:
			// Otherwise there is no other token than the one that is about to expire.
			known = expires.After(before) || denied && !expires.IsZero()
		case <-ctx.Done():
			return
		}
	}
}

// awaitRenewal waits until another token is due: near the end of the present one, if that
// is known, or once a subscription was denied. ok is false if ctx ended.
func (s *session) awaitRenewal(ctx context.Context, expires time.Time, known bool) (denied, ok bool) {
	var due <-chan time.Time
	if known {
		left := time.Until(expires)
		due = time.After(left - min(left/renewalShare, maxRenewalMargin))
	}
	select {
	case <-due:
		return false, ctx.Err() == nil
	case <-s.denied:
		return true, ctx.Err() == nil
	case <-ctx.Done():
		return false, false
	}
}

// authenticate has the server told of a token.
func (s *session) authenticate(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
	signal(s.work)
}

// authenticateLocked is the request that tells the server of a token; nil if there is
// none.
func (s *session) authenticateLocked() *fanfarev1.SessionRequest {
	if s.token == "" {
		return nil
	}
	token := s.token
	s.token = ""
	return &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Authenticate{
		Authenticate: &fanfarev1.SessionAuthenticate{Token: token},
	}}
}

// authenticatedLocked takes what the server says of the new token: when it expires, nil
// for never.
func (s *session) authenticatedLocked(expires *timestamppb.Timestamp) {
	at := time.Time{}
	if expires != nil {
		at = expires.AsTime()
	}
	select {
	case s.authenticated <- at:
	default: // a server that says so unasked
	}
}
