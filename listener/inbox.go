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
type inbox struct {
	// ready has one element while there may be something to take.
	ready chan struct{}

	// mu guards the fields below.
	mu            sync.Mutex
	items         []item
	notifications int
	bytes         int
}

// item is one of: a notification, a new connection, a loss, dropped
// notifications.
type item struct {
	kind         itemKind
	notification Notification
	connected    Connected
	err          error
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

func (b *inbox) add(i item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i.kind == itemNotification {
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

// take returns everything held.
func (b *inbox) take() []item {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items, b.notifications, b.bytes = nil, 0, 0
	return items
}
