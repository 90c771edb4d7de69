package pgbacklog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fanfare-io/fanfare/backlog"
)

// committerConfig bounds a committer. Zero values are defaults.
type committerConfig struct {
	// Schema holds the functions; default DefaultSchema.
	Schema string
	// MaxBatchFrames and MaxBatchBytes cut a transaction, which carries at least
	// one frame whatever its size. Defaults: 512 frames, 1 MiB.
	MaxBatchFrames int
	MaxBatchBytes  int64
	// MaxQueuedFrames and MaxQueuedBytes bound what has been submitted and is not
	// yet finished, in flight or not. Defaults: 10,000 frames, 64 MiB. One lane
	// may hold a quarter of it and all lanes together a half, so that streams
	// which others hold locked leave room for the rest; so may calls, in lanes or
	// not. A call counts as one frame.
	MaxQueuedFrames int
	MaxQueuedBytes  int64
	// Lanes bounds lanes that run at a time, each on a connection; default 8.
	Lanes int
	// BatchConns bounds atomic batches and closes that run at a time without
	// waiting for a stream that is held; default 4.
	BatchConns int
	// ConnectTimeout bounds the wait for a connection; default 5 s.
	ConnectTimeout time.Duration
	// CallTimeout bounds a transaction in flight; then its outcome is unknown.
	// Default 30 s.
	CallTimeout time.Duration
	// RetryTimeout bounds, when a caller has no deadline, how long a publication of
	// unknown outcome is retried under its key, and how long a batch, a close or a
	// policy is tried while others hold what it locks; default 30 s.
	RetryTimeout time.Duration
}

func (c committerConfig) withDefaults() committerConfig {
	setDefault(&c.Schema, DefaultSchema)
	setDefault(&c.MaxBatchFrames, 512)
	setDefault(&c.MaxBatchBytes, 1<<20)
	setDefault(&c.MaxQueuedFrames, 10_000)
	setDefault(&c.MaxQueuedBytes, 64<<20)
	setDefault(&c.Lanes, 8)
	setDefault(&c.BatchConns, 4)
	setDefault(&c.ConnectTimeout, 5*time.Second)
	setDefault(&c.CallTimeout, 30*time.Second)
	setDefault(&c.RetryTimeout, 30*time.Second)
	return c
}

// A committer publishes what is submitted, many publications in one transaction.
//
// PostgreSQL makes commits that notify wait for each other through the flush, so
// a transaction for each publication would not scale with the number of
// publishers. Publications are gathered while a transaction is in flight, and
// the next one carries them all: there is no timer, and no delay when idle.
//
// A stream is either in the batch or in a lane. It starts in the batch, whose
// transactions never wait for a lock that somebody else holds on a stream. What
// they could not have at once, and what must be retried because its outcome is
// unknown, moves to the stream's lane, and what is submitted for the stream
// afterwards joins it. A lane's transactions carry nothing but its stream, and
// wait. When one has succeeded and nothing is unresolved, the batch takes the
// stream again.
//
// Atomic batches and closes, the calls, have a transaction each and wait for a
// foreign lock for moments only. One that finds a stream held joins its lane,
// where it is attempted in its turn; so nothing that waits for long occupies the
// connections of calls for other streams.
//
// Order: an item is either in flight or in one queue, behind everything
// submitted for its stream before it; what goes back into a queue goes to its
// front; and a stream has one transaction in flight at a time.
type committer struct {
	cfg    committerConfig
	pool   *pgxpool.Pool
	logger *slog.Logger
	// call runs one transaction: runPublish, which tests of the queues replace.
	call callFunc
	// These call the schema's functions.
	publishSQL, batchFrameSQL, batchFramesSQL, closeSQL, awaitSQL, heldSQL, setPolicySQL, prepareSQL string
	// pinIsolation is true if transactions must say which isolation level they need.
	pinIsolation atomic.Bool
	// lockTimeout, a time.Duration, is the longest wait for one lock. It is set
	// when a connection is prepared.
	lockTimeout atomic.Int64
	// failing is true from a failed transaction to one that succeeds, so that an
	// outage is logged once.
	failing atomic.Bool
	// batchSlots bounds first attempts of calls. policySlot is apart, since one
	// foreign transaction that has set a policy holds up all who set one.
	batchSlots, policySlot slots

	// mu guards what follows and the queue's part of every item. Nothing blocks
	// while it is held, and no caller's code is called.
	mu sync.Mutex
	// batchWork is signalled when batch has items or stopped is set, laneWork when
	// ready has lanes or stopped is set.
	batchWork, laneWork sync.Cond
	stopped             bool
	// queued counts all unfinished items, laned those of lanes, calling the calls.
	queued, laned, calling load
	batch                  line
	// inFlight is what the batch's transaction carries, until what it puts back is
	// where it belongs.
	inFlight []*item
	lanes    map[backlog.StreamName]*lane
	// ready holds the lanes that wait for a turn, each at most once.
	ready []*lane
	// heldUntil has the streams that were found held and not free again, with the
	// time until which that is believed.
	heldUntil map[backlog.StreamName]time.Time
}

