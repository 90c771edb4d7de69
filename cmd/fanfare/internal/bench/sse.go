package bench

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/url"
)

func sseScenario() Scenario {
	return Scenario{
		Name:  "sse",
		Short: "event streams to browsers: what an edge uses for a delivery and a connection, beside gRPC",
		Cases: []Case{
			{
				Name: "10000-connections", Short: "10,000 event streams of one stream on an edge, and 10,000 subscriptions on 100 connections, 10 frames a second",
				Sizes: Sizes{Subscribers: 10_000, Connections: 100, Bytes: 200, Rate: 10, Streams: 1}, Meters: true,
				Run: eventStreams,
			},
			{
				Name: "own-connections", Short: "5,000 event streams on an edge, and as many subscriptions with a connection each, 10 frames a second",
				Sizes: Sizes{Subscribers: 5000, Connections: 5000, Bytes: 200, Rate: 10, Streams: 1}, Meters: true,
				Run: eventStreams,
			},
		},
	}
}

// subscribing is what event streams are compared with.
const subscribing = "gRPC Subscribe"

// eventStreams measures an edge that serves a stream to browsers, and the server behind it
// as it serves another one to subscribers.
func eventStreams(ctx context.Context, r *Run) error {
	if r.Running() {
		r.Notef("%s %s: this starts an edge of its own, and is not measured on a running server", r.Scenario, r.Case)
		return nil
	}
	server, err := r.Fanfare(ctx)
	if err != nil {
		return err
	}
	alone := *r // with a connection each, as event streams have
	alone.Sizes.Connections = r.Sizes.Subscribers
	own, err := idleBytes(ctx, &alone, server)
	if err != nil {
		return err
	}
	edge, err := r.edge(ctx, server)
	if err != nil {
		return err
	}
	streams, memory, err := openEventStreams(ctx, r, server, edge)
	if err != nil {
		return err
	}
	payload := bytes.Repeat([]byte{'x'}, r.Sizes.Bytes) // text, as event streams carry
	streams.publisher.payload = payload
	channel, err := server.NewChannel(ctx, r, defaultBacklog)
	if err != nil {
		return err
	}
	subscriptions, err := fanout{}.stage(ctx, r, server, channel)
	if err != nil {
		return err
	}
	subscriptions.publisher.payload = payload
	m, err := Rounds(ctx, r, Side[fanned]{Fanfare, streams.measure}, Side[fanned]{subscribing, subscriptions.measure})
	if err != nil {
		return err
	}
	for _, f := range []Figure{
		{What: "memory of an event stream, its connection included", Unit: "KiB", Values: []float64{memory / 1024}, ComparedWith: subscribing, References: []float64{own / 1024}},
		sseFigure(m, "CPU of the edge, or the server, for a million deliveries", "s", fanned.perMillion),
		sseFigure(m, "publish to receive, p50", "ms", func(f fanned) float64 { return f.p50 }),
		sseFigure(m, "publish to receive, p99", "ms", func(f fanned) float64 { return f.p99 }),
	} {
		if math.IsNaN(f.Values[0]) {
			continue
		}
		if err := r.ReportFigure(f); err != nil {
			return err
		}
	}
	return nil
}

func sseFigure(m *Measured[fanned], what, unit string, of func(fanned) float64) Figure {
	return Figure{What: what, Unit: unit, Values: m.Of(Fanfare, of), ComparedWith: subscribing, References: m.Of(subscribing, of)}
}

// edge starts a fanfare edge in front of a server. Its address is where it serves HTTP.
func (r *Run) edge(ctx context.Context, server *Server) (*Server, error) {
	env, err := r.ownStore(ctx) // without this program's variables; an edge stores nothing
	if err != nil {
		return nil, err
	}
	edge, err := r.startServer(ctx, func(ctx context.Context) (*process, error) {
		return start(ctx, r.Executable, env, "edge", "--server", server.Address, "--http", "127.0.0.1:0", "--drain-delay", "0s", "--log-level", "warn")
	})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(edge.Address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("the edge said that it serves on %q: %w", edge.Address, firstOf(err, errNoHost))
	}
	edge.Address = u.Host
	return edge, nil
}
