package service

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
)

// stopTimeout bounds the wait for handlers after their connections were closed.
const stopTimeout = 5 * time.Second

// ErrDrainIncomplete is returned by Drain if goroutines of calls still ran when
// it gave up. What they use must not be closed.
var ErrDrainIncomplete = errors.New("calls are still running after their connections were closed")

// Drain ends serving on g, the server that s is registered with:
//
//  1. Readiness says NOT_SERVING. Everything is served for the drain delay, so
//     that probes and balancers see it before any call is refused.
//  2. GracefulStop closes the listening sockets and sends GOAWAY; calls under
//     way go on. Streaming calls are told to go, Closing first, at moments spread
//     over the grace period. Telling them earlier would bring them straight back;
//     not telling them would make GracefulStop wait for ever.
//  3. At the end of the grace period connections are closed.
//
// When ctx ends, what is left of the delay and of the grace period is skipped.
// The store, the hub and the bus must run until Drain has returned. It is
// called once.
func (s *Server) Drain(ctx context.Context, g *grpc.Server) error {
	s.health.drain()
	s.logger.Info("draining", "delay", s.cfg.DrainDelay, "grace", s.cfg.DrainGrace)
	sleep(ctx, s.cfg.DrainDelay)

	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		g.GracefulStop()
	}()
	s.endingOnce.Do(func() { close(s.ending) })

	grace := time.NewTimer(s.cfg.DrainGrace)
	defer grace.Stop()
	select {
	case <-graceful:
	case <-grace.C:
		s.logger.Warn("the grace period is over; closing connections")
	case <-ctx.Done():
	}
	return s.stop(g, graceful)
}

// stop closes what connections are left and waits for every goroutine of every
// call.
func (s *Server) stop(g *grpc.Server, graceful <-chan struct{}) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		g.Stop()
		<-graceful
		s.loops.Wait()
		s.sender.wait()
	}()
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-stopped:
		return nil
	case <-timeout.C:
		return ErrDrainIncomplete
	}
}
