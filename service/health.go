package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// LivenessService is the name under which the health service says SERVING while
// the process runs. Probes that restart the process must use it: readiness
// depends on the database, and restarting every replica does not bring that
// back.
const LivenessService = "liveness"

const (
	// outageTolerance is for how long the store or the listener may be away
	// before readiness is withdrawn: a reconnect must not move all clients.
	outageTolerance = time.Second
	// listenerInterval is how often the bus is looked at, in memory.
	listenerInterval = 100 * time.Millisecond
	// pingInterval is how often the store is asked while it answers,
	// pingRetryInterval while it does not: short enough to see within
	// outageTolerance that a blip is over.
	pingInterval      = time.Second
	pingRetryInterval = 250 * time.Millisecond
	pingTimeout       = 2 * time.Second
)

// healthService is grpc.health.v1 with readiness under "" and the name of
// FanfareService, and liveness under LivenessService.
type healthService struct {
	*health.Server

	ping func(context.Context) error
	// listening returns the number of the current listening, 0 for none.
	listening func() uint64
	// listenerChanged is signalled when the listening was seen to change.
	listenerChanged *broadcast
	logger          *slog.Logger

	mu       sync.Mutex // guards what follows
	store    condition
	listener condition
	serving  bool
	draining bool
}

// condition is whether something readiness depends on is well.
type condition struct {
	// known is false until it was first seen well.
	known bool
	// since is when it was first seen away; zero while it is well.
	since time.Time
	// cause is for the log.
	cause string
}

func (c *condition) well() { *c = condition{known: true} }

func (c *condition) away(since time.Time, cause string) {
	if c.since.IsZero() {
		c.since = since
	}
	c.cause = cause
}

// tolerable reports whether a server that is ready may stay so.
func (c *condition) tolerable(now time.Time) bool {
	return c.known && (c.since.IsZero() || now.Sub(c.since) < outageTolerance)
}

// good reports whether a server that is not ready may become so.
func (c *condition) good() bool { return c.known && c.since.IsZero() }

func newHealthService(ping func(context.Context) error, listening func() uint64, logger *slog.Logger) *healthService {
	h := &healthService{
		Server:          health.NewServer(),
		ping:            ping,
		listening:       listening,
		listenerChanged: newBroadcast(),
		logger:          logger,
	}
	h.SetServingStatus(LivenessService, grpc_health_v1.HealthCheckResponse_SERVING)
	h.publish(false)
	return h
}

// run observes the store and the listener until ctx ends.
func (h *healthService) run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { h.watchStore(ctx); return nil })
	g.Go(func() error { h.watchListener(ctx); return nil })
	return g.Wait()
}

func (h *healthService) watchStore(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
		err := h.ping(pingCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := pingInterval
		h.observe(func() {
			if err == nil {
				h.store.well()
				return
			}
			wait = pingRetryInterval
			h.store.away(began, err.Error())
		})
		sleep(ctx, wait)
	}
}

func (h *healthService) watchListener(ctx context.Context) {
	var before uint64
	for ctx.Err() == nil {
		listening := h.listening()
		if listening != before {
			before = listening
			h.listenerChanged.signal()
		}
		h.observe(func() {
			if listening != 0 {
				h.listener.well()
			} else {
				h.listener.away(time.Now(), "the listener is not connected")
			}
		})
		sleep(ctx, listenerInterval)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// observe records what was seen and publishes readiness if that changes it.
func (h *healthService) observe(record func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	record()
	if h.draining {
		return
	}
	now := time.Now()
	ready := h.store.good() && h.listener.good()
	if h.serving {
		ready = h.store.tolerable(now) && h.listener.tolerable(now)
	}
	if ready == h.serving {
		return
	}
	h.serving = ready
	if ready {
		h.logger.Info("ready")
	} else {
		h.logger.Warn("not ready", "store", h.store.cause, "listener", h.listener.cause)
	}
	h.publish(ready)
}

// drain withdraws readiness for good. Liveness stays.
func (h *healthService) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	h.serving = false
	h.publish(false)
}

func (h *healthService) publish(ready bool) {
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if ready {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	h.SetServingStatus("", status)
	h.SetServingStatus(fanfarev1.FanfareService_ServiceDesc.ServiceName, status)
}
