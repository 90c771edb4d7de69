package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

const (
	authorizationKey = "authorization"
	bearer           = "bearer" // in any case (RFC 9110, section 11.1)
)

// need is what a method needs. The zero value is a method that nobody has thought about,
// which is refused.
type need struct {
	// anybody may call it, without a token.
	anybody bool
	// action is what the token must allow: Admin, or something for one stream at least.
	// The handler looks at the streams.
	action auth.Action
}

// needs are the methods that there are.
var needs = map[string]need{
	fanfarev1.FanfareService_Publish_FullMethodName:       {action: auth.Publish},
	fanfarev1.FanfareService_PublishBatch_FullMethodName:  {action: auth.Publish},
	fanfarev1.FanfareService_PublishStream_FullMethodName: {action: auth.Publish},
	fanfarev1.FanfareService_Subscribe_FullMethodName:     {action: auth.Subscribe},
	fanfarev1.FanfareService_Session_FullMethodName:       {action: auth.Subscribe},
	fanfarev1.FanfareService_ReadFrames_FullMethodName:    {action: auth.Subscribe},
	fanfarev1.FanfareService_GetStream_FullMethodName:     {action: auth.Subscribe},
	fanfarev1.FanfareService_ListStreams_FullMethodName:   {action: auth.Subscribe},
	fanfarev1.FanfareService_CloseStream_FullMethodName:   {action: auth.Admin},
	fanfarev1.FanfareService_GetPolicy_FullMethodName:     {action: auth.Admin},
	fanfarev1.FanfareService_ListPolicies_FullMethodName:  {action: auth.Admin},
	fanfarev1.FanfareService_SetPolicy_FullMethodName:     {action: auth.Admin},

	grpc_health_v1.Health_Check_FullMethodName: {anybody: true},
	grpc_health_v1.Health_List_FullMethodName:  {anybody: true},
	grpc_health_v1.Health_Watch_FullMethodName: {anybody: true},

	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      {action: auth.Admin},
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: {action: auth.Admin},
}

// trusted is who calls where no tokens are needed.
var trusted = auth.Trusted()

// authenticateUnary is the interceptor that finds out who calls, and refuses who may not.
func (s *Server) authenticateUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := s.authenticate(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// authenticateStream is authenticateUnary for streaming calls.
func (s *Server) authenticateStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := s.authenticate(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, &middleware.WrappedServerStream{ServerStream: stream, WrappedContext: ctx})
}

// authenticate returns the context of a call with who calls in it.
func (s *Server) authenticate(ctx context.Context, method string) (context.Context, error) {
	n := needs[method]
	if n.anybody {
		return ctx, nil
	}
	caller, err := s.callerOf(ctx)
	if err != nil {
		return ctx, refusedToken(err)
	}
	if !caller.AllowsAny(n.action) {
		return ctx, permissionDenied()
	}
	return auth.NewContext(ctx, caller), nil
}

// callerOf verifies what a call shows. The mode of a Unix socket decides who may
// connect to it, so a call that came over one needs to show nothing; if it does, that
// counts.
func (s *Server) callerOf(ctx context.Context) (*auth.Identity, error) {
	values := metadata.ValueFromIncomingContext(ctx, authorizationKey)
	switch {
	case len(values) == 0 && isUnixSocket(ctx):
		return trusted, nil
	case len(values) == 0:
		return nil, errNoToken
	case len(values) > 1:
		return nil, fmt.Errorf("%w: the metadata %s stands %d times", auth.ErrInvalid, authorizationKey, len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, bearer) {
		return nil, fmt.Errorf("%w: the metadata %s does not begin with Bearer", auth.ErrInvalid, authorizationKey)
	}
	return s.cfg.Verifier.Verify(ctx, strings.TrimSpace(token))
}

var errNoToken = fmt.Errorf("%w: there is none", auth.ErrInvalid)

// isUnixSocket reports whether a call came over a Unix socket that this server listens
// on. What a proxy of HTTP says about itself does not count.
func isUnixSocket(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	_, direct := p.AuthInfo.(connectionInfo)
	_, unix := p.Addr.(*net.UnixAddr)
	return direct && unix
}

// caller is who makes a call; nil, who may do nothing, if that is not known.
func (s *Server) caller(ctx context.Context) *auth.Identity {
	if s.cfg.Verifier == nil {
		return trusted
	}
	return auth.FromContext(ctx)
}

// permit returns why the caller may not do something to a stream; nil if it may.
func (s *Server) permit(ctx context.Context, a auth.Action, stream backlog.StreamName) error {
	return permit(s.caller(ctx), a, stream)
}

func permit(caller *auth.Identity, a auth.Action, stream backlog.StreamName) error {
	switch {
	case caller.Expired(time.Now()):
		return tokenExpired()
	case !caller.Allows(a, stream.Channel, stream.Scope):
		return permissionDenied()
	default:
		return nil
	}
}

// refusedToken tells a client no more of its token than whether a fresh one would do.
func refusedToken(err error) *failure {
	switch {
	case errors.Is(err, auth.ErrExpired):
		return tokenExpired()
	case errors.Is(err, auth.ErrInvalid):
		f := &failure{
			code:    codes.Unauthenticated,
			reason:  fanfarev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED,
			message: "a valid token is needed; the server's log says what is wrong",
			cause:   err,
		}
		if errors.Is(err, errNoToken) {
			f.message, f.cause = "a token is needed, in the metadata authorization: Bearer and the token", nil
		}
		return f
	case errors.Is(err, auth.ErrNoKeys):
		return &failure{
			code:    codes.Unavailable,
			reason:  fanfarev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED,
			message: "the server cannot verify tokens at the moment; nothing was done; try again",
			retryIn: retryStore,
			cause:   err,
		}
	default:
		return failureOf(err)
	}
}

// tokenExpired ends or refuses a call whose token has expired.
func tokenExpired() *failure {
	return &failure{
		code:    codes.Unauthenticated,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_TOKEN_EXPIRED,
		message: "the token has expired; go on with a fresh one",
	}
}

func permissionDenied() *failure {
	return &failure{
		code:    codes.PermissionDenied,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
		message: "the token does not allow this",
	}
}
