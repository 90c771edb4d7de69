package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/fanfare-io/fanfare/service"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Parts are the running parts of a server and what they hold open. They end one
// by one, in the reverse order of their start: what a part stands on is there
// until the part has returned. Methods are called by one goroutine.
type Parts struct {
	// endings end one each, and return when it has ended.
	endings []func()
	// failed gets the first error of a part that ended by itself.
	failed chan error
}

// NewParts returns none.
func NewParts() *Parts {
	return &Parts{failed: make(chan error, 1)}
}

// Start runs a part until Stop. Its context is its own and has no parent: a
// signal must not end it before its turn.
func (p *Parts) Start(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	p.AtEnd(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		select {
		case p.failed <- fmt.Errorf("%s: %w", name, err):
		default:
		}
	}()
}

// AtEnd has Stop call closing when everything that is added later has ended.
func (p *Parts) AtEnd(closing func()) { p.endings = append(p.endings, closing) }

// Failed gets the first error of a part that ended by itself: without it the
// server is none, and the caller ends the rest.
func (p *Parts) Failed() <-chan error { return p.failed }

// Stop ends all parts, the newest first, and waits for each.
func (p *Parts) Stop() {
	for _, end := range slices.Backward(p.endings) {
		end()
	}
	p.endings = nil
}

// StartServer starts what the store needs to run, a hub on it, and a server on
// both, which the caller registers with a grpc server. The store stays open. The
// largest payload is the store's, whatever config says.
func (p *Parts) StartServer(store *OpenStore, hubConfig hub.Config, config service.Config) *service.Server {
	warnOfLargeFrames(store.MaxFrameBytes, config.Logger)
	for _, part := range store.Parts {
		p.Start(part.Name, part.Run)
	}
	h := hub.New(store.Bus, store, service.EncodeFrame, hubConfig)
	p.Start("hub", h.Run)
	p.Start("bus", func(ctx context.Context) error { return store.RunBus(ctx, h) })
	config.MaxFrameBytes = store.MaxFrameBytes
	server := service.New(store, h, store.Bus, config)
	p.Start("health", server.Run)
	return server
}

func warnOfLargeFrames(maxFrameBytes int, logger *slog.Logger) {
	if logger == nil {
		logger = slog.Default()
	}
	if maxFrameBytes > defaultReceiveLimit-frameOverhead {
		logger.Warn("the largest frames exceed what gRPC clients receive by default: they must raise their limit",
			"max_frame_bytes", maxFrameBytes, "default_limit", defaultReceiveLimit)
	}
}
