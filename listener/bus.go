package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

const (
	// hintInterval is the least time between two calls of Sink.Hint, and between two
	// of Sink.Missed: each makes the hub read the heads of all its streams, and
	// anybody who may NOTIFY can cause one.
	hintInterval = time.Second
	// reloadInterval is the least time between two reloads of the keys. For the
	// same reason.
	reloadInterval = time.Second
	// reloadTimeout bounds a reload; announcements wait for it.
	reloadTimeout = 2 * time.Second
	// maxPassed is about how many announcements go to the sink at once.
	maxPassed = 1024
)

// Sink is what a Bus calls: the hub. Its methods, but for Hears, are called by one
// goroutine at a time and do not block on a store or a consumer.
type Sink interface {
	// Listening says that a new listening is active. Announcements since the one
	// before may have been lost.
	Listening(l backlog.Listening)
	// Lost says that the current listening has ended.
	Lost(err error)
	// Hears reports whether what is announced of a stream matters to anybody. What is
	// not heard need not be announced. It may be called by another goroutine than the rest,
	// at any time, and blocks on nothing. It keeps nothing of the name.
	Hears(stream backlog.StreamName) bool
	// Announce delivers announcements in the order of commit, at least those of
	// streams that are heard. The sink owns them.
	Announce(announcements []backlog.Announcement)
	// Hint says that something may have been announced that could not be read or
	// is not authentic, or that bounds of streams were changed. It comes at most
	// once a second.
	Hint()
	// Missed is Hint, and says besides that what was announced before may have had
	// an ephemeral frame, which cannot be read anywhere else. It comes at most once a
	// second, and unless it has to wait for that, before any later announcement.
	Missed()
}

// BusStats counts what a Bus has seen.
type BusStats struct {
	// Envelopes were authentic, and carried Announcements, of which Unheard were of
	// streams that nobody hears.
	Envelopes, Announcements, Unheard uint64
	// Refused notifications, by reason.
	Unreadable, UnknownVersion, UnknownKey, Forged, Replayed uint64
	// SkippedEntries of authentic envelopes are of a kind this program does not
	// know.
	SkippedEntries uint64
	// BrokenEntries were split over envelopes, and not all parts came, or they made
	// no entry.
	BrokenEntries uint64
	// Overflows counts how often notifications that waited were dropped because
	// they were too many.
	Overflows uint64
	// Hints and Missed count the calls of the sink, and Reloads those of the keys.
	Hints, Missed, Reloads uint64
}

// Bus turns the notifications of one notify channel into announcements: it
// judges, reads and passes on. It works in a goroutine of its own, so that
// neither a slow sink nor a reload of the keys holds up the listener; only where
// nothing has to wait, a notification is judged as it comes (see [inbox]).
type Bus struct {
	listener      *Listener
	notifyChannel string
	loadKeys      func(context.Context) ([]Key, error)
	logger        *slog.Logger
	inbox         *inbox
	counters      busCounters

	// Run's goroutine alone uses these; while it rests, the first two are guarded by
	// the inbox.
	authenticator *Authenticator
	assembler     *assembler
	logs          throttle
	overflowLogs  throttle // of its own: whoever may NOTIFY can use up logs
	lastReload    time.Time
	hints         pace
	missed        pace

	// mu guards the fields below.
	mu sync.Mutex
	// told is the listening that the sink knows of.
	told backlog.Listening
	// changed is closed and replaced when told changes.
	changed chan struct{}
}

type busCounters struct {
	envelopes, announcements, unheard, unreadable, unknownVersion, unknownKey, forged, replayed,
	skippedEntries, brokenEntries, overflows, hints, missed, reloads atomic.Uint64
}

// NewBus returns a bus for a notify channel. keys returns all keys that
// publishers may sign with; it is called when an envelope cannot be verified, at
// most once a second. logger may be nil.
func NewBus(l *Listener, notifyChannel string, keys func(context.Context) ([]Key, error), logger *slog.Logger) *Bus {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Bus{
		listener:      l,
		notifyChannel: notifyChannel,
		loadKeys:      keys,
		logger:        logger,
		inbox:         newInbox(),
		authenticator: NewAuthenticator(),
		assembler:     newAssembler(),
		overflowLogs:  throttle{burst: 1},
		changed:       make(chan struct{}),
	}
}

