package listener

import "sync"

// Bounds of an inbox.
const (
	maxHeldNotifications = 16384
	maxHeldBytes         = 16 << 20
)

// inbox holds what happened on a notify channel until the Bus gets to it. It is
// a Consumer: adding never blocks. When it is full it drops all notifications it
// holds and remembers that it did.
//
// While nothing waits, and the Bus works on nothing, a notification is judged as it
// is added, by the listener's goroutine: most are of nobody's concern here, and
// waking another goroutine to find that out costs more than finding out.
type inbox struct {
	// ready has one element while there may be something to take.
	ready chan struct{}
	// open judges a notification that nothing is before. It reports whether that was
	// all there is to do, and must not block. It is called with mu held; nil before
	// the Bus runs.
	open func(*item) (done bool)

	// mu guards the fields below.
	mu            sync.Mutex
	items         []item
	notifications int
	bytes         int
	// resting is true while the Bus works on nothing.
	resting bool
}

// item is one of: a notification, a new connection, a loss, dropped
// notifications.
type item struct {
	kind         itemKind
	notification Notification
	verdict      *verdict // nil if the notification has not been judged
	connected    Connected
	err          error
}

// verdict is what judging a notification came to.
type verdict struct {
	envelope Envelope
	err      error
}

type itemKind uint8

const (
	itemNotification itemKind = iota
	itemListening
	itemLost
	itemOverflow
)

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

// Listening implements Consumer.
func (b *inbox) Listening(c Connected) { b.add(item{kind: itemListening, connected: c}) }

// Lost implements Consumer.
func (b *inbox) Lost(err error) { b.add(item{kind: itemLost, err: err}) }

// Notify implements Consumer.
func (b *inbox) Notify(n Notification) { b.add(item{kind: itemNotification, notification: n}) }

// rest lets notifications be judged as they are added, until the next take.
func (b *inbox) rest() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resting = true
}

func (b *inbox) add(i item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i.kind == itemNotification {
		if b.resting && len(b.items) == 0 && b.open != nil && b.open(&i) {
			return
		}
		if b.notifications >= maxHeldNotifications || b.bytes+len(i.notification.Payload) > maxHeldBytes {
			b.overflowLocked()
		}
		b.notifications++
		b.bytes += len(i.notification.Payload)
	}
	b.items = append(b.items, i)
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// overflowLocked drops the notifications; what else happened stays, in order.
func (b *inbox) overflowLocked() {
	kept := make([]item, 0, 64)
	for _, i := range b.items {
		if i.kind == itemListening || i.kind == itemLost {
			kept = append(kept, i)
		}
	}
	b.items = append(kept, item{kind: itemOverflow})
	b.notifications, b.bytes = 0, 0
}

// take returns everything held. Until the next rest nothing is judged but by whoever
// took it.
func (b *inbox) take() []item {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items, b.notifications, b.bytes, b.resting = nil, 0, 0, false
	return items
}
