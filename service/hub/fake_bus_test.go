package hub

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/fanfare-io/fanfare/backlog"
)

// fakeBus delivers announcements as a test wants them: at once, later, twice, in
// another order, or never.
type fakeBus struct {
	store *fakeStore
	sink  Sink

	mu        sync.Mutex
	listening backlog.Listening
	last      uint64
	changed   chan struct{}
	holding   bool
	queued    []backlog.Announcement
	// filter, if not nil, says how often an announcement is delivered. One of an
	// ephemeral frame is never doubled, and if it is lost the sink is told.
	filter func() int
	// lossy is true while lost ephemeral frames are not told of.
	lossy bool
	// outages counts what may have cost ephemeral frames.
	outages atomic.Int64
}

func newFakeBus(store *fakeStore) *fakeBus {
	return &fakeBus{store: store, changed: make(chan struct{})}
}

func (b *fakeBus) Ensure(ctx context.Context) (backlog.Listening, error) {
	for {
		b.mu.Lock()
		l, changed := b.listening, b.changed
		b.mu.Unlock()
		if l.Number != 0 {
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return backlog.Listening{}, ctx.Err()
		}
	}
}

func (b *fakeBus) Current() backlog.Listening {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listening
}

func (b *fakeBus) changeLocked(l backlog.Listening) {
	b.listening = l
	close(b.changed)
	b.changed = make(chan struct{})
}

// listen begins a new listening.
func (b *fakeBus) listen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listenLocked()
}

func (b *fakeBus) listenLocked() {
	b.store.mu.Lock()
	origin := b.store.origin
	b.store.mu.Unlock()
	b.last++
	l := backlog.Listening{Number: b.last, Origin: origin}
	b.changeLocked(l)
	b.sink.Listening(l)
}

// kill ends the listening: what is queued is lost.
func (b *fakeBus) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outages.Add(1)
	b.changeLocked(backlog.Listening{})
	b.queued = nil
	b.sink.Lost(errors.New("killed"))
}

// commit makes a change to the store and announces it, in one order.
func (b *fakeBus) commit(change func() []backlog.Announcement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range change() {
		b.announceLocked(a)
	}
}

func (b *fakeBus) announceLocked(a backlog.Announcement) {
	if b.listening.Number == 0 {
		return
	}
	times := 1
	if b.filter != nil {
		times = b.filter()
	}
	if a.Kind == backlog.AnnounceEphemeral {
		if times == 0 && !b.lossy {
			b.outages.Add(1)
			b.sink.Missed()
		}
		times = min(times, 1)
	}
	for range times {
		b.queued = append(b.queued, a)
	}
	if !b.holding {
		b.flushLocked()
	}
}

// releaseFirst delivers the first n of what is kept back.
func (b *fakeBus) releaseFirst(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.queued[:n:n]
	b.queued = b.queued[n:]
	b.sink.Announce(first)
}

func (b *fakeBus) flushLocked() {
	if len(b.queued) > 0 {
		b.sink.Announce(b.queued)
		b.queued = nil
	}
}

// hold keeps announcements back until release.
func (b *fakeBus) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holding = true
}

// release delivers what was kept back, in another order if shuffled.
func (b *fakeBus) release(shuffled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holding = false
	if shuffled {
		rand.Shuffle(len(b.queued), func(i, j int) { b.queued[i], b.queued[j] = b.queued[j], b.queued[i] })
	}
	b.flushLocked()
}

// forge announces what nobody committed.
func (b *fakeBus) forge(a backlog.Announcement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sink.Announce([]backlog.Announcement{a})
}

func (b *fakeBus) setFilter(filter func() int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter = filter
}

func (b *fakeBus) publish(name backlog.StreamName, payload string) backlog.Position {
	var p backlog.Position
	b.commit(func() []backlog.Announcement {
		a := b.store.publish(name, payload)
		p = a.Frame.Position
		return []backlog.Announcement{a}
	})
	return p
}

// publishEphemeral returns the position that the frame follows.
func (b *fakeBus) publishEphemeral(name backlog.StreamName, payload string) backlog.Position {
	var p backlog.Position
	b.commit(func() []backlog.Announcement {
		a := b.store.publishEphemeral(name, payload)
		p = a.Frame.Position
		return []backlog.Announcement{a}
	})
	return p
}

func (b *fakeBus) publishPointer(name backlog.StreamName, payload string) {
	b.commit(func() []backlog.Announcement {
		return []backlog.Announcement{pointerTo(b.store.publish(name, payload))}
	})
}

func (b *fakeBus) close(name backlog.StreamName) backlog.Position {
	var p backlog.Position
	b.commit(func() []backlog.Announcement {
		a, ok := b.store.close(name)
		if !ok {
			return nil
		}
		p = a.Frame.Position
		return []backlog.Announcement{a}
	})
	return p
}
