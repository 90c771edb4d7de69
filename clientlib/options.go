package clientlib

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Defaults of a [Client].
const (
	defaultMinBackoff     = 100 * time.Millisecond
	defaultMaxBackoff     = 5 * time.Second
	defaultAttemptTimeout = 30 * time.Second
	// defaultIdleTimeout is eight of the server's heartbeats.
	defaultIdleTimeout    = 2 * time.Minute
	defaultReadAheadBytes = 256 << 10
)

// TokenSource returns a bearer token for calls. It is called before each call, one
// call at a time, so it should keep its token. refresh is true if the server refused
// the token returned last with UNAUTHENTICATED, or if that is a JSON Web Token that
// expires within ten seconds, or within a minute or a fifth of its time while a session
// uses it: then a new one is wanted. ctx ends with the call that the token is for. It is
// also called, with refresh false, when a subscription of a session was denied: another
// token than the session's is shown in its place.
//
// An error, and a token that is not printable ASCII, fails a publish at once.
// Subscriptions are interrupted, and try again as publishers do.
type TokenSource func(ctx context.Context, refresh bool) (string, error)

// Option configures a [Client].
type Option func(*config)

type config struct {
	multiplexed    bool
	minBackoff     time.Duration
	maxBackoff     time.Duration
	attemptTimeout time.Duration
	idleTimeout    time.Duration
	noKeys         bool
	tokens         TokenSource
	tracers        trace.TracerProvider
	meters         metric.MeterProvider
	propagator     propagation.TextMapPropagator
	logger         *slog.Logger
}

func configure(options []Option) config {
	c := config{
		minBackoff:     defaultMinBackoff,
		maxBackoff:     defaultMaxBackoff,
		attemptTimeout: defaultAttemptTimeout,
		idleTimeout:    defaultIdleTimeout,
		tracers:        tracenoop.NewTracerProvider(),
		meters:         metricnoop.NewMeterProvider(),
		logger:         slog.New(slog.DiscardHandler),
	}
	for _, o := range options {
		o(&c)
	}
	return c
}

// WithSession has the client's subscriptions share one call. That is worth it from
// some hundreds of subscriptions on. A consumer that is slow pauses only its own. A
// server that has no Session is sent one Subscribe for each, as without this option.
func WithSession() Option { return func(c *config) { c.multiplexed = true } }

// WithBackoff bounds the pauses between attempts. The first is between shortest and
// three times that, and later ones reach up to longest, at random. A server that says
// how long to wait is heard; then the pause is that much more. Default: 100 ms and
// 5 s. What is not positive is the default; longest is at least shortest.
func WithBackoff(shortest, longest time.Duration) Option {
	return func(c *config) {
		c.minBackoff, c.maxBackoff = orDefault(shortest, defaultMinBackoff), orDefault(longest, defaultMaxBackoff)
		c.maxBackoff = max(c.maxBackoff, c.minBackoff)
	}
}

// WithAttemptTimeout bounds one attempt of a publish whose retry is safe; the next
// begins then. Default, and what is not positive: 30 s.
func WithAttemptTimeout(d time.Duration) Option {
	return func(c *config) { c.attemptTimeout = orDefault(d, defaultAttemptTimeout) }
}

// WithIdleTimeout is how long a subscription bears to hear nothing, not even a
// heartbeat, before it takes the call for dead and resumes. It must be longer than
// several of the server's heartbeats (15 s by default) and only counts while the
// subscription reads. A publisher bears as long that none of the frames on their way is
// answered; a server answers within 30 s. Default, and what is not positive: 2 min.
func WithIdleTimeout(d time.Duration) Option {
	return func(c *config) { c.idleTimeout = orDefault(d, defaultIdleTimeout) }
}

// WithoutIdempotencyKeys has the library make no keys. The server then has less to
// keep, and a publish without a key of the caller's is retried only where nothing was
// stored for certain.
func WithoutIdempotencyKeys() Option { return func(c *config) { c.noKeys = true } }

// WithTokenSource sends a bearer token with each call. The library does not look
// whether the connection is encrypted.
func WithTokenSource(source TokenSource) Option { return func(c *config) { c.tokens = source } }

// WithTracerProvider makes a span of each publish. Default, and nil: none.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) {
		if p != nil {
			c.tracers = p
		}
	}
}

// WithMeterProvider counts and measures what the client does. Default, and nil: it
// does not. The package documentation lists the instruments.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) {
		if p != nil {
			c.meters = p
		}
	}
}

// WithPropagator puts the trace context into the headers of published frames, where
// the header limits leave room for it and the caller gave no idempotency key: the
// content under a key must not change with the trace. Default, and nil: it does not.
func WithPropagator(p propagation.TextMapPropagator) Option {
	return func(c *config) { c.propagator = p }
}

// WithLogger logs interruptions, thinned out while they go on, and recoveries.
// Default, and nil: nothing.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l != nil {
			c.logger = l
		}
	}
}

func orDefault(d, def time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return def
}

// SubscribeOption configures a [Subscription].
type SubscribeOption func(*subscribeConfig)

type subscribeConfig struct {
	readAheadBytes int
}

// WithReadAhead is how many bytes of frames, as they are encoded, may wait for Next
// before the subscription reads no more and the server waits. One frame, or one
// message of 64 KiB, is always taken. Default, and what is not positive: 256 KiB.
func WithReadAhead(bytes int) SubscribeOption {
	return func(c *subscribeConfig) {
		if bytes > 0 {
			c.readAheadBytes = bytes
		}
	}
}

// PublisherOption configures a [Publisher].
type PublisherOption func(*publisherConfig)

type publisherConfig struct {
	frames, bytes int
}

// WithWindow bounds the frames of a publisher that have not been answered, in number
// and in bytes of payloads; one frame is always taken. Default, and what is not
// positive: 1,024 frames and 4 MiB.
func WithWindow(frames, bytes int) PublisherOption {
	return func(c *publisherConfig) {
		if frames > 0 {
			c.frames = frames
		}
		if bytes > 0 {
			c.bytes = bytes
		}
	}
}
