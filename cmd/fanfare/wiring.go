package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
	"github.com/fanfare-io/fanfare/service/replica"
)

// serve serves until ctx ends, then drains. It returns nil after an orderly end.
func (p *program) serve(ctx context.Context, o *serveOptions, logger *slog.Logger) error {
	parts := replica.NewParts()
	err := p.serveWith(ctx, o, parts, logger)
	if errors.Is(err, service.ErrDrainIncomplete) {
		// Calls still use the parts. The end of the process closes them.
		return err
	}
	parts.Stop()
	return err
}

// serveWith is serve with the parts that the caller stops.
func (p *program) serveWith(ctx context.Context, o *serveOptions, parts *replica.Parts, logger *slog.Logger) error {
	verifier, err := o.auth.verifier(ctx, logger)
	if err != nil {
		return err
	}
	var store *replica.OpenStore
	if o.embedded() {
		// Before the sockets: a second server on a file is told about the file,
		// rather than about a port that the first one has, too.
		if store, err = o.openSQLite(ctx, logger); err != nil {
			return unlessEnding(ctx, err)
		}
		parts.AtEnd(store.Close)
	}
	lis, err := listen(ctx, "grpc", o.grpc, logger)
	if err != nil {
		return err
	}
	parts.AtEnd(func() { _ = lis.Close() })
	web, err := o.web.startWeb(ctx, parts, o.waitingPage(logger), o.web.ownHost(o.auth.configured(), o.remote), logger)
	if err != nil {
		return err
	}
	warnOfOthers(lis.Addr(), o.auth.configured(), "publish and read everything", logger)
	if web != nil {
		warnOfOthers(web.lis.Addr(), o.auth.configured(), "publish and read everything", logger)
	}
	if !o.embedded() {
		if store, err = o.awaitPostgreSQL(ctx, lis, logger); err != nil {
			return unlessEnding(ctx, err)
		}
		parts.AtEnd(store.Close)
	}
	config := o.serviceConfig(logger)
	config.Verifier = verifier
	server := parts.StartServer(store, o.hubConfig(logger), config)
	var over *site
	if web != nil {
		if over, err = o.openSite(web, server, verifier, store.MaxFrameBytes, logger); err != nil {
			return err
		}
		parts.AtEnd(func() { over.close(server.HTTPHandler()) })
	}
	return p.serveUntil(ctx, server, lis, over, o.drainDelay, parts, o.banner(lis, web), logger)
}

// unlessEnding returns the error of opening a store, or nil if ctx has ended: a
// signal meanwhile is an orderly end.
func unlessEnding(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// awaitPostgreSQL opens a store on PostgreSQL. While its server cannot be reached
// it answers on lis that it is alive and not ready, and tries again; any other
// error is final.
func (o *serveOptions) awaitPostgreSQL(ctx context.Context, lis socket, logger *slog.Logger) (*replica.OpenStore, error) {
	waiting := startWaitingServer(lis)
	store, err := backoff.Retry(ctx,
		func() (*replica.OpenStore, error) {
			store, err := o.openPostgreSQL(ctx, logger)
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

// serveUntil serves until ctx ends, which drains the server, or a part fails. It
// prints the banner when the server is ready.
func (p *program) serveUntil(ctx context.Context, server *service.Server, lis net.Listener, over *site, delay time.Duration, parts *replica.Parts, banner string, logger *slog.Logger) error {
	g := grpc.NewServer(server.ServerOptions()...)
	server.Register(g)
	over.serveInside(g)
	serving := make(chan error, 1)
	go func() { serving <- g.Serve(lis) }()
	watchCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(watchCtx, addressText(lis.Addr())) }()
	for {
		select {
		case err := <-ready:
			if err == nil {
				fmt.Fprint(p.stdout, banner)
			}
			ready = nil
		case <-ctx.Done():
			logger.Info("ending; a second signal ends it at once")
			told := make(chan struct{})
			go func() {
				defer close(told)
				over.drain(context.WithoutCancel(ctx), delay)
			}()
			err := server.Drain(context.WithoutCancel(ctx), g)
			<-told
			return err
		case err := <-serving:
			g.Stop()
			return fmt.Errorf("serve on %s: %w", lis.Addr(), err)
		case err := <-parts.Failed():
			g.Stop()
			return err
		}
	}
}

// hubConfig is what a hub is configured with.
func (o *serveOptions) hubConfig(logger *slog.Logger) hub.Config {
	return hub.Config{
		StatusNotices:    true,
		AnnouncesNothing: o.pollInterval > 0,
		// 0 is the default: with announcements, looking is for safety only.
		ReReadInterval: o.pollInterval,
		Logger:         logger,
	}
}

// serviceConfig is what a server is configured with before its store is known.
func (o *serveOptions) serviceConfig(logger *slog.Logger) service.Config {
	config := service.Config{
		Logger:                  logger,
		DrainDelay:              o.drainDelay,
		MaxStreamAge:            o.maxStreamAge,
		MaxSubscriptions:        o.maxSubscriptions,
		MaxSessionSubscriptions: o.maxSessionSubscriptions,
		RefuseEphemeral:         o.pollInterval > 0,
		BusKind:                 service.BusPostgreSQL,
		Version:                 buildVersion(),
		Instance:                o.instance,
	}
	if o.drainDelay == 0 {
		config.DrainDelay = -1 // none; 0 would be the default
	}
	switch {
	case o.embedded():
		config.BusKind = service.BusInProcess
	case o.pollInterval > 0:
		config.BusKind = service.BusPoll
	}
	return config
}

// addressText is the address by which clients connect.
func addressText(address net.Addr) string {
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

// banner is what a person, or a script, waits for: where everything is, and last
// a first command to try.
func (o *serveOptions) banner(lis net.Listener, web *webServer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "data in %s\n", o.place())
	switch {
	case web != nil:
		fmt.Fprintf(&b, "health on %s\nconsole on %s\n", web.url("/healthz"), web.url("/"))
	case o.web.http != httpOff:
		fmt.Fprintf(&b, "nothing over HTTP: %s is in use\n", o.web.http)
	}
	address, option := addressText(lis.Addr()), ""
	if address != defaultAddress {
		option = " --server " + address
	}
	fmt.Fprintf(&b, "serving on %s; try: fanfare subscribe chat/messages lobby%s\n", address, option)
	return b.String()
}
