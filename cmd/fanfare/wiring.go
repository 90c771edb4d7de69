package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/backlog/pgbacklog"
	"github.com/fanfare-io/fanfare/listener"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
)

// serve serves until ctx ends, then drains. It returns nil after an orderly end.
func (p *program) serve(ctx context.Context, o *serveOptions, logger *slog.Logger) error {
	lis, err := listen(ctx, o.grpc)
	if err != nil {
		return err
	}
	defer lis.Close()
	if o.remote {
		logger.Warn("serving without authentication: whoever reaches this address may publish and read everything", "address", lis.Addr())
	}
	store, err := o.awaitStore(ctx, lis, logger)
	if ctx.Err() != nil {
		err = nil // a signal while waiting is an orderly end
	}
	if err != nil || store == nil {
		return err
	}
	return p.serveStore(ctx, o, store, lis, logger)
}

// awaitStore opens the store. While its server cannot be reached it answers on
// lis that it is alive and not ready, and tries again; any other error is final.
func (o *serveOptions) awaitStore(ctx context.Context, lis socket, logger *slog.Logger) (*pgbacklog.Store, error) {
	waiting := startWaitingServer(lis)
	store, err := backoff.Retry(ctx,
		func() (*pgbacklog.Store, error) {
			store, err := o.openStore(ctx, logger)
			if err != nil && !errors.Is(err, backlog.ErrUnavailable) {
				return nil, backoff.Permanent(err)
			}
			return store, err
		},
		backoff.WithBackOff(&backoff.ExponentialBackOff{
			InitialInterval:     200 * time.Millisecond,
			RandomizationFactor: 0.5,
			Multiplier:          2,
			MaxInterval:         5 * time.Second,
		}),
		backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(func(err error, next time.Duration) {
			logger.Warn("waiting for the database", "error", oneLine(err.Error()), "retry_in", next.Round(time.Millisecond))
		}))
	waiting.stop()
	if err != nil {
		return nil, err
	}
	// The waiting server's end has left a deadline on the socket.
	if err := lis.SetDeadline(time.Time{}); err != nil {
		store.Close()
		return nil, err
	}
	return store, nil
}

// openStore migrates if it should, and opens the store.
func (o *serveOptions) openStore(ctx context.Context, logger *slog.Logger) (*pgbacklog.Store, error) {
	if o.migrate == "auto" {
		if err := pgbacklog.Migrate(ctx, o.listenURL, o.schema, logger); err != nil {
			return nil, err
		}
	}
	return pgbacklog.Open(ctx, o.storeConfig(logger))
}

// serveStore serves from an open store, and closes it.
func (p *program) serveStore(ctx context.Context, o *serveOptions, store *pgbacklog.Store, lis net.Listener, logger *slog.Logger) error {
	parts := newComponents()
	server, err := startParts(parts, o, store, logger)
	if err == nil {
		err = p.serveUntil(ctx, server, lis, parts)
	}
	if errors.Is(err, service.ErrDrainIncomplete) {
		// Calls still use the parts. The end of the process closes them.
		return err
	}
	parts.stop()
	store.Close()
	return err
}

// defaultReceiveLimit is the largest message that gRPC clients take unless told
// otherwise; frameOverhead is the most that a response adds to a payload.
const (
	defaultReceiveLimit = 4 << 20
	frameOverhead       = backlog.MaxHeaderBytes + backlog.MaxHeaders*16 + 2*backlog.MaxTypeBytes + 256
)

// startParts starts the parts of a server, each on those before it.
func startParts(parts *components, o *serveOptions, store *pgbacklog.Store, logger *slog.Logger) (*service.Server, error) {
	listening, err := listener.New(listener.Config{
		URL:       o.listenURL,
		Instance:  o.instance,
		OriginSQL: store.OriginSQL(),
		Logger:    logger,
		Probe:     store.Notify,
	})
	if err != nil {
		return nil, err
	}
	if n := store.MaxFrameBytes(); n > defaultReceiveLimit-frameOverhead {
		logger.Warn("the largest frames exceed what gRPC clients receive by default: they must raise their limit",
			"max_frame_bytes", n, "default_limit", defaultReceiveLimit)
	}
	parts.start("store", store.Run)
	parts.start("listener", listening.Run)
	bus := listener.NewBus(listening, store.NotifyChannel(), announcementKeys(store), logger)
	h := hub.New(bus, store, service.EncodeFrame, hub.Config{Logger: logger})
	parts.start("hub", h.Run)
	parts.start("bus", func(ctx context.Context) error { return bus.Run(ctx, h) })
	server := service.New(store, h, bus, o.serviceConfig(store, logger))
	parts.start("health", server.Run)
	return server, nil
}

// serveUntil serves until ctx ends, which drains the server, or a part fails.
func (p *program) serveUntil(ctx context.Context, server *service.Server, lis net.Listener, parts *components) error {
	g := grpc.NewServer(server.ServerOptions()...)
	server.Register(g)
	serving := make(chan error, 1)
	go func() { serving <- g.Serve(lis) }()
	watchCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(watchCtx, grpcAddress(lis.Addr())) }()
	for {
		select {
		case err := <-ready:
			if err == nil {
				p.announceReady(grpcAddress(lis.Addr()))
			}
			ready = nil
		case <-ctx.Done():
			return server.Drain(context.WithoutCancel(ctx), g)
		case err := <-serving:
			g.Stop()
			return fmt.Errorf("serve on %s: %w", lis.Addr(), err)
		case err := <-parts.failed:
			g.Stop()
			return err
		}
	}
}

func (o *serveOptions) serviceConfig(store *pgbacklog.Store, logger *slog.Logger) service.Config {
	config := service.Config{
		Logger:        logger,
		MaxFrameBytes: store.MaxFrameBytes(),
		DrainDelay:    o.drainDelay,
	}
	if o.drainDelay == 0 {
		config.DrainDelay = -1 // none; 0 would be the default
	}
	return config
}

// announcementKeys reads the keys that announcements are checked with.
func announcementKeys(store *pgbacklog.Store) func(context.Context) ([]listener.Key, error) {
	return func(ctx context.Context) ([]listener.Key, error) {
		stored, err := store.AnnouncementKeys(ctx)
		if err != nil {
			return nil, err
		}
		keys := make([]listener.Key, len(stored))
		for i, key := range stored {
			keys[i] = listener.Key{ID: key.ID, Secret: key.Secret}
		}
		return keys, nil
	}
}

// grpcAddress is the address by which clients connect.
func grpcAddress(address net.Addr) string {
	if address.Network() == "unix" {
		return unixPrefix + address.String()
	}
	return address.String()
}

// awaitReady returns nil when the server at address reports that it is ready.
// It asks as a probe does, so that what is announced is what probes see.
func awaitReady(ctx context.Context, address string) error {
	self := connection{server: address}
	conn, err := self.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	watch, err := healthgrpc.NewHealthClient(conn).Watch(ctx, &healthgrpc.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		answer, err := watch.Recv()
		if err != nil || answer.GetStatus() == healthgrpc.HealthCheckResponse_SERVING {
			return err
		}
	}
}

// announceReady prints the one line that a person or a script waits for.
func (p *program) announceReady(address string) {
	option := ""
	if address != defaultAddress {
		option = " --server " + address
	}
	fmt.Fprintf(p.stdout, "serving on %s; try: fanfare subscribe chat/messages lobby%s\n", address, option)
}