// Run passes announcements to sink until ctx ends, and then returns nil. It may
// be called once.
func (b *Bus) Run(ctx context.Context, sink Sink) error {
	b.inbox.open = func(i *item) bool { return b.open(sink, i) }
	detach, err := b.listener.Attach(b.notifyChannel, b.inbox)
	if err != nil {
		return err
	}
	defer b.tell(backlog.Listening{})
	defer detach()
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		b.inbox.rest()
		select {
		case <-ctx.Done():
			return nil
		case <-b.inbox.ready:
		case <-wake.C:
		}
		items := b.inbox.take()
		b.pass(ctx, sink, items)
		if len(items) == 0 {
			b.giveUpParts() // after a slow sink the rest may be in the inbox
		}
		if wait := b.hint(sink); wait > 0 {
			wake.Reset(wait)
		}
	}
}

// Ensure returns the current listening once it includes the bus's notify channel
// and the sink knows of it. It waits until ctx ends, or for the listener's
// EnsureTimeout, and then fails with ErrNotListening. Run must be running.
func (b *Bus) Ensure(ctx context.Context) (backlog.Listening, error) {
	return b.listener.await(ctx, b.current)
}

// Current returns the current listening; Number is 0 if there is none, or the
// sink does not know of it yet.
func (b *Bus) Current() backlog.Listening {
	current, _ := b.current()
	return current
}

// Stats returns the bus's counters.
func (b *Bus) Stats() BusStats {
	c := &b.counters
	return BusStats{
		Envelopes: c.envelopes.Load(), Announcements: c.announcements.Load(), Unheard: c.unheard.Load(),
		Unreadable: c.unreadable.Load(), UnknownVersion: c.unknownVersion.Load(), UnknownKey: c.unknownKey.Load(),
		Forged: c.forged.Load(), Replayed: c.replayed.Load(),
		SkippedEntries: c.skippedEntries.Load(), BrokenEntries: c.brokenEntries.Load(),
		Overflows: c.overflows.Load(), Hints: c.hints.Load(), Missed: c.missed.Load(), Reloads: c.reloads.Load(),
	}
}

// current returns what the listener and the sink agree on, and what is closed
// when the sink is told something else.
func (b *Bus) current() (backlog.Listening, <-chan struct{}) {
	b.mu.Lock()
	told, changed := b.told, b.changed
	b.mu.Unlock()
	if told != b.listener.onChannel(b.notifyChannel) {
		return backlog.Listening{}, changed
	}
	return told, changed
}

func (b *Bus) tell(l backlog.Listening) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = l
	close(b.changed)
	b.changed = make(chan struct{})
}

// pass hands items to the sink in their order, announcements together as far as
// nothing stands between them.
func (b *Bus) pass(ctx context.Context, sink Sink, items []item) {
	var pending []backlog.Announcement
	flush := func() {
		if len(pending) > 0 {
			sink.Announce(pending)
			pending = nil // the sink owns it
		}
	}
	for _, i := range items {
		if i.kind != itemNotification {
			flush()
			b.passEvent(ctx, sink, i)
			continue
		}
		announcements := b.judge(ctx, sink, i)
		if b.missed.now() {
			flush()
			b.miss(sink)
		}
		if pending = append(pending, announcements...); len(pending) >= maxPassed {
			flush()
		}
	}
	flush()
}

func (b *Bus) passEvent(ctx context.Context, sink Sink, i item) {
	switch i.kind {
	case itemListening:
		b.authenticator.Connected(i.connected)
		b.missed.due = false // the new listening says as much
		sink.Listening(i.connected.Listening)
		b.tell(i.connected.Listening)
		if !b.authenticator.HasKeys() {
			b.reload(ctx) // before the first frame waits for it
		}
	case itemLost:
		b.tell(backlog.Listening{})
		// The rest does not come. The next listening says what that means.
		b.counters.brokenEntries.Add(uint64(b.assembler.interrupt()))
		sink.Lost(i.err)
	case itemOverflow:
		b.counters.overflows.Add(1)
		b.overflowLogs.log(b.logger, slog.LevelWarn, "too many notifications waited; they were dropped, and the streams are read again", "notify_channel", b.notifyChannel)
		b.broke(b.assembler.interrupt())
		b.mayHaveMissed()
		if b.missed.now() {
			b.miss(sink) // before what was notified after
		}
	}
}

// open judges a notification on the goroutine that received it, and reports whether
// nothing is left to do, since nobody hears what it announces. It waits for nothing:
// what takes keys, or is to be told, is left to Run's goroutine.
func (b *Bus) open(sink Sink, i *item) (done bool) {
	envelope, err := b.authenticator.open(i.notification, sink.Hears)
	if err == nil && b.assembler.next == 0 && envelope.tellsNothing() {
		b.count(&envelope)
		return true
	}
	i.verdict = &verdict{envelope, err}
	return false
}

// tellsNothing reports whether nobody hears what an envelope announces.
func (e *Envelope) tellsNothing() bool {
	return len(e.Announcements) == 0 && len(e.Parts) == 0 && !e.Hint && e.Skipped == 0
}

