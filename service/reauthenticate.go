package service

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// reauthenticate replaces the token of the session. It may wait for the issuer's keys, so
// further requests do, too. Its error ends the session: whoever shows a token that is not
// valid, or somebody else's, must not go on with what the last one allowed.
func (s *session) reauthenticate(ctx context.Context, r *fanfarev1.SessionAuthenticate) error {
	verifier := s.server.cfg.Verifier
	if verifier == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answerLocked(authenticatedSession(nil))
		return nil
	}
	caller, err := verifier.Verify(ctx, r.GetToken())
	if err != nil {
		return refusedToken(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return context.Canceled
	case s.caller.Subject != caller.Subject:
		return otherSubject()
	}
	s.caller = caller
	s.setTimerLocked(time.Now())
	s.answerLocked(authenticatedSession(caller))
	s.endForbiddenLocked()
	return nil
}

// endForbiddenLocked ends the subscriptions that the token does not allow.
func (s *session) endForbiddenLocked() {
	if s.caller.AllowsAll(auth.Subscribe) {
		return
	}
	forbidden := map[*cohort]struct{}{}
	for _, m := range s.members.all {
		if stream := m.cohort.sub.Stream(); !s.caller.Allows(auth.Subscribe, stream.Channel, stream.Scope) {
			forbidden[m.cohort] = struct{}{}
		}
	}
	for c := range forbidden {
		s.endCohortLocked(c, permissionDenied())
	}
}

func authenticatedSession(caller *auth.Identity) *fanfarev1.SessionResponse {
	authenticated := &fanfarev1.Authenticated{}
	if caller != nil {
		authenticated.Expires = timestampProto(caller.Expires)
	}
	return &fanfarev1.SessionResponse{Notice: &fanfarev1.SessionResponse_Authenticated{Authenticated: authenticated}}
}

func otherSubject() *failure {
	return &failure{
		// Not PERMISSION_DENIED, which is final: a new call with that token is fine.
		code:    codes.Unauthenticated,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED,
		message: "the new token is another caller's; begin a call of its own with it",
	}
}
