package hub

import (
	"context"
	"math"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var _ Sink = (*Hub)(nil)

// hintPause is the least time between two refreshes of everything because of
// hints: whoever can NOTIFY can cause hints.
const hintPause = time.Second

// Listening implements [Sink]. Every resident stream is refreshed.
func (h *Hub) Listening(l backlog.Listening) {
	// First: a load that counts under this listening knows of the outage.
	h.outages.Add(1)
	// Before the streams are gone through: a load that finishes in between either
	// sees this number and is repeated, or has a tail that is refreshed.
	h.listened.Store(l.Number)
	h.origin.Store(l.Origin)
	h.away.Store(false)
	h.changeStatus(true)
	signal(h.relistened)
}

// Lost implements [Sink]. Subscriptions stay, and what they miss is read when
// there is a new listening; loads in flight find that theirs is not current.
func (h *Hub) Lost(error) {
	h.changeStatus(false)
	// First: whoever begins to wait for announcements from now on finds out, and
	// those who do already are found.
	h.away.Store(true)
	signal(h.lost)
}

// Hears implements [Sink]. A stream is heard before it is read for its first
// subscription: what is announced of it before that was committed before.
func (h *Hub) Hears(stream backlog.StreamName) bool { return h.resident(stream) != nil }

// Announce implements [Sink].
func (h *Hub) Announce(announcements []backlog.Announcement) {
	at := moment{origin: h.origin.Load(), outages: h.outages.Load()}
	for i := range announcements {
		a := &announcements[i]
		if s := h.resident(a.Stream); s != nil {
			s.announce(a, at, &h.sinkHooks)
		}
	}
	// Once for all: a subscription finds all new frames at once.
	h.sinkHooks.call()
}

// Hint implements [Sink].
func (h *Hub) Hint() {
	h.counts.hints.Add(1)
	signal(h.hinted)
}

// Missed implements [Sink].
func (h *Hub) Missed() {
	// Before the refreshes, which then know of it.
	h.outages.Add(1)
	h.Hint()
}

// runScheduler queues refreshes of all streams after a new listening and after
// a hint, and has every stream checked once in the re-read interval. It also has
// changes of the status told.
func (h *Hub) runScheduler(ctx context.Context) error {
	reread := reread{interval: h.cfg.ReReadInterval, chunk: h.cfg.RoundStreams}
	timer := time.NewTimer(reread.interval)
	defer timer.Stop()
	hinted := h.hinted
	var pauseOver, look <-chan time.Time
	var watched []*stream
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.relistened:
			h.refreshAll()
		case <-hinted:
			h.refreshAll()
			hinted, pauseOver = nil, time.After(hintPause)
		case <-pauseOver:
			hinted, pauseOver = h.hinted, nil
		case <-h.statusChanged:
			h.wakeAll()
		case <-h.lost:
			for _, s := range h.residents() {
				s.giveUpPlacements()
			}
		case <-h.watched.filled:
			watched = append(watched, h.watched.poll(math.MaxInt)...)
			if look == nil {
				look = time.After(leftOutStep)
			}
		case <-look:
			var overdue []*stream
			look = nil
			if overdue, watched = overdueOf(watched); len(watched) > 0 {
				look = time.After(leftOutStep)
			}
			h.queueRefreshes(overdue)
		case <-timer.C:
			streams, next := reread.next(h.residents)
			h.check(streams)
			timer.Reset(next)
		}
	}
}

func (h *Hub) refreshAll() { h.queueRefreshes(h.residents()) }

// queueRefreshes queues refreshes of streams together, so that they share
// rounds.
func (h *Hub) queueRefreshes(streams []*stream) {
	var queued []*stream
	for _, s := range streams {
		if s.wantRefresh() {
			queued = append(queued, s)
		}
	}
	h.refreshes.push(queued...)
}