// load is an amount of items.
type load struct {
	frames int
	bytes  int64
}

func (l *load) add(it *item)    { l.frames++; l.bytes += it.size }
func (l *load) remove(it *item) { l.frames--; l.bytes -= it.size }

// fits reports whether it may be added to l within a share of limits. One item
// always may.
func (l load) fits(it *item, frames int, bytes int64) bool {
	return l.frames == 0 || l.frames < frames && l.bytes+it.size <= bytes
}

func newCommitter(pool *pgxpool.Pool, cfg committerConfig, logger *slog.Logger) *committer {
	cfg = cfg.withDefaults()
	schema := pgx.Identifier{cfg.Schema}.Sanitize()
	c := &committer{
		cfg:            cfg,
		pool:           pool,
		logger:         logger,
		publishSQL:     "select status, epoch, sequence from " + schema + publishCall,
		batchFrameSQL:  "select " + schema + batchFrameCall,
		batchFramesSQL: "select epoch, before, status, others_epoch, others_sequence from " + schema + batchFramesCall,
		closeSQL:       "select outcome, epoch, sequence from " + schema + closeCall,
		setPolicySQL:   "select " + schema + setPolicyCall,
		awaitSQL:       "select " + schema + awaitCall,
		heldSQL:        "select " + schema + heldCall,
		prepareSQL:     "select setting::bigint from pg_settings, " + schema + prepareCall + " where name = 'deadlock_timeout'",
		batchSlots:     make(slots, cfg.BatchConns),
		policySlot:     make(slots, policyConns),
		lanes:          make(map[backlog.StreamName]*lane),
		heldUntil:      make(map[backlog.StreamName]time.Time),
	}
	c.call = c.runPublish
	c.batchWork.L = &c.mu
	c.laneWork.L = &c.mu
	return c
}

// run commits what is submitted until ctx ends. Then it finishes the
// transactions in flight and fails the rest with backlog.ErrUnavailable.
func (c *committer) run(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() {
		<-ctx.Done()
		c.stop()
	})
	workers.Go(func() { c.runBatches(ctx) })
	for range c.cfg.Lanes {
		workers.Go(func() { c.runLanes(ctx) })
	}
	workers.Wait()
	c.stop() // what the last transactions put back
	return nil
}

// stop refuses what is submitted from now on and fails what waits.
func (c *committer) stop() {
	var settled answers
	c.mu.Lock()
	c.stopped = true
	c.failWaitingLocked(&settled, &c.batch, backlog.ErrUnavailable, true)
	for _, l := range c.lanes {
		c.failWaitingLocked(&settled, &l.line, backlog.ErrUnavailable, true)
	}
	c.batchWork.Broadcast()
	c.laneWork.Broadcast()
	c.mu.Unlock()
	settled.deliver()
}

