package sse

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

// Defaults of a [Config].
const (
	defaultHeartbeat        = 15 * time.Second
	defaultWriteTimeout     = 30 * time.Second
	defaultSubscribeTimeout = 10 * time.Second
	defaultRetry            = 2 * time.Second
	defaultLinger           = 10 * time.Second
	defaultMaxConnections   = 20_000
	defaultMaxStreams       = 50
	defaultMaxRelays        = 50_000
	defaultRelayBytes       = 1 << 20
	defaultMaxRelayBytes    = 256 << 20
	defaultMaxReplays       = 32
	defaultMaxReplayBytes   = 256 << 20
)

// Config says how a [Handler] serves. What is zero or negative has the default.
type Config struct {
	// Authorize decides whether a request may see streams, all of them or none; nil:
	// everybody may see everything. It may be called by many goroutines, and should
	// answer within the request's context. A *[Refusal] is final for the browser; any
	// other error is trouble that passes, which the browser comes back after, and is
	// logged. It must not keep streams.
	Authorize func(r *http.Request, streams []clientlib.Stream) (Grant, error)
	// Begin is called before a request that Authorize allows is served, for who bounds what
	// serves others, too, such as connections: not ok has the browser come back
	// (LIMIT_REACHED), and end is called when the stream has ended. It may be called by
	// many goroutines, and must not block. Nil: always ok.
	Begin func(r *http.Request) (end func(), ok bool)
	// Parameters are those of the query that Authorize looks at, beside a [Signer]'s. Other
	// unknown ones are refused with 400.
	Parameters []string
	// AllowedOrigins are the origins whose pages may read what is answered (CORS), such
	// as https://app.example.com, with credentials. https://*.example.com stands for all
	// origins below that domain, which has two labels or more. A * is nowhere else, but
	// for "*" alone: then every origin may, and none with credentials. None: only
	// pages of the handler's own origin may.
	AllowedOrigins []string
	// Heartbeat is after how long of silence a comment and the id are sent, and how often
	// who asks for heartbeat=event gets that. Default: 15 s.
	Heartbeat time.Duration
	// WriteTimeout is how long a browser may need for 16 KiB of what is written to it (with
	// the default about 550 bytes/s), or for less if there is no more, before its
	// connection is broken. A frame of any size passes at that rate. What the system
	// buffers counts as taken, and it takes more only when a good part of its buffer is
	// free: where that is large, a browser must be faster. Default: 30 s.
	WriteTimeout time.Duration
	// SubscribeTimeout is how long a request waits to be subscribed, before it is
	// answered that it should come back. Default: 10 s.
	SubscribeTimeout time.Duration
	// Retry is how long browsers are told to wait before they come back, at the
	// shortest; the longest is three times that, and for each it is chosen at random.
	// Default: 2 s.
	Retry time.Duration
	// Linger is how long a stream stays subscribed to after its last browser. Default:
	// 10 s.
	Linger time.Duration
	// MaxConnections is how many requests are served at a time; others are told to
	// come back. Default: 20,000.
	MaxConnections int
	// MaxStreams is how many streams one request may name. Default: 50.
	MaxStreams int
	// MaxRelays is how many streams are subscribed to at a time, which is what the servers
	// hold for this handler; a request that needs one more is told to come back. It should
	// be below what the servers let a client have. Default: 50,000.
	MaxRelays int
	// RelayBytes is how much is kept of the newest events of one stream; one event is
	// always kept. Default: 1 MiB.
	RelayBytes int
	// MaxRelayBytes is the same of all streams together. Default: 256 MiB.
	MaxRelayBytes int
	// MaxReplays is how many pages are read at a time for browsers that are behind what
	// is kept; others wait. Default: 32.
	MaxReplays int
	// MaxReplayBytes is how much is held of such pages, from when they are read until they
	// are written to all who need them, but for those that are being read; and of newest
	// events above 16 KiB, while they are written, each once however many browsers it is
	// written to. While there is more, no page is read and no such event begun, and of the
	// browsers that have taken less than 16 KiB of theirs for a second, the one whose write
	// has lasted longest is ended, for one that waits. Default: 256 MiB.
	MaxReplayBytes int
	// Logger is told of trouble, of each kind once a second at most, and of refusals, of
	// each reason once in five seconds, at level WARN, or DEBUG if a credential has
	// expired; and how often each was left out meanwhile. It is never told of URLs or
	// headers, which have credentials. Nil: nobody is.
	Logger *slog.Logger
}

// Grant is what [Config.Authorize] allows.
type Grant struct {
	// Expires is when the connection ends; zero: never.
	Expires time.Time
}

// Refusal is an error of [Config.Authorize] that is final for the browser.
type Refusal struct {
	// Status is 401 (no credential, or not a valid one) or 403 (valid, and does not
	// allow this). Anything else is sent as 403.
	Status int
	// Reason is for programs, and is sent to the browser: TOKEN_EXPIRED if the credential
	// was valid, so that a page can get another one without asking anybody. Empty:
	// UNAUTHENTICATED with 401, PERMISSION_DENIED with 403.
	Reason string
	// Message is for people. It is sent to the browser.
	Message string
	// Cause is what the log is told instead of the message, and not the browser; it must
	// not have the credential in it. It may be nil.
	Cause error
}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Cause }

func (c Config) withDefaults() Config {
	setDefault(&c.Heartbeat, defaultHeartbeat)
	setDefault(&c.WriteTimeout, defaultWriteTimeout)
	setDefault(&c.SubscribeTimeout, defaultSubscribeTimeout)
	setDefault(&c.Retry, defaultRetry)
	setDefault(&c.Linger, defaultLinger)
	setDefault(&c.MaxConnections, defaultMaxConnections)
	setDefault(&c.MaxStreams, defaultMaxStreams)
	setDefault(&c.MaxRelays, defaultMaxRelays)
	setDefault(&c.RelayBytes, defaultRelayBytes)
	setDefault(&c.MaxRelayBytes, defaultMaxRelayBytes)
	setDefault(&c.MaxReplays, defaultMaxReplays)
	setDefault(&c.MaxReplayBytes, defaultMaxReplayBytes)
	if c.Begin == nil {
		c.Begin = func(*http.Request) (func(), bool) { return func() {}, true }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func setDefault[T int | time.Duration](value *T, def T) {
	if *value <= 0 {
		*value = def
	}
}
