package service

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// LivenessService is the name under which the health service says SERVING while
// the process runs. Probes that restart the process must use it: readiness
// depends on the store, and restarting every replica does not bring that back.
const LivenessService = "liveness"

// Kinds of buses, for [Config.BusKind].
const (
	// BusPostgreSQL is a listener connection.
	BusPostgreSQL = "postgresql"
	// BusPoll asks the database, which cannot be listened to.
	BusPoll = "poll"
	// BusInProcess is that of an embedded store.
	BusInProcess = "in-process"
)

const (
	// outageTolerance is for how long the store or the bus may be away before
	// readiness is withdrawn: a reconnect must not move all clients.
	outageTolerance = time.Second
	// busInterval is how often the bus is looked at, in memory: it tells of a
	// listening at once, and not of its end.
	busInterval = 100 * time.Millisecond
	// pingInterval is how often the store is asked while it answers,
	// pingRetryInterval while it does not: short enough to see within
	// outageTolerance that a blip is over.
	pingInterval      = time.Second
	pingRetryInterval = 250 * time.Millisecond
	pingTimeout       = 2 * time.Second
)

// healthService judges readiness, in one place for everybody who asks:
// grpc.health.v1, with readiness under "" and the name of FanfareService and
// liveness under LivenessService, and /healthz.
type healthService struct {
	*health.Server

	ping func(context.Context) error
	bus  hub.Bus
	// busKind is one of the kinds of buses.
	busKind string
	logger  *slog.Logger
	started time.Time

	mu    sync.Mutex // guards what follows
	state healthState
}

// healthState is what is known at one moment.
type healthState struct {
	// ready is the verdict; since is when it or draining became what it is.
	ready, draining bool
	since           time.Time
	store, bus      condition
}

// condition is whether something readiness depends on is well.
type condition struct {
	// fault says why it is not; nil if it is.
	fault *failure
	// since is when it was first seen as it is.
	since time.Time
}

func (c *condition) well(since time.Time) {
	if c.fault != nil {
		*c = condition{since: since}
	}
}

func (c *condition) away(since time.Time, fault *failure) {
	if c.fault == nil {
		c.since = since
	}
	c.fault = fault
}

func (c *condition) isWell() bool { return c.fault == nil }

// tolerable reports whether a server that is ready may stay so.
func (c *condition) tolerable(now time.Time) bool {
	return c.isWell() || now.Sub(c.since) < outageTolerance
}

// String is for the log.
func (c *condition) String() string {
	if c.isWell() {
		return "well"
	}
	return c.fault.Error()
}

func newHealthService(ping func(context.Context) error, bus hub.Bus, busKind string, logger *slog.Logger) *healthService {
	now := time.Now()
	h := &healthService{
		Server:  health.NewServer(),
		ping:    ping,
		bus:     bus,
		busKind: busKind,
		logger:  logger,
		started: now,
	}
	h.state = healthState{
		since: now,
		store: condition{since: now, fault: &failure{message: "the store has not answered yet"}},
		bus:   condition{since: now, fault: h.notListening()},
	}
	h.SetServingStatus(LivenessService, grpc_health_v1.HealthCheckResponse_SERVING)
	h.publishLocked()
	return h
}

// notListening is the fault of a bus without a listening.
func (h *healthService) notListening() *failure {
	switch h.busKind {
	case BusInProcess:
		return &failure{message: "the in-process bus does not run"}
	case BusPoll:
		return &failure{message: "the database does not say whether there are new frames"}
	default:
		return &failure{message: "the listener is not connected"}
	}
}

// current returns what is known.
func (h *healthService) current() healthState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// run observes the store and the bus until ctx ends.
func (h *healthService) run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { h.watchStore(ctx); return nil })
	g.Go(func() error { h.watchBus(ctx); return nil })
	return g.Wait()
}

func (h *healthService) watchStore(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		err := h.askStore(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := pingInterval
		h.observe(func(s *healthState) {
			if err == nil {
				s.store.well(time.Now())
				return
			}
			wait = pingRetryInterval
			s.store.away(began, readFailureOf(err))
		})
		sleep(ctx, wait)
	}
}

func (h *healthService) askStore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err := h.ping(ctx)
	if err != nil && ctx.Err() != nil {
		return &failure{message: fmt.Sprintf("the store does not answer within %s", pingTimeout), cause: err}
	}
	return err
}

func (h *healthService) watchBus(ctx context.Context) {
	var before uint64
	for ctx.Err() == nil {
		listening := h.bus.Current().Number
		changed := listening != before
		before = listening
		h.observe(func(s *healthState) {
			switch {
			case listening == 0:
				s.bus.away(time.Now(), h.notListening())
			case changed:
				// Also from one listening to the next: since is when the current one began.
				s.bus = condition{since: time.Now()}
			}
		})
		if listening == 0 {
			h.awaitListening(ctx)
		} else {
			sleep(ctx, busInterval)
		}
	}
}

// awaitListening waits until there is a listening, for the busInterval at most: how
// long there has been none decides, too.
func (h *healthService) awaitListening(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, busInterval)
	defer cancel()
	if _, err := h.bus.Ensure(ctx); err != nil {
		<-ctx.Done() // it may have failed for another reason, at once
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
func (h *healthService) observe(record func(s *healthState)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.state
	record(s)
	if s.draining {
		return
	}
	now := time.Now()
	ready := s.store.isWell() && s.bus.isWell()
	if s.ready {
		// Both have been well before.
		ready = s.store.tolerable(now) && s.bus.tolerable(now)
	}
	if ready == s.ready {
		return
	}
	s.ready, s.since = ready, now
	if ready {
		h.logger.Info("ready")
	} else {
		h.logger.Warn("not ready", "store", s.store.String(), "channel", s.bus.String())
	}
	h.publishLocked()
}

// drain withdraws readiness for good. Liveness stays.
func (h *healthService) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.ready, h.state.draining, h.state.since = false, true, time.Now()
	h.publishLocked()
}

func (h *healthService) publishLocked() {
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.state.ready {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	h.SetServingStatus("", status)
	h.SetServingStatus(fanfarev1.FanfareService_ServiceDesc.ServiceName, status)
}

// faults says in our words what is not well, and nothing that a driver said.
func (s *healthState) faults() []string {
	faults := []string{}
	for _, c := range []condition{s.store, s.bus} {
		if !c.isWell() {
			faults = append(faults, c.fault.message)
		}
	}
	return faults
}
