package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
	"github.com/fanfare-io/fanfare/gen/openapi"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/auth"
)

const (
	// insideBytes is what a connection within the process holds on its way.
	insideBytes = 256 << 10
	// eventsGrace bounds how long event streams take to be told to go: one that is not
	// read is broken then.
	eventsGrace = 5 * time.Second
)

// errServerEnds is told to calls that come when the server takes none any more.
var errServerEnds = serverEnds()

func serverEnds() error {
	st := status.New(codes.Unavailable, messageServerEnd+"; nothing was sent to it")
	detailed, err := st.WithDetails(
		&errdetails.ErrorInfo{Domain: service.ErrorDomain, Reason: reasonServerEnd},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
	if err != nil {
		return st.Err()
	}
	return detailed.Err()
}

// site is what serve serves over HTTP in front of its own gRPC server, which it reaches
// by a listener within the process.
type site struct {
	web    *webServer
	inside *bufconn.Listener
	conn   *grpc.ClientConn
	client *clientlib.Client
	events *sse.Handler
	calls  *transcode.Handler
	// waiting is how event streams are answered when it has ended.
	waiting sse.Config
}

// openSite makes what web serves. The caller serves gRPC on inside, and closes the
// site. maxFrameBytes is the largest payload.
func (o *serveOptions) openSite(web *webServer, server *service.Server, verifier *auth.Verifier, maxFrameBytes int, logger *slog.Logger) (*site, error) {
	s := &site{web: web, inside: bufconn.Listen(insideBytes), waiting: o.web.events(logger)}
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := s.inside.DialContext(ctx)
		if err != nil && ctx.Err() == nil {
			err = errServerEnds // a drain closes it, and nothing else does before
		}
		return conn, err
	}
	opened := false
	defer func() {
		if !opened {
			s.closeConnections()
		}
	}()
	var err error
	s.calls, err = transcode.New(transcode.Config{
		Dial: dial, Rules: openapi.Rules, MaxFrameBytes: maxFrameBytes, Begin: web.hold, Logger: logger,
		// Below the server's own times, which would cut an answer off.
		UnaryTimeout: web.timeouts.write * 2 / 3, WriteTimeout: web.timeouts.write * 2 / 3,
		Authorize: func(r *http.Request) error {
			return server.Authenticate(r.Context(), r.Header.Values("Authorization")...)
		},
	})
	if err != nil {
		return nil, err
	}
	s.conn, err = grpc.NewClient("passthrough:///inside", append(clientlib.DialOptions(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))...)
	if err != nil {
		return nil, err
	}
	s.client = clientlib.New(s.conn, append(o.insideIdentity(verifier), clientlib.WithSession())...)
	access := &webAccess{verifier: verifier, cookie: o.web.cookie, signer: o.web.signer}
	config := s.waiting
	config.Authorize, config.Begin, config.MaxConnections = access.authorize, web.hold, web.places.limit
	// Clients of the protocol have the other half.
	config.MaxRelays = max(1, min(o.maxSubscriptions, o.maxSessionSubscriptions)/2)
	s.events = sse.New(s.client, config)
	routes := &webRoutes{health: server.HTTPHandler(), events: s.events, calls: s.calls, access: access, origins: o.web.allowedOrigins, console: true}
	web.answer(routes.handler())
	opened = true
	return s, nil
}

// insideIdentity is who the event streams are to the server: browsers are authorized
// before.
func (o *serveOptions) insideIdentity(verifier *auth.Verifier) []clientlib.Option {
	if verifier == nil {
		return nil
	}
	return []clientlib.Option{clientlib.WithTokenSource(func(context.Context, bool) (string, error) { return verifier.Internal(), nil })}
}

// drain tells the event streams to go when the server's other calls are told, after the
// delay. A nil site has none.
func (s *site) drain(ctx context.Context, delay time.Duration) {
	if s == nil {
		return
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	// Unlike grpc's, this client does not close an idle connection when it is told that
	// the server goes, which waits a second for it.
	s.calls.Close()
	ctx, cancel := context.WithTimeout(ctx, eventsGrace)
	defer cancel()
	s.events.Drain(ctx)
}

// close ends what is left. Calls have ended with the gRPC server.
func (s *site) close(health http.Handler) {
	s.web.answer(notReady(health, s.waiting, transcode.Problem{Reason: reasonServerEnd, Message: messageServerEnd}))
	s.events.Close()
	_ = s.client.Close()
	s.closeConnections()
}

// closeConnections closes what calls go by, as far as there is any.
func (s *site) closeConnections() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.calls != nil {
		s.calls.Close()
	}
	_ = s.inside.Close()
}

// serveInside has the site's listener served, until g stops. A nil site has none.
func (s *site) serveInside(g *grpc.Server) {
	if s != nil {
		go func() { _ = g.Serve(s.inside) }()
	}
}
