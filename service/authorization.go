package service

import (
	"context"

	"google.golang.org/grpc/metadata"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// passedOn stands for the method of calls that are refused before it matters.
var passedOn = "/" + fanfarev1.FanfareService_ServiceDesc.ServiceName + "/*"

// Authenticate verifies what a request shows in its headers Authorization, for whoever
// passes calls on and has to know before it reads them. It says nothing of what the token
// allows. The error is the gRPC status that the call would be refused with, and is
// logged as the call's would be; nil if s needs no tokens. It may wait until keys are
// fetched, for 5 s at most. It may be called concurrently.
func (s *Server) Authenticate(ctx context.Context, authorization ...string) error {
	if s.cfg.Verifier == nil {
		return nil
	}
	_, err := s.callerOf(metadata.NewIncomingContext(ctx, metadata.MD{authorizationKey: authorization}))
	if err == nil {
		return nil
	}
	refused := refusedToken(err)
	s.callLog.ended(ctx, passedOn, refused, 0)
	return refused
}
