package failover

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
	"github.com/fanfare-io/fanfare/service/replica"
)

const (
	// startTimeout bounds the start of the own server.
	startTimeout = 20 * time.Second
	// pipeBytes is what the connection within the process holds each way.
	pipeBytes = 256 << 10
	// ownTailBytes bounds the frames in memory: a worker has fewer streams than a
	// server for many.
	ownTailBytes = 64 << 20
)

// ownServer is the server of this process.
type ownServer struct {
	parts  *replica.Parts
	server *service.Server
	grpc   *grpc.Server
	served chan struct{} // closed when grpc serves no more
	conn   *grpc.ClientConn
}

// startOwn starts a server on connections of its own, which listens when startOwn
// returns. When a hub has failed, all of its workers come here at the same time: each
// is admitted only if enough connections are left for others.
func startOwn(ctx context.Context, cfg *Config) (*ownServer, error) {
	if cfg.Mode == OwnOnly {
		return openOwn(ctx, cfg)
	}
	var o *ownServer
	err := pgbacklog.Admit(ctx, cfg.store(cfg.Database), func(ctx context.Context) (err error) {
		o, err = openOwn(ctx, cfg)
		return err
	})
	return o, err
}

func openOwn(ctx context.Context, cfg *Config) (*ownServer, error) {
	store, err := replica.OpenPostgreSQL(ctx, cfg.store(cfg.Database), cfg.ListenDatabase)
	if err != nil {
		return nil, err
	}
	o := &ownServer{parts: replica.NewParts(), served: make(chan struct{})}
	o.parts.AtEnd(store.Close)
	o.server = o.parts.StartServer(store,
		hub.Config{StatusNotices: true, MaxTailBytes: ownTailBytes, Pagers: 2, Logger: cfg.Logger},
		service.Config{
			Logger:     cfg.Logger,
			Instance:   cfg.Instance,
			DrainDelay: -1,
			// All calls of the process share one connection.
			MaxConcurrentStreams: math.MaxUint32,
		})
	o.grpc = grpc.NewServer(o.server.ServerOptions()...)
	o.server.Register(o.grpc)
	pipe := bufconn.Listen(pipeBytes)
	go func() {
		defer close(o.served)
		_ = o.grpc.Serve(pipe) // it ends by stop only
	}()
	options := append(commonOptions(cfg), grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if o.conn, err = grpc.NewClient("passthrough:///own", append(options, cfg.DialOptions...)...); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the own server: %w", err), o.stop())
	}
	if _, err := store.Bus.Ensure(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), o.stop())
	}
	return o, nil
}

// stop ends the server, whose calls have ended or are cut.
func (o *ownServer) stop() error {
	if o.conn != nil {
		_ = o.conn.Close() // it is open
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	err := o.server.Drain(now, o.grpc)
	<-o.served
	o.parts.Stop()
	return err
}