func (b *Bus) count(e *Envelope) {
	b.counters.envelopes.Add(1)
	b.counters.announcements.Add(uint64(len(e.Announcements) + e.Unheard))
	b.counters.unheard.Add(uint64(e.Unheard))
}

// judge returns the announcements of a notification that are heard, none if it is
// refused.
func (b *Bus) judge(ctx context.Context, sink Sink, i item) []backlog.Announcement {
	n := i.notification
	if i.verdict == nil {
		i.verdict = &verdict{}
		i.verdict.envelope, i.verdict.err = b.authenticator.open(n, sink.Hears)
	}
	envelope, err := i.verdict.envelope, i.verdict.err
	// Known keys may have been replaced under their ids, in a schema made anew.
	if errors.Is(err, ErrUnknownKey) || errors.Is(err, ErrForged) && !errors.Is(err, errOtherProcess) {
		if b.reload(ctx) {
			envelope, err = b.authenticator.open(n, sink.Hears)
		} else {
			b.mayHaveMissed() // it may be signed with a key that could not be got
		}
	}
	if err != nil {
		b.refuse(n, err)
		return nil
	}
	b.broke(b.assembler.join(&envelope, time.Now()))
	b.count(&envelope)
	b.counters.skippedEntries.Add(uint64(envelope.Skipped))
	if envelope.Hint {
		b.hints.due = true
	}
	if envelope.Skipped > 0 {
		b.mayHaveMissed() // what is unknown may be an ephemeral frame
	}
	return envelope.Announcements
}

// giveUpParts gives up an entry whose next part is overdue.
func (b *Bus) giveUpParts() {
	if left, waiting := b.assembler.wait(time.Now()); waiting && left <= 0 {
		b.broke(b.assembler.interrupt())
	}
}

// broke counts split entries that are lost.
func (b *Bus) broke(entries int) {
	if entries == 0 {
		return
	}
	b.counters.brokenEntries.Add(uint64(entries))
	b.mayHaveMissed()
	b.log("dropped what was announced in parts: not all of them came, or they made nothing that can be read")
}

func (b *Bus) mayHaveMissed() { b.missed.due = true }

// reload gets the keys unless they were got a moment ago. What arrives meanwhile
// is held in the inbox, in order.
func (b *Bus) reload(ctx context.Context) bool {
	if !b.lastReload.IsZero() && time.Since(b.lastReload) < reloadInterval {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	keys, err := b.loadKeys(ctx)
	b.lastReload = time.Now()
	b.counters.reloads.Add(1)
	if err != nil {
		b.log("could not load the keys of announcements", "error", err)
		return false
	}
	b.authenticator.SetKeys(keys)
	return true
}

// refuse counts a notification that is not an authentic envelope, and takes it
// as a hint.
func (b *Bus) refuse(n Notification, err error) {
	c := &b.counters
	switch {
	case errors.Is(err, ErrUnknownVersion):
		c.unknownVersion.Add(1)
	case errors.Is(err, ErrUnknownKey):
		c.unknownKey.Add(1)
	case errors.Is(err, ErrForged):
		c.forged.Add(1)
	case errors.Is(err, ErrReplayed):
		c.replayed.Add(1)
	default:
		c.unreadable.Add(1)
	}
	b.hints.due = true
	if errors.Is(err, ErrUnknownVersion) || errors.Is(err, errUnreadableEntry) || errors.Is(err, errForgotten) {
		b.mayHaveMissed()
	}
	b.log(fmt.Sprintf("refused a notification: %v", err), "pid", n.PID, "bytes", len(n.Payload))
}

func (b *Bus) log(message string, attributes ...any) {
	b.logs.log(b.logger, slog.LevelWarn, message, append(attributes, "notify_channel", b.notifyChannel)...)
}

// hint tells the sink what is due. It returns after how long it wants to be called
// again, 0 if nothing waits.
func (b *Bus) hint(sink Sink) time.Duration {
	if b.missed.now() {
		b.miss(sink)
	}
	if b.hints.now() {
		b.hints.done()
		b.counters.hints.Add(1)
		sink.Hint()
	}
	var wait time.Duration
	sooner := func(d time.Duration) {
		if d = max(d, time.Millisecond); wait == 0 || d < wait {
			wait = d
		}
	}
	for _, p := range []*pace{&b.missed, &b.hints} {
		if p.due {
			sooner(p.wait())
		}
	}
	if left, waiting := b.assembler.wait(time.Now()); waiting {
		sooner(left)
	}
	return wait
}

// miss calls Sink.Missed, which is a hint too.
func (b *Bus) miss(sink Sink) {
	b.missed.done()
	b.hints.done()
	b.counters.missed.Add(1)
	sink.Missed()
}