// submit queues one publication; see backlog.Store.
func (c *committer) submit(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
	if err := ctx.Err(); err != nil {
		done(backlog.Outcome{}, err)
		return
	}
	it := newItem(p, done)
	it.deadline, _ = ctx.Deadline()
	if ctx.Done() != nil {
		// Outside the lock: a context that has ended meanwhile calls at once.
		it.gone, it.stop = ctx.Err, context.AfterFunc(ctx, func() { c.withdraw(it, ctx.Err()) })
	}
	c.mu.Lock()
	err := c.enqueueLocked(it)
	c.mu.Unlock()
	if err != nil {
		it.err = err
		answers{it}.deliver()
	}
}

// enqueueLocked puts a new item behind everything of its stream, or returns why
// it may not be.
func (c *committer) enqueueLocked(it *item) error {
	l := c.lanes[it.publication.Stream]
	switch {
	case it.state == itemAnswered:
		return it.err // withdrawn before it was queued
	case c.stopped:
		it.state = itemAnswered
		return backlog.ErrUnavailable
	case !c.hasRoomLocked(it, l):
		it.state = itemAnswered
		return backlog.ErrPublishQueueFull
	}
	it.state = itemWaiting
	c.queued.add(it)
	if l != nil {
		c.joinLaneLocked(it, l)
		return nil
	}
	c.batch.waiting.pushBack(it)
	c.batchWork.Signal()
	return nil
}

func (c *committer) hasRoomLocked(it *item, l *lane) bool {
	frames, bytes := c.cfg.MaxQueuedFrames, c.cfg.MaxQueuedBytes
	if !c.queued.fits(it, frames, bytes) {
		return false
	}
	return l == nil || c.hasLaneRoomLocked(it, l)
}

func (c *committer) hasLaneRoomLocked(it *item, l *lane) bool {
	frames, bytes := c.cfg.MaxQueuedFrames, c.cfg.MaxQueuedBytes
	return l.load.fits(it, frames/4, bytes/4) && c.laned.fits(it, frames/2, bytes/2)
}

// withdraw is called when a caller's context has ended.
func (c *committer) withdraw(it *item, cause error) {
	var settled answers
	c.mu.Lock()
	switch it.state {
	case itemNew: // submit answers
		it.state, it.err = itemAnswered, cause
	case itemWaiting:
		it.list.remove(it)
		c.answerLocked(&settled, it, backlog.Outcome{}, it.certain(cause))
	case itemInFlight: // it keeps its place in the queue's bounds until the transaction ends
		it.state, it.err = itemAnswered, backlog.ErrOutcomeUnknown
		settled = append(settled, it)
	}
	c.mu.Unlock()
	settled.deliver()
}

// answerLocked finishes an item that is in no list.
func (c *committer) answerLocked(settled *answers, it *item, outcome backlog.Outcome, err error) {
	c.queued.remove(it)
	if it.call != nil {
		c.calling.remove(it)
	}
	if it.lane != nil {
		c.laned.remove(it)
		it.lane.load.remove(it)
	}
	if it.state == itemAnswered {
		return // its caller left while it was in flight
	}
	it.state, it.outcome, it.err = itemAnswered, outcome, err
	*settled = append(*settled, it)
}

// failWaitingLocked answers what waits in l with err. What is unresolved goes on
// waiting unless all is true.
func (c *committer) failWaitingLocked(settled *answers, l *line, err error, all bool) {
	for it := l.waiting.front; it != nil; {
		next := it.next
		if all || !it.unresolved {
			l.waiting.remove(it)
			c.answerLocked(settled, it, backlog.Outcome{}, it.certain(err))
		}
		it = next
	}
}

// putBackLocked puts items that were in flight in front of what waits in l.
func (c *committer) putBackLocked(l *line, items []*item) {
	for i := len(items) - 1; i >= 0; i-- {
		items[i].state = itemWaiting
		l.waiting.pushFront(items[i])
	}
}
