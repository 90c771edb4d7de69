package service

import (
	"context"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress what they send
	"google.golang.org/grpc/keepalive"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

const (
	// connectionTimeout bounds the handshake of a new connection.
	connectionTimeout = 10 * time.Second
	// maxHeaderListBytes bounds the metadata of a call.
	maxHeaderListBytes = 16 << 10
	// framingBytes is more than protobuf adds to a batch at its limits: tags and
	// lengths of 1,000 frames with 32 headers each.
	framingBytes = 1 << 20
	// streamWindow and connectionWindow are how many bytes of requests a client may
	// send ahead of what is read. grpc's own windows grow with what comes, up to
	// 16 MiB for each stream, and cost a ping, its answer and the system calls of both
	// for nearly each request. A request that is larger is let in whole. They bound a
	// PublishStream to 2.5 MB a second over a way of 100 ms.
	streamWindow     = 256 << 10
	connectionWindow = 1 << 20
)

// ServerOptions returns what the grpc server that serves s must be made with:
// the codec, limits, keepalive and interceptors.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(connectionCredentials{insecure.NewCredentials()}),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxConcurrentStreams(s.cfg.MaxConcurrentStreams),
		grpc.MaxRecvMsgSize(maxRequestBytes(s.cfg.MaxFrameBytes)),
		grpc.MaxHeaderListSize(maxHeaderListBytes),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		// Pings find dead clients behind connections that nobody closed.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: s.cfg.Keepalive, Timeout: s.cfg.KeepaliveTimeout}),
		// Subscribers are idle for long, so clients may ping, too, also between
		// calls. Without this grpc ends a connection that pings more often than
		// every 5 minutes.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		// Stop waits for handlers, so that the store is closed under none of them.
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(s.unaryInterceptors()...),
		grpc.ChainStreamInterceptor(s.streamInterceptors()...),
	}
}

// maxRequestBytes admits a whole batch, and a batch or frame somewhat above its
// limit, so that it is refused with the limit's name instead of by the
// transport.
func maxRequestBytes(maxFrameBytes int) int {
	return max(2*backlog.MaxBatchBytes, maxFrameBytes) + framingBytes
}

// The order of interceptors, outermost first:
//
//  1. The bound of pages that are not taken, since it alone returns something else
//     than the response.
//  2. Logging sees how the call really ended, a recovered panic included.
//  3. Recovery.
//  4. Authentication, if there is any: what follows knows who calls. Refusals are
//     logged.
//  5. Ending foreign streams (health's Watch, reflection) at a drain, and when their
//     tokens expire. It runs what is inside on another goroutine, where a recovery of
//     its own must catch panics.
//  6. Responses are not compressed: per subscriber that costs twenty times the
//     sending. grpc would answer with the compressor that the client used.
func (s *Server) unaryInterceptors() []grpc.UnaryServerInterceptor {
	interceptors := []grpc.UnaryServerInterceptor{
		boundUntaken,
		s.callLog.unary,
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(recovered)),
	}
	if s.cfg.Verifier != nil {
		interceptors = append(interceptors, s.authenticateUnary)
	}
	return append(interceptors, uncompressedUnary)
}

func (s *Server) streamInterceptors() []grpc.StreamServerInterceptor {
	recovering := recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(recovered))
	interceptors := []grpc.StreamServerInterceptor{s.logStream, recovering}
	if s.cfg.Verifier != nil {
		interceptors = append(interceptors, s.authenticateStream)
	}
	return append(interceptors, s.endForeignStreams, recovering, uncompressedStream)
}

func recovered(_ context.Context, p any) error { return panicFailure(p) }

func uncompressedUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := sendUncompressed(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func uncompressedStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := sendUncompressed(stream.Context()); err != nil {
		return err
	}
	return handler(srv, stream)
}

// sendUncompressed has the responses of a call sent as they are. Of a call that
// its client has given up already grpc says no more than that it is done, which
// would be a fault of the server; the context says what it is.
func sendUncompressed(ctx context.Context) error {
	err := grpc.SetSendCompressor(ctx, encoding.Identity)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return failureOf(ctx.Err())
	default:
		return failureOf(err)
	}
}

// endForeignStreams ends streams of services that know nothing of a drain, which
// would otherwise hold up GracefulStop until it is cut short, nor of tokens.
func (s *Server) endForeignStreams(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	switch info.FullMethod {
	case fanfarev1.FanfareService_Subscribe_FullMethodName, fanfarev1.FanfareService_Session_FullMethodName,
		fanfarev1.FanfareService_PublishStream_FullMethodName:
		return handler(srv, stream)
	}
	var expired <-chan time.Time // never, of a call that needs no token
	if deadline := auth.FromContext(stream.Context()).Deadline(); !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		expired = timer.C
	}
	done := make(chan error, 1)
	// It ends when the handler here has returned and grpc cancels the stream.
	s.loops.Go(func() { done <- handler(srv, stream) })
	select {
	case err := <-done:
		return err
	case <-expired:
		return tokenExpired()
	case <-s.ending:
		return drainingFailure(retryIn())
	}
}
