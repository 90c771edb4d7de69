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
// until ctx ends, so that the call goes on. When the first one expires is known of a JSON
// Web Token only; of the others the server tells. Where that does not succeed the server
// ends the call, and the next one begins with another token.
func (s *session) renewTokens(ctx context.Context, a *access) {
	expires, known := expiryOf(a.used)
	for known {
		left := time.Until(expires)
		if !wait(ctx, left-min(left/renewalShare, maxRenewalMargin)) {
			return
		}
		token, err := a.tokens.get(ctx, a.used)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.client.logger.Warn("no new token for the session", "error", err)
			if !wait(ctx, renewalRetry) || time.Now().After(expires) {
				return
			}
			continue
		}
		before := expires
		a.used = token
		s.authenticate(token)
		select {
		case expires = <-s.authenticated:
			known = expires.After(before) // otherwise there is no other token
		case <-ctx.Done():
			return
		}
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
