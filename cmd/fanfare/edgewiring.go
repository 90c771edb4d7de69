package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // has connections know which servers are ready

	"github.com/fanfare-io/fanfare/clientlib"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/transcode"
	"github.com/fanfare-io/fanfare/service/replica"
)

// readyServers has calls go in turn to those servers that say that they are ready: not
// to one that drains, or that does not hear of new frames.
const readyServers = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}`

// edge serves until ctx ends, then drains. It returns nil after an orderly end.
func (p *program) edge(ctx context.Context, o *edgeOptions, logger *slog.Logger) error {
	parts := replica.NewParts()
	defer parts.Stop()
	verifier, err := o.auth.verifier(ctx, logger)
	if err != nil {
		return err
	}
	conn, err := o.dial()
	if err != nil {
		return err
	}
	parts.AtEnd(func() { _ = conn.Close() })
	health := newEdgeHealth(conn)
	waiting := notReady(health.handler(nil), o.web.events(logger), transcode.Problem{Reason: reasonNoServer, Message: "the edge begins"})
	web, err := o.web.startWeb(ctx, parts, waiting, o.web.ownHost(o.authenticates(), o.remote), logger)
	if err != nil {
		return err
	}
	warnOfOthers(web.lis.Addr(), o.authenticates(), "see everything", logger)
	client := clientlib.New(conn, append(o.identity(), clientlib.WithSession(), clientlib.WithLogger(logger))...)
	access := &webAccess{verifier: verifier, cookie: o.web.cookie, signer: o.web.signer}
	config := o.web.events(logger)
	config.Authorize, config.Begin, config.MaxConnections = access.authorize, web.hold, web.places.limit
	events := sse.New(client, config)
	parts.AtEnd(func() {
		events.Close()
		_ = client.Close()
	})
	routes := &webRoutes{health: health.handler(events.Stats), events: events, access: access, origins: o.web.allowedOrigins}
	web.answer(routes.handler())
	parts.Start("servers", func(ctx context.Context) error { return health.watch(ctx, logger) })
	parts.Start("token", func(ctx context.Context) error { return health.watchToken(ctx, &o.token, logger) })
	unanswered := time.After(time.Second)
	for connected := false; !connected; {
		select {
		case <-health.connected:
			fmt.Fprintf(p.stdout, "event streams of %s\nhealth on %s\nserving on %s\n", strings.Join(o.servers, ", "), web.url("/healthz"), web.url(streamsPath))
			connected = true
		case <-unanswered:
			logger.Warn("waiting for a server that is ready; browsers are told to come again", "servers", o.servers)
		case <-ctx.Done():
			return nil
		case err := <-parts.Failed():
			return err
		}
	}
	return o.serveUntil(ctx, parts, health, events, logger)
}

func (o *edgeOptions) serveUntil(ctx context.Context, parts *replica.Parts, health *edgeHealth, events *sse.Handler, logger *slog.Logger) error {
	select {
	case <-ctx.Done():
	case err := <-parts.Failed():
		return err
	}
	logger.Info("ending; a second signal ends it at once")
	health.drain()
	logger.Info("draining", "delay", o.drainDelay)
	select {
	case <-time.After(o.drainDelay):
	case err := <-parts.Failed():
		return err
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventsGrace)
	defer cancel()
	events.Drain(ending)
	return nil
}

// dial returns a connection to the servers, which is made at once and again and again.
func (o *edgeOptions) dial() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(readyServers),
		grpc.WithIdleTimeout(0), // its state is what /healthz says
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
	}
	var conn *grpc.ClientConn
	var err error
	if len(o.servers) == 1 {
		conn, err = grpc.NewClient(o.servers[0], append(clientlib.DialOptions(), options...)...)
	} else {
		conn, err = clientlib.Connect(o.servers, options...)
	}
	if err != nil {
		return nil, usagef("--server %s: %v", strings.Join(o.servers, ", "), err)
	}
	conn.Connect()
	return conn, nil
}

// identity is who the edge is to the servers.
func (o *edgeOptions) identity() []clientlib.Option {
	if o.token.file == "" && o.token.fixed == "" {
		return nil
	}
	return []clientlib.Option{clientlib.WithTokenSource(func(context.Context, bool) (string, error) { return o.token.current() })}
}

var errNoServer = errors.New("no server that is ready is connected")

// watch notes whether a server is connected that is ready, until ctx ends.
func (h *edgeHealth) watch(ctx context.Context, logger *slog.Logger) error {
	for {
		state := h.conn.GetState()
		if h.note(state == connectivity.Ready) {
			if state == connectivity.Ready {
				logger.Info("connected to a server")
			} else {
				logger.Warn(errNoServer.Error())
			}
		}
		if !h.conn.WaitForStateChange(ctx, state) {
			return nil
		}
	}
}
