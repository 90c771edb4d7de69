package failover

import (
	"slices"
	"sync"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// acks watches whether subscriptions of one call are answered. Only the time counts
// in which the client waits for the hub: one that does not read must not take its own
// rest for the hub's. nil watches nothing.
type acks struct {
	limit   time.Duration
	expired func()
	session bool

	mu sync.Mutex // guards what follows
	// due are the subscriptions that have not been answered, by number; a Subscribe is
	// number 0.
	due map[uint32]struct{}
	// receiving is true while the client waits for a message.
	receiving bool
	// waited is how long it has waited since the last answer, before begun.
	waited time.Duration
	// timer runs while an answer is waited for, since begun; nil if it does not.
	timer *time.Timer
	begun time.Time
}

// newAcks returns nil for a method that subscribes to nothing.
func newAcks(method string, limit time.Duration, expired func()) *acks {
	a := &acks{limit: limit, expired: expired, due: map[uint32]struct{}{}}
	switch method {
	case fanfarev1.FanfareService_Subscribe_FullMethodName:
		a.due[0] = struct{}{}
	case fanfarev1.FanfareService_Session_FullMethodName:
		a.session = true
	default:
		return nil
	}
	return a
}

// sent looks at what was sent.
func (a *acks) sent(m any) {
	request, ok := m.(*fanfarev1.SessionRequest)
	if a == nil || !ok {
		return
	}
	subscribe := request.GetSubscribe()
	if subscribe == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due[subscribe.GetNumber()] = struct{}{}
	a.watchLocked()
}

// waiting says that the client waits for a message, or has one.
func (a *acks) waiting(is bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.receiving = is
	a.watchLocked()
}

// received looks at what was received, and reports whether it says that the hub has
// ended a subscription as too slow.
func (a *acks) received(m any) (evicted bool) {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	response, ok := m.(*fanfarev1.SessionResponse)
	switch {
	case !a.session:
		clear(a.due)
	case ok && isAnswer(response):
		for _, number := range response.GetNumbers() {
			delete(a.due, number)
		}
		evicted = response.GetEnded().GetError().GetReason() == fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER
	default:
		return false
	}
	a.stopLocked()
	a.waited = 0
	a.watchLocked()
	return evicted
}

// isAnswer reports whether a subscription is no longer due after it.
func isAnswer(r *fanfarev1.SessionResponse) bool {
	return slices.Contains([]bool{r.GetSubscribed() != nil, r.GetUnsubscribed() != nil, r.GetEnded() != nil, r.GetClosed() != nil}, true)
}

// watchLocked has the timer run while an answer is due and waited for.
func (a *acks) watchLocked() {
	switch runs := a.timer != nil; {
	case !a.receiving || len(a.due) == 0:
		a.stopLocked()
	case !runs:
		a.begun = time.Now()
		a.timer = time.AfterFunc(a.limit-a.waited, a.expired)
	}
}

func (a *acks) stopLocked() {
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
		a.waited += time.Since(a.begun)
	}
}
