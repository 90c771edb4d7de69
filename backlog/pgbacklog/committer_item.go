package pgbacklog

import (
	"encoding/json"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// itemState says who may answer an item.
type itemState uint8

const (
	itemNew      itemState = iota // not queued yet: submit
	itemWaiting                   // in a list: whoever removes it
	itemInFlight                  // in a transaction: whoever settles it, or its caller's context
	itemAnswered                  // nobody
)

// itemBytes is about what an item takes beside its content.
const itemBytes = 512

// An item is one publication on its way into the database, or a call that waits
// in a lane.
type item struct {
	publication backlog.Publication
	// call is nil for a publication.
	call *call
	// headers are the publication's as JSON; nil if it has none.
	headers *string
	// expected and expectedEpoch are what PostgreSQL is told of the expectation.
	expected, expectedEpoch *int64
	size                    int64
	// deadline is the caller's, zero if it has none. It is set late for an item
	// that became unresolved.
	deadline time.Time
	done     func(backlog.Outcome, error)
	// gone is the error of the caller's context, and stop ends the watch over it; nil
	// if it cannot end.
	gone func() error
	stop func() bool

	// The committer's mu guards the rest until the item is answered.

	state itemState
	// unresolved is true after a transaction of unknown outcome: the item may be
	// in the database already, and is retried under its key.
	unresolved bool
	// attempts counts those of a call. Whoever has it in flight may change it.
	attempts int
	// waited is true after an attempt that waited for a lock in vain.
	waited     bool
	lane       *lane // nil in the batch
	list       *itemList
	prev, next *item
	outcome    backlog.Outcome
	err        error
}

func newItem(p backlog.Publication, done func(backlog.Outcome, error)) *item {
	it := &item{publication: p, done: done, size: int64(p.Size())}
	if len(p.Headers) > 0 {
		// Maps of strings always marshal.
		b, _ := json.Marshal(p.Headers)
		s := string(b)
		it.headers = &s
	}
	if e := p.Expected; e != nil {
		sequence := int64(e.Sequence)
		it.expected = &sequence
		if e.Epoch != nil {
			epoch := int64(*e.Epoch)
			it.expectedEpoch = &epoch
		}
	}
	return it
}

// key is the idempotency key, nil if there is none.
func (it *item) key() *string {
	if it.publication.IdempotencyKey == "" {
		return nil
	}
	return &it.publication.IdempotencyKey
}

// payload is what PostgreSQL is told, for which nil would be null.
func (it *item) payload() []byte {
	if it.publication.Payload == nil {
		return []byte{}
	}
	return it.publication.Payload
}

// repeatable reports whether it may be sent again after an unknown outcome.
func (it *item) repeatable() bool {
	if it.call != nil {
		return it.call.repeatable
	}
	return it.publication.IdempotencyKey != ""
}

// certain returns err, which says that nothing was stored, unless an earlier
// transaction may have stored the item.
func (it *item) certain(err error) error {
	if it.unresolved {
		return backlog.ErrOutcomeUnknown
	}
	return err
}

// outOfTime reports whether its deadline is too near for an attempt.
func (it *item) outOfTime(now time.Time) bool {
	if it.deadline.IsZero() {
		return false
	}
	least := minAttemptTime
	if it.waited {
		least = minRetryTime
	}
	return it.deadline.Sub(now) < least
}

// answers are items whose callers are to be told, outside the lock.
type answers []*item

func (a answers) deliver() {
	for _, it := range a {
		if it.stop != nil {
			it.stop()
		}
		it.done(it.outcome, it.err)
	}
}

// itemList is a doubly linked list, so that a caller who leaves costs nothing
// and leaves nothing behind.
type itemList struct {
	front, back *item
	len         int
}

func (l *itemList) pushBack(it *item) {
	it.list, it.prev, it.next = l, l.back, nil
	if l.back == nil {
		l.front = it
	} else {
		l.back.next = it
	}
	l.back = it
	l.len++
}

func (l *itemList) pushFront(it *item) {
	it.list, it.prev, it.next = l, nil, l.front
	if l.front == nil {
		l.back = it
	} else {
		l.front.prev = it
	}
	l.front = it
	l.len++
}

// hasCall reports whether a call is among the items.
func (l *itemList) hasCall() bool {
	for it := l.front; it != nil; it = it.next {
		if it.call != nil {
			return true
		}
	}
	return false
}

func (l *itemList) remove(it *item) {
	if it.prev == nil {
		l.front = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.back = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.list, it.prev, it.next = nil, nil, nil
	l.len--
}
