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
	// hintInterval is the least time between two hints: each makes the hub read
	// the heads of all its streams, and anybody who may NOTIFY can cause one.
	hintInterval = time.Second
	// reloadInterval is the least time between two reloads of the keys. For the
	// same reason.
	reloadInterval = time.Second
	// reloadTimeout bounds a reload; announcements wait for it.
	reloadTimeout = 2 * time.Second
	// maxPassed is about how many announcements go to the sink at once.
	maxPassed = 1024
)

// Sink is what a Bus calls: the hub. Its methods are called by one goroutine at
// a time and do not block on a store or a consumer.
type Sink interface {
	// Listening says that a new listening is active. Announcements since the one
	// before may have been lost.
	Listening(l backlog.Listening)
	// Lost says that the current listening has ended.
	Lost(err error)
	// Announce delivers announcements in the order of commit. The sink owns them.
	Announce(announcements []backlog.Announcement)
	// Hint says that something may have been announced that could not be read or
	// is not authentic, or that bounds of streams were changed. It comes at most
	// once a second.
	Hint()
}

// BusStats counts what a Bus has seen.
type BusStats struct {
	// Envelopes were authentic, and carried Announcements.
	Envelopes, Announcements uint64
	// Refused notifications, by reason.
	Unreadable, UnknownVersion, UnknownKey, Forged, Replayed uint64
	// SkippedEntries of authentic envelopes are of a kind this program does not
	// know.
	SkippedEntries uint64
	// Overflows counts how often notifications that waited were dropped because
	// they were too many.
	Overflows uint64
	// Hints that were given, and Reloads of the keys.
	Hints, Reloads uint64
}

// Bus turns the notifications of one notify channel into announcements: it
// judges, reads and passes on. It works in a goroutine of its own, so that
// neither a slow sink nor a reload of the keys holds up the listener.
type Bus struct {
	listener      *Listener
	notifyChannel string
	loadKeys      func(context.Context) ([]Key, error)
	logger        *slog.Logger
	inbox         *inbox
	counters      busCounters

	// Run's goroutine alone uses these.
	authenticator *Authenticator
	logs          throttle
	lastReload    time.Time
	lastHint      time.Time
	hintDue       bool

	// mu guards the fields below.
	mu sync.Mutex
	// told is the listening that the sink knows of.
	told backlog.Listening
	// changed is closed and replaced when told changes.
	changed chan struct{}
}

type busCounters struct {
	envelopes, announcements, unreadable, unknownVersion, unknownKey, forged, replayed,
	skippedEntries, overflows, hints, reloads atomic.Uint64
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
		changed:       make(chan struct{}),
	}
}

// Run passes announcements to sink until ctx ends, and then returns nil. It may
// be called once.
func (b *Bus) Run(ctx context.Context, sink Sink) error {
	detach, err := b.listener.Attach(b.notifyChannel, b.inbox)
	if err != nil {
		return err
	}
	defer b.tell(backlog.Listening{})
	defer detach()
	hint := time.NewTimer(0)
	defer hint.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.inbox.ready:
			b.pass(ctx, sink, b.inbox.take())
		case <-hint.C:
		}
		if wait := b.hint(sink); wait > 0 {
			hint.Reset(wait)
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
		Envelopes: c.envelopes.Load(), Announcements: c.announcements.Load(),
		Unreadable: c.unreadable.Load(), UnknownVersion: c.unknownVersion.Load(), UnknownKey: c.unknownKey.Load(),
		Forged: c.forged.Load(), Replayed: c.replayed.Load(), SkippedEntries: c.skippedEntries.Load(),
		Overflows: c.overflows.Load(), Hints: c.hints.Load(), Reloads: c.reloads.Load(),
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
		if i.kind == itemNotification {
			pending = append(pending, b.judge(ctx, i.notification)...)
			if len(pending) >= maxPassed {
				flush()
			}
			continue
		}
		flush()
		b.passEvent(ctx, sink, i)
	}
	flush()
}

func (b *Bus) passEvent(ctx context.Context, sink Sink, i item) {
	switch i.kind {
	case itemListening:
		b.authenticator.Connected(i.connected)
		sink.Listening(i.connected.Listening)
		b.tell(i.connected.Listening)
		if !b.authenticator.HasKeys() {
			b.reload(ctx) // before the first frame waits for it
		}
	case itemLost:
		b.tell(backlog.Listening{})
		sink.Lost(i.err)
	case itemOverflow:
		b.counters.overflows.Add(1)
		b.logger.Warn("too many notifications waited; they were dropped, and the streams are read again", "notify_channel", b.notifyChannel)
		b.hintDue = true
	}
}

// judge returns the announcements of a notification, none if it is refused.
func (b *Bus) judge(ctx context.Context, n Notification) []backlog.Announcement {
	envelope, err := b.authenticator.Open(n)
	// Known keys may have been replaced under their ids, in a schema made anew.
	if (errors.Is(err, ErrUnknownKey) || errors.Is(err, ErrForged)) && b.reload(ctx) {
		envelope, err = b.authenticator.Open(n)
	}
	if err != nil {
		b.refuse(n, err)
		return nil
	}
	b.counters.envelopes.Add(1)
	b.counters.announcements.Add(uint64(len(envelope.Announcements)))
	b.counters.skippedEntries.Add(uint64(envelope.Skipped))
	if envelope.Hint || envelope.Skipped > 0 {
		b.hintDue = true
	}
	return envelope.Announcements
}

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
	b.hintDue = true
	b.log(fmt.Sprintf("refused a notification: %v", err), "pid", n.PID, "bytes", len(n.Payload))
}

func (b *Bus) log(message string, attributes ...any) {
	allowed, suppressed := b.logs.allow(time.Now())
	if !allowed {
		return
	}
	if suppressed > 0 {
		attributes = append(attributes, "suppressed", suppressed)
	}
	b.logger.Warn(message, append(attributes, "notify_channel", b.notifyChannel)...)
}

// hint gives a hint that is due, or returns how long it has to wait.
func (b *Bus) hint(sink Sink) time.Duration {
	if !b.hintDue {
		return 0
	}
	if wait := hintInterval - time.Since(b.lastHint); !b.lastHint.IsZero() && wait > 0 {
		return wait
	}
	b.hintDue = false
	b.lastHint = time.Now()
	b.counters.hints.Add(1)
	sink.Hint()
	return 0
}
