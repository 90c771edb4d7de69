package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fanfare-io/fanfare/backlog"
)

// maxPassed is how many announcements go to the sink at once, so that room in the
// queue is made bit by bit.
const maxPassed = 1024

// Errors of a Bus.
var (
	errBusRuns  = errors.New("the bus has a sink")
	errBusEnded = errors.New("the bus has ended")
)

// Sink is what a Bus calls: the hub. Its methods are called by one goroutine at a
// time and do not block on a store or a consumer.
type Sink interface {
	// Listening says that a new listening is active. What was committed before may
	// not have been announced.
	Listening(l backlog.Listening)
	// Lost says that the current listening has ended.
	Lost(err error)
	// Announce delivers announcements in the order of commit. The sink owns them.
	Announce(announcements []backlog.Announcement)
	// Hint says that something has changed that is not announced: a policy. Several
	// changes at once are one hint.
	Hint()
}

// Bus is the in-process bus of a store: it tells a sink what was committed, whole
// frames whatever their size, in the order of commit, from a goroutine of its own,
// so that committing does not wait for the sink until the queue between them is
// full. Nothing is lost on the way, ephemeral frames included, so a listening ends
// only with Run.
type Bus struct {
	origin   uint64
	maxBytes int64 // of what is queued

	// ready has a token if Run has something to do.
	ready chan struct{}

	// mu guards the fields below. Nothing blocks while holding it.
	mu sync.Mutex
	// runs counts the calls of Run.
	runs uint64
	// open is true while a sink is there, from just before it is told so.
	open bool
	// told is the listening that the sink knows of.
	told backlog.Listening
	// changed is closed and replaced when told changes.
	changed chan struct{}
	queue   []backlog.Announcement
	// bytes is the size of the queue and of what the sink is being told.
	bytes int64
	// room is closed and replaced when bytes shrinks.
	room    chan struct{}
	hintDue bool
}

// newBus returns a bus that queues announcements up to maxBytes, or one
// transaction's whatever their size. origin is the store's.
func newBus(origin uint64, maxBytes int64) *Bus {
	return &Bus{
		origin: origin, maxBytes: maxBytes,
		ready:   make(chan struct{}, 1),
		changed: make(chan struct{}),
		room:    make(chan struct{}),
	}
}

// Run tells sink what is committed until ctx ends, and then returns nil. It may
// be called again after it has returned, which begins a new listening; it fails
// while another call runs.
func (b *Bus) Run(ctx context.Context, sink Sink) error {
	l, err := b.begin()
	if err != nil {
		return err
	}
	sink.Listening(l)
	b.tell(l)
	defer sink.Lost(errBusEnded)
	defer b.end()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.ready:
		}
		for more := true; more && ctx.Err() == nil; {
			more = b.pass(sink)
			if b.takeHint() {
				sink.Hint()
			}
		}
	}
}

// Ensure returns the current listening, waiting for Run until ctx ends; then it
// returns ctx's error.
func (b *Bus) Ensure(ctx context.Context) (backlog.Listening, error) {
	for {
		b.mu.Lock()
		told, changed := b.told, b.changed
		b.mu.Unlock()
		if told.Number != 0 {
			return told, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return backlog.Listening{}, fmt.Errorf("wait for the bus to run: %w", ctx.Err())
		}
	}
}

// Current returns the current listening; Number is 0 if there is none.
func (b *Bus) Current() backlog.Listening {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.told
}

// begin opens the queue. That is before the sink and those who wait in Ensure are
// told, so what commits after Ensure returned is queued.
func (b *Bus) begin() (backlog.Listening, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		return backlog.Listening{}, errBusRuns
	}
	b.open = true
	b.runs++
	return backlog.Listening{Number: b.runs, Origin: b.origin}, nil
}

func (b *Bus) tell(l backlog.Listening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tellLocked(l)
}

func (b *Bus) tellLocked(l backlog.Listening) {
	b.told = l
	close(b.changed)
	b.changed = make(chan struct{})
}

// end closes the queue and forgets what is in it: the next sink begins by reading
// the store.
func (b *Bus) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = false
	b.queue, b.hintDue = nil, false
	b.shrinkLocked(b.bytes)
	b.tellLocked(backlog.Listening{})
}

// announce hands over what a transaction that has committed tells, in the order
// of commit. It waits while the queue is full. When ctx ends it waits no longer
// and queues nevertheless: what is committed is announced. Without a sink there
// is nobody to tell. The bus owns announcements.
func (b *Bus) announce(ctx context.Context, announcements []backlog.Announcement) {
	size := int64(0)
	for i := range announcements {
		size += announcementBytes(&announcements[i])
	}
	for {
		queued, room := b.enqueue(announcements, size, ctx.Err() != nil)
		if queued {
			return
		}
		select {
		case <-room:
		case <-ctx.Done():
		}
	}
}

// enqueue returns what is closed when there may be room if there is none.
func (b *Bus) enqueue(announcements []backlog.Announcement, size int64, always bool) (queued bool, room <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open || len(announcements) == 0 {
		return true, nil
	}
	if b.bytes > 0 && b.bytes+size > b.maxBytes && !always {
		return false, b.room
	}
	b.queue = append(b.queue, announcements...)
	b.bytes += size
	b.wake()
	return true, nil
}

// hint makes the sink read again what it holds, soon.
func (b *Bus) hint() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		b.hintDue = true
		b.wake()
	}
}

// takeHint reports whether a hint is due, which it then no longer is.
func (b *Bus) takeHint() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	due := b.hintDue
	b.hintDue = false
	return due
}

func (b *Bus) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// pass tells the sink of the first announcements in the queue and reports whether
// there were any. They count as queued until the sink has taken them.
func (b *Bus) pass(sink Sink) bool {
	b.mu.Lock()
	n := min(len(b.queue), maxPassed)
	passed := b.queue[:n:n]
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil // the sink owns the array
	}
	b.mu.Unlock()
	if n == 0 {
		return false
	}
	size := int64(0)
	for i := range passed {
		size += announcementBytes(&passed[i])
	}
	sink.Announce(passed)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shrinkLocked(size)
	return true
}

func (b *Bus) shrinkLocked(n int64) {
	b.bytes -= n
	close(b.room)
	b.room = make(chan struct{})
}

// announcementOverhead is about what an announcement takes beside its contents.
const announcementOverhead = 256

func announcementBytes(a *backlog.Announcement) int64 {
	n := announcementOverhead + len(a.Stream.Channel) + len(a.Stream.Scope) +
		len(a.Frame.Payload) + len(a.Frame.ContentType) + len(a.Frame.EventType)
	for name, value := range a.Frame.Headers {
		n += len(name) + len(value)
	}
	return int64(n)
}
