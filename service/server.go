package service

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
	"github.com/fanfare-io/fanfare/service/hub"
)

// Config tunes a Server. The zero value is the default.
type Config struct {
	// Logger gets one line at the end of each call, fewer where many fail alike, and
	// what must not reach clients. Nil: slog.Default.
	Logger *slog.Logger
	// MaxFrameBytes bounds a payload; it must be the store's limit. 0: 1 MiB.
	MaxFrameBytes int
	// Heartbeat is how long a subscription may be idle before it is sent
	// Progress. 0: 15 s.
	Heartbeat time.Duration
	// WriteTimeout ends a streaming call whose client has taken nothing for that
	// long while something waits to be sent. 0: 30 s.
	WriteTimeout time.Duration
	// UntakenTimeout closes a connection that has ended calls whose client does not
	// take what they were sent, if it has taken nothing for that long, or leaves more
	// than 100 calls so. 0: twice WriteTimeout.
	UntakenTimeout time.Duration
	// MaxConcurrentStreams bounds the calls of one connection; a client library
	// queues further ones without saying so. 0: 10,000.
	MaxConcurrentStreams uint32
	// MaxSubscriptions bounds the streaming calls of the server, which are Subscribe,
	// PublishStream and Session, and the subscriptions of Sessions, together; further
	// ones are refused, with the reason LIMIT_REACHED. Health checks do not count.
	// 0: 100,000.
	MaxSubscriptions int
	// MaxSessionSubscriptions bounds the subscriptions of one Session; further ones are
	// refused in the same way, and the session goes on. 0: 100,000.
	MaxSessionSubscriptions int
	// MaxStreamAge is how long a streaming call may last. It is then ended, Closing
	// first, and its client resumes. Each call has an age of its own, at random from
	// 0.9 of this to all of it, so that calls that began together do not end
	// together. One whose client takes nothing at that moment ends when it does, or
	// by WriteTimeout. A subscription stays while the bus does not listen, since a new
	// one could not begin. 0: any age.
	MaxStreamAge time.Duration
	// RefuseEphemeral refuses ephemeral frames, with the reason
	// EPHEMERAL_UNAVAILABLE: for a bus that does not announce anything.
	RefuseEphemeral bool
	// Keepalive is how long a connection may be silent before it is pinged, 1 s at
	// least, and KeepaliveTimeout how long that may go unanswered: a client that is
	// gone without a word is let go after both. 0: 30 s, below the idle timeouts of
	// common load balancers, and 10 s.
	Keepalive, KeepaliveTimeout time.Duration
	// DrainDelay is how long Drain goes on serving after readiness has been
	// withdrawn, so that probes and balancers see it. 0: 5 s; negative: none.
	DrainDelay time.Duration
	// DrainGrace is how long Drain then waits for calls to end. Streaming calls are
	// told to go one by one, 500 a second or as many as must be for all to be told
	// within its first two thirds. 0: 15 s.
	DrainGrace time.Duration
	// BusKind is what the bus is: BusPostgreSQL, BusPoll or BusInProcess. Operators
	// are told by it what to look at. Empty: BusPostgreSQL.
	BusKind string
	// Verifier verifies the tokens of calls, which come in the metadata authorization
	// as "Bearer" and the token. Nil: everybody may do everything.
	Verifier *auth.Verifier
	// Version and Instance are told by /healthz: what runs, and which of several.
	// Empty: not told.
	Version, Instance string
}

func (c Config) withDefaults() Config {
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.MaxFrameBytes = cmp.Or(c.MaxFrameBytes, backlog.DefaultMaxFrameBytes)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 30*time.Second)
	c.UntakenTimeout = cmp.Or(c.UntakenTimeout, 2*c.WriteTimeout)
	c.MaxConcurrentStreams = cmp.Or(c.MaxConcurrentStreams, 10_000)
	c.Keepalive = cmp.Or(c.Keepalive, 30*time.Second)
	c.KeepaliveTimeout = cmp.Or(c.KeepaliveTimeout, 10*time.Second)
	c.MaxSubscriptions = cmp.Or(c.MaxSubscriptions, 100_000)
	c.MaxSessionSubscriptions = cmp.Or(c.MaxSessionSubscriptions, 100_000)
	c.DrainDelay = max(0, cmp.Or(c.DrainDelay, 5*time.Second))
	c.DrainGrace = cmp.Or(c.DrainGrace, 15*time.Second)
	c.BusKind = cmp.Or(c.BusKind, BusPostgreSQL)
	return c
}

// Server implements FanfareService over a store and a hub.
type Server struct {
	fanfarev1.UnimplementedFanfareServiceServer

	store  backlog.Store
	hub    *hub.Hub
	bus    hub.Bus
	cfg    Config
	logger *slog.Logger
	// callLog logs the ends of calls.
	callLog *callLog
	health  *healthService

	// ending is closed when Drain tells streaming calls to go.
	ending     chan struct{}
	endingOnce sync.Once
	// calls counts streaming calls and subscriptions of Sessions, for MaxSubscriptions.
	calls atomic.Int64
	// publishes counts the frames that clients of this server have published.
	publishes atomic.Uint64
	// looking has room for lists that look for what their callers may see.
	looking *semaphore.Weighted
	// loops counts goroutines that streaming calls started and that may outlive
	// their handlers by the time grpc needs to release a blocked send.
	loops sync.WaitGroup
	// sender sends what subscriptions have.
	sender sender
}

// New returns a Server. store and h must be running while it serves; bus is the
// one that h subscribes with.
func New(store backlog.Store, h *hub.Hub, bus hub.Bus, cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{
		store:   store,
		hub:     h,
		bus:     bus,
		cfg:     cfg,
		logger:  cfg.Logger,
		callLog: newCallLog(cfg.Logger),
		ending:  make(chan struct{}),
		looking: semaphore.NewWeighted(maxLooking),
	}
	s.sender.spawn = func(run func()) { go run() }
	s.health = newHealthService(store.Ping, bus, cfg.BusKind, cfg.Logger)
	return s
}

// Register adds the service, health and reflection to g, which must have been
// made with [Server.ServerOptions].
func (s *Server) Register(g reflection.GRPCServer) {
	fanfarev1.RegisterFanfareServiceServer(g, s)
	grpc_health_v1.RegisterHealthServer(g, s.health)
	reflection.Register(g)
}

// Run keeps readiness up to date, and logs how many calls failed, until ctx ends,
// and returns nil. Until it has seen the store answer and the bus listen, the health
// service says NOT_SERVING.
func (s *Server) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return s.health.run(ctx) })
	g.Go(func() error { s.callLog.run(ctx); return nil })
	return g.Wait()
}

// isEnding reports whether streaming calls are being told to go.
func (s *Server) isEnding() bool {
	select {
	case <-s.ending:
		return true
	default:
		return false
	}
}
