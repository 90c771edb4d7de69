package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// callProgress notes how far the newest call of a connection came. The status
// does not tell: UNAVAILABLE is both a server that is not there and one that
// went away after it was asked.
type callProgress struct {
	// underWay is true once the call was written to a connection: a server may
	// have acted on it.
	underWay atomic.Bool
	// ended is true once the server has sent the call's status.
	ended atomic.Bool
}

// unanswered reports whether a call that ended did so without its server.
func (p *callProgress) unanswered() bool { return p.underWay.Load() && !p.ended.Load() }

// HandleRPC implements stats.Handler.
func (p *callProgress) HandleRPC(_ context.Context, event stats.RPCStats) {
	switch event.(type) {
	case *stats.Begin:
		// Also of a second attempt, which grpc makes if the server has certainly not
		// seen the first.
		p.underWay.Store(false)
		p.ended.Store(false)
	case *stats.OutHeader:
		p.underWay.Store(true)
	case *stats.InTrailer:
		p.ended.Store(true)
	}
}

// TagRPC implements stats.Handler.
func (p *callProgress) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (p *callProgress) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (p *callProgress) HandleConn(context.Context, stats.ConnStats) {}
