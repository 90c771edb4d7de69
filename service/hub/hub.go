package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
)

// ErrNotListening is returned by Subscribe when no listening became active in
// time. What wraps it may carry details for logs.
var ErrNotListening = errors.New("the replica does not listen")

// ErrStopped is returned when the hub has stopped.
var ErrStopped = errors.New("the hub has stopped")

// Reader is what the hub reads from a store; see [backlog.Reader].
type Reader interface {
	Load(ctx context.Context, origin uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error)
	Changed(ctx context.Context, origin uint64, known []backlog.StreamState) ([]int, error)
	ReadPage(ctx context.Context, origin uint64, request backlog.PageRequest) (backlog.Page, error)
}

// Config has the hub's bounds and times. The zero value of each field is its
// default.
type Config struct {
	// TailFrames and TailBytes bound one tail; it holds one frame whatever its
	// size. Bytes are those of encoded frames and 128 for each. Default 4096 and
	// 4 MiB.
	TailFrames, TailBytes int
	// MaxTailBytes bounds all tails together; beyond, the coldest are emptied.
	// Default 256 MiB.
	MaxTailBytes int64
	// PageFrames and PageBytes bound one page of the backlog that subscriptions
	// behind their tail read. Default 2048 and 1 MiB.
	PageFrames, PageBytes int
	// MaxPageBytes bounds all pages in use together. Default 64 MiB.
	MaxPageBytes int
	// Pagers is how many pages are read at once. Default 4.
	Pagers int
	// RoundStreams and RoundBytes bound one load of many streams. Default
	// backlog.MaxLoadRequests, which is also the most, and 64 MiB.
	RoundStreams, RoundBytes int
	// Linger is how long a tail stays after its stream's last subscription.
	// Default 10 s.
	Linger time.Duration
	// ReReadInterval is how often the store is asked whether a resident stream is as it
	// is known here, whatever was announced. Default 30 s.
	ReReadInterval time.Duration
	// ListenTimeout is how long Subscribe waits for a listening. Default 5 s.
	ListenTimeout time.Duration
	// ReadTimeout bounds one load or page. Default 15 s.
	ReadTimeout time.Duration
	// AnnouncesNothing is for a bus that only says that it listens, such as one that
	// polls: nothing is announced, and what is published comes with the re-reads.
	// Subscriptions of streams that carry ephemeral frames are told, once, that they
	// may miss them. Default: the bus announces.
	AnnouncesNothing bool
	// StatusNotices has subscriptions told by a Status when the listening ends and
	// when there is one again. Default: they are not told.
	StatusNotices bool
	// Logger gets what operators should know. Default: nothing is logged.
	Logger *slog.Logger
}

