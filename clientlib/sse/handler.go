package sse

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

// Handler serves event streams. Make it with [New]. Its methods may be called from any
// goroutine.
type Handler struct {
	client *clientlib.Client
	config Config
	cors   http.Handler
	log    *troubleLog
	// turns are taken by pages that are being read.
	turns chan struct{}
	// tasks are the goroutines that Close waits for, and connections.
	tasks sync.WaitGroup

	mu     sync.Mutex // guards what follows
	relays map[clientlib.Stream]*relay
	// lingering are those of relays that nobody uses; forgotten are others, which have
	// ended while somebody did, and still have their rings.
	lingering, forgotten map[*relay]struct{}
	conns                map[*conn]struct{}
	// ends end the tasks, by their numbers.
	ends map[uint64]context.CancelFunc
	last uint64
	// left is closed when the last connection has ended, while somebody waits for it.
	left chan struct{}

	// shrinking is held by who empties rings.
	shrinking sync.Mutex

	drains atomic.Bool
	// shut is set by Close: when the last write ends.
	shut atomic.Pointer[time.Time]
	// holding counts what connections hold.
	holding budget
	crowd   crowd
	counters
}

// counters are what Stats tells.
type counters struct {
	relayBytes, replaysWaiting                                                atomic.Int64
	requests, refused, postponed, frames, bytes, pages, overtaken, gaps, slow atomic.Uint64
}

// New returns a handler that subscribes by client, which stays the caller's, and has an
// identity of its own: who sends requests is authorized by [Config.Authorize]. A client
// with many streams should have [clientlib.WithSession]. The handler starts nothing
// before the first request. Mount it at /v1/streams and /v1/streams/, and close it before
// the client. A server's WriteTimeout and ReadTimeout do not cut its streams. New panics
// if [CheckOrigins] has something against [Config.AllowedOrigins]: ask it before, if they
// come from outside the program.
//
// A nil client is for a handler that stands in for one while there is no server yet, or no
// more: it tells all whose requests it understands to come back, and authorizes nobody.
func New(client *clientlib.Client, config Config) *Handler {
	h := &Handler{
		client: client, config: config.withDefaults(),
		relays: map[clientlib.Stream]*relay{}, lingering: map[*relay]struct{}{}, forgotten: map[*relay]struct{}{},
		conns: map[*conn]struct{}{}, ends: map[uint64]context.CancelFunc{},
	}
	h.log = &troubleLog{logger: h.config.Logger, kinds: map[string]*troubleKind{}}
	h.holding.limit = h.config.MaxReplayBytes
	h.turns = make(chan struct{}, h.config.MaxReplays)
	h.cors = corsFor(h.config.AllowedOrigins, http.HandlerFunc(h.answer))
	return h
}

// ServeHTTP answers as the package documentation says. The writer, or one that it
// unwraps to, must be one of net/http's: a stream needs Flush and deadlines.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.cors.ServeHTTP(w, r) }

// Drain tells all connections to come back, which then reach another edge, and ends
// them. Those that come here from now on are told the same. It returns when all have ended
// or ctx has.
func (h *Handler) Drain(ctx context.Context) {
	h.drains.Store(true)
	select {
	case <-h.wakeAll():
	case <-ctx.Done():
	}
}

// Close ends all connections and subscriptions and waits for their goroutines, for a
// second at most on browsers that take nothing. Drain comes before, where browsers are to
// come back in order. It does nothing the second time.
func (h *Handler) Close() {
	last := time.Now().Add(closeTimeout)
	h.shut.CompareAndSwap(nil, &last)
	h.drains.Store(true)
	left := h.wakeAll()
	h.hurryAll()
	<-left
	h.mu.Lock()
	for _, end := range h.ends {
		end()
	}
	for _, r := range h.relays {
		r.stopLinger()
	}
	h.mu.Unlock()
	h.tasks.Wait()
}

func (h *Handler) draining() bool { return h.drains.Load() }

func (h *Handler) isClosed() bool { return h.shut.Load() != nil }

// wakeAll has all connections look at the handler, and returns what is closed when none
// is left.
func (h *Handler) wakeAll() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns {
		c.wake()
	}
	if h.left == nil {
		h.left = make(chan struct{})
	}
	left := h.left
	h.leftLocked()
	return left
}

// hurryAll bounds the writes that are under way; those that begin later bound themselves.
func (h *Handler) hurryAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns { // their handlers have not returned, so the writer is theirs
		c.hurry()
	}
}

func (h *Handler) leftLocked() {
	if len(h.conns) == 0 && h.left != nil {
		close(h.left)
		h.left = nil
	}
}

// join counts a connection, unless there are too many.
func (h *Handler) join(c *conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isClosed() || len(h.conns) >= h.config.MaxConnections {
		return false
	}
	h.conns[c] = struct{}{}
	return true
}

func (h *Handler) leave(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
	h.leftLocked()
}

// run runs a task until Close ends its context, or end does; false: Close was before.
func (h *Handler) run(task func(ctx context.Context)) (end context.CancelFunc, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runLocked(task)
}

func (h *Handler) runLocked(task func(ctx context.Context)) (end context.CancelFunc, ok bool) {
	if h.isClosed() {
		return nil, false
	}
	ctx, end := context.WithCancel(context.Background())
	h.last++
	number := h.last
	h.ends[number] = end
	h.tasks.Go(func() {
		defer h.ended(number)
		task(ctx)
	})
	return end, true
}

func (h *Handler) ended(task uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends[task]()
	delete(h.ends, task)
}