func (c *Config) complete() {
	setDefault(&c.TailFrames, 4096)
	setDefault(&c.TailBytes, 4<<20)
	setDefault(&c.MaxTailBytes, 256<<20)
	setDefault(&c.PageFrames, 2048)
	setDefault(&c.PageBytes, 1<<20)
	setDefault(&c.MaxPageBytes, 64<<20)
	setDefault(&c.Pagers, 4)
	setDefault(&c.RoundStreams, backlog.MaxLoadRequests)
	setDefault(&c.RoundBytes, 64<<20)
	setDefault(&c.Linger, 10*time.Second)
	setDefault(&c.ReReadInterval, 30*time.Second)
	setDefault(&c.ListenTimeout, 5*time.Second)
	setDefault(&c.ReadTimeout, 15*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.RoundStreams = min(c.RoundStreams, backlog.MaxLoadRequests)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Hub delivers the frames of resident streams to subscriptions. See the package
// comment.
type Hub struct {
	bus    Bus
	reader Reader
	encode func(backlog.Frame) []byte
	// statuses counts the changes of the status; see changeStatus. Every read of a
	// subscription looks at it, so it is among what rarely changes.
	statuses atomic.Uint32
	cfg      Config
	log      *slog.Logger

	// mu guards the map, the references of streams, and the idle list.
	mu          sync.RWMutex
	streams     map[backlog.StreamName]*stream
	subscribers int
	idle        []idleStream

	// listened is the number of the last listening the sink was told of; origin
	// is that listening's.
	listened, origin atomic.Uint64
	// away is true while there is none after that.
	away atomic.Bool
	// outages counts the times after which ephemeral frames may have been missed:
	// beginnings of listenings, and what Missed told of.
	outages atomic.Uint64
	// sinkHooks belongs to the bus's goroutine.
	sinkHooks hooks

	loads, refreshes *queue
	// checks has room for one chunk of the re-read.
	checks chan []*stream
	// watched are streams of which something that was read is not announced yet.
	watched   *queue
	pager     *pager
	pages     *pageCache
	tailBytes atomic.Int64

	// Each has room for one.
	relistened, lost, hinted, statusChanged, sweep, crowded chan struct{}
	// stopped is closed when Run returns.
	stopped chan struct{}

	counts counts

	loadFailed, refreshFailed, pageFailed throttledLog
}

// New returns a hub over a bus, whose sink it must be made, and a store. encode
// makes the bytes that every subscriber is sent for a frame; it is called once
// for a frame in a tail and once for a frame in a page, by several goroutines,
// and may keep nothing.
func New(bus Bus, reader Reader, encode func(backlog.Frame) []byte, cfg Config) *Hub {
	cfg.complete()
	return &Hub{
		bus:           bus,
		reader:        reader,
		encode:        encode,
		cfg:           cfg,
		log:           cfg.Logger,
		streams:       make(map[backlog.StreamName]*stream),
		loads:         newQueue(),
		refreshes:     newQueue(),
		watched:       newQueue(),
		checks:        make(chan []*stream, 1),
		pager:         newPager(),
		pages:         newPageCache(cfg.MaxPageBytes),
		relistened:    make(chan struct{}, 1),
		lost:          make(chan struct{}, 1),
		hinted:        make(chan struct{}, 1),
		statusChanged: make(chan struct{}, 1),
		sweep:         make(chan struct{}, 1),
		crowded:       make(chan struct{}, 1),
		stopped:       make(chan struct{}),
		loadFailed:    throttledLog{log: cfg.Logger, text: "load failed"},
		refreshFailed: throttledLog{log: cfg.Logger, text: "refresh failed"},
		pageFailed:    throttledLog{log: cfg.Logger, text: "read of a page failed"},
	}
}

// Run does the hub's work until ctx ends, and returns nil when all its
// goroutines have. Subscribe makes no progress without it. It runs once.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.stopped)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.runLoader(ctx) })
	group.Go(func() error { return h.runRefresher(ctx) })
	group.Go(func() error { return h.runChecker(ctx) })
	group.Go(func() error { return h.runScheduler(ctx) })
	group.Go(func() error { return h.runSweeper(ctx) })
	for range h.cfg.Pagers {
		group.Go(func() error { return h.runPager(ctx) })
	}
	return group.Wait()
}

// Subscribe begins a subscription of a stream, which need not exist, and does not
// wait for anything. The caller must Close it.
//
// What it delivers first is Subscribed: frames that commit from then on reach the
// subscription. That takes a listening and, unless the stream's tail answers the
// start, a read of the store. The subscription ends instead with ErrNotListening,
// or an error of the store.
func (h *Hub) Subscribe(name backlog.StreamName, start Start) *Subscription {
	sub := &Subscription{hub: h, stream: h.acquire(name)}
	p := &pending{start: start, sub: sub, first: true, until: time.Now().Add(h.cfg.ListenTimeout)}
	if l := h.bus.Current(); l.Number != 0 {
		sub.stream.placeOrQueue(p, l)
		return sub
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.ListenTimeout)
	sub.cancel = cancel
	go func() {
		defer cancel()
		h.awaitListening(ctx, p)
	}()
	return sub
}

// awaitListening places a subscription, or has it wait for a load, when there is a
// listening.
func (h *Hub) awaitListening(ctx context.Context, p *pending) {
	l, err := h.bus.Ensure(ctx)
	if err == nil {
		p.sub.stream.placeOrQueue(p, l)
		return
	}
	p.sub.fail(fmt.Errorf("%w: %w", ErrNotListening, err))
}

// placeOrQueue places a subscription from the tail, or has it wait for a load.
func (s *stream) placeOrQueue(p *pending, l backlog.Listening) {
	var hooks hooks
	defer hooks.call()
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.sub.closed {
		return // while it waited for a listening
	}
	s.used = time.Now()
	if a, ok := s.answerLocked(p.start, l.Number); ok {
		p.place(a, &hooks)
		return
	}
	s.pending = append(s.pending, p)
	s.queueLoadLocked()
}

// ensure returns the current listening, waiting for one for a bounded time.
func (h *Hub) ensure(ctx context.Context) (backlog.Listening, error) {
	bounded, cancel := context.WithTimeout(ctx, h.cfg.ListenTimeout)
	defer cancel()
	l, err := h.bus.Ensure(bounded)
	switch {
	case err == nil:
		return l, nil
	case ctx.Err() != nil:
		return l, ctx.Err()
	default:
		return l, fmt.Errorf("%w: %w", ErrNotListening, err)
	}
}

// entryOf encodes a frame.
func (h *Hub) entryOf(f backlog.Frame) *entry {
	return &entry{position: f.Position, created: f.Created, frame: [1][]byte{h.encode(f)}}
}

func (h *Hub) entriesOf(frames []backlog.Frame) []*entry {
	entries := make([]*entry, len(frames))
	for i, f := range frames {
		entries[i] = h.entryOf(f)
	}
	return entries
}
