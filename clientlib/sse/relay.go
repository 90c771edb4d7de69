package sse

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/fanfare-io/fanfare/clientlib"
)

const (
	// relayHistory is how many frames a relay begins with, so that browsers that come
	// back to an edge that is new find their place in the ring. Beginning with the whole
	// backlog would have each stream's first browser wait for all of it.
	relayHistory = 256
	// relayReadAhead is small: a relay never waits, so nothing needs to wait for it.
	relayReadAhead = 64 << 10
)

// relay subscribes to one stream for all who watch it here.
type relay struct {
	handler *Handler
	stream  clientlib.Stream

	// users, linger and cancel are guarded by the handler's mutex: how many hold it, what
	// ends it when nobody does, and how.
	users  int
	linger *time.Timer
	cancel context.CancelFunc

	// waits is true if the relay is in the handler's crowd, whose mutex guards it.
	waits bool

	mu   sync.RWMutex // guards what follows
	ring ring
	// wanted are the forms that somebody has asked for.
	wanted [forms]bool
	// begun is true once position is known.
	begun bool
	// inForce is true between Subscribed and Interrupted, caughtUp once the backlog has
	// been delivered, and listening while the server hears of new frames.
	inForce, caughtUp, listening bool
	// position is after the newest entry.
	position clientlib.Position
	// oldest is what the server last said of it.
	oldest uint64
	// closedHead is the last position of the numbering that is closed, while a relay
	// waits for the next; zero otherwise.
	closedHead clientlib.Position
	// ephemeral is true once the stream is known to carry ephemeral frames. lapses is how
	// often the subscription was renewed before: each time ephemeral frames may have been
	// missed of which the client could not know. What it knows of, it tells as a Gap.
	ephemeral bool
	lapses    int
	// ended is true when nothing more comes: the stream was closed, of which closed tells,
	// or err is why.
	ended  bool
	closed []byte
	err    error
	// reads are the pages that are wanted, by where they begin.
	reads map[start]*reads
	// touched is when an entry came last.
	touched time.Time

	// watching guards watchers, which are woken when something came. It is apart from
	// mu, so that those that wake up do not wait for all to be woken.
	watching sync.Mutex
	watchers []*cursor
}

// run follows the stream until ctx ends or nothing more comes.
func (r *relay) run(ctx context.Context) {
	s := r.handler.client.Subscribe(ctx, r.stream, clientlib.Last(relayHistory), clientlib.WithReadAhead(relayReadAhead))
	defer func() { _ = s.Close() }()
	for {
		e, err := s.Next(ctx)
		if err != nil {
			r.end(ctx, err)
			return
		}
		r.take(e)
		r.wake()
		r.handler.boundRelays()
	}
}

// end notes that nothing more comes.
func (r *relay) end(ctx context.Context, err error) {
	if errors.Is(err, io.EOF) {
		err = nil
	} else {
		r.handler.log.tell(ctx, slog.LevelError, "cannot follow a stream for browsers", err, "stream", r.stream.String())
	}
	unused := r.handler.forget(r)
	r.mu.Lock()
	r.ended, r.err, r.inForce = true, err, false
	r.mu.Unlock()
	if unused {
		r.empty()
	}
	r.wake()
}

// take takes in what the subscription yields.
func (r *relay) take(event clientlib.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := event.(type) {
	case *clientlib.Frame:
		r.takeFrameLocked(e)
	case *clientlib.Subscribed:
		r.takeSubscribedLocked(e)
	case *clientlib.CaughtUp:
		r.caughtUp = true
	case *clientlib.Gap:
		r.takeGapLocked(e)
	case *clientlib.Status:
		r.listenLocked(e.Listening)
	case *clientlib.Interrupted:
		r.inForce, r.caughtUp = false, false
		r.listenLocked(false)
	case *clientlib.Closed:
		r.closed = closedBlock(r.stream, e.Last)
	}
}

func (r *relay) takeFrameLocked(f *clientlib.Frame) {
	if f.Ephemeral {
		r.ephemeral = true
	} else {
		r.position, r.closedHead = f.Position, clientlib.Position{}
	}
	r.addLocked(newEntry(r.stream, f, r.position, r.wanted))
}

func (r *relay) takeSubscribedLocked(e *clientlib.Subscribed) {
	r.ephemeral = r.ephemeral || e.Ephemeral
	switch {
	case !r.begun:
		r.begun = true
		r.moveLocked(e.ResumeAfter, e.Head)
	case !r.ephemeral:
		r.lapses++
	}
	r.inForce, r.oldest = true, e.Oldest
	r.listenLocked(true)
}

func (r *relay) takeGapLocked(g *clientlib.Gap) {
	r.oldest = g.Oldest
	if g.Reason == clientlib.EphemeralMaybeMissed {
		r.ephemeral = true
		r.addLocked(newNotice(missed, r.position, nil))
		return
	}
	r.caughtUp = false
	r.addLocked(newNotice(loss, g.ResumeAfter, gapBlock(r.stream, g)))
	r.moveLocked(g.ResumeAfter, g.Head)
}

// moveLocked begins a numbering, or a part of it. At 0-0 the next frame is the first of
// the next numbering, and head is that of the last.
func (r *relay) moveLocked(to, head clientlib.Position) {
	r.position, r.closedHead = to, clientlib.Position{}
	if to.IsZero() {
		r.closedHead = head
	}
	r.ring.restart(to, !r.closedHead.IsZero())
}

// listenLocked tells of a change. What the server has not told yet is no change.
func (r *relay) listenLocked(listening bool) {
	if r.listening == listening {
		return
	}
	r.listening = listening
	if r.ring.end > 0 || !listening {
		r.addLocked(newNotice(status, r.position, statusBlock(r.stream, listening)))
	}
}

func (r *relay) addLocked(e *entry) {
	before := r.ring.bytes
	r.ring.add(e)
	r.touched = time.Now()
	r.trimLocked(before)
}

// trimLocked bounds the ring, which had so many bytes before it grew.
func (r *relay) trimLocked(before int) {
	r.ring.trim(r.handler.config.RelayBytes)
	r.handler.relayBytes.Add(int64(r.ring.bytes - before))
}

// empty drops what is kept, and returns how much that was.
func (r *relay) empty() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes := int64(r.ring.bytes)
	r.ring.empty()
	r.handler.relayBytes.Add(-bytes)
	return bytes
}

// want has entries encoded in a form from now on.
func (r *relay) want(as form) {
	if r.encode(as) {
		r.handler.boundRelays()
	}
}

// encode reports whether the form is a new one.
func (r *relay) encode(as form) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wanted[as] {
		return false
	}
	r.wanted[as] = true
	before := r.ring.bytes
	for _, e := range r.ring.entries {
		r.ring.bytes += e.encode(r.stream, as)
	}
	r.trimLocked(before)
	return true
}

// readyLocked reports whether a browser that comes now gets all that commits from now on.
func (r *relay) readyLocked() bool { return r.inForce && r.listening }

// holds reports whether a position that a server just took is in the ring.
func (r *relay) holds(p clientlib.Position) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.ring.find(p, true)
	return ok
}

// watch has a cursor woken from now on.
func (r *relay) watch(c *cursor) {
	r.watching.Lock()
	defer r.watching.Unlock()
	c.watcher = len(r.watchers)
	r.watchers = append(r.watchers, c)
}

func (r *relay) unwatch(c *cursor) {
	r.watching.Lock()
	defer r.watching.Unlock()
	last := len(r.watchers) - 1
	moved := r.watchers[last]
	r.watchers[c.watcher], moved.watcher = moved, c.watcher
	r.watchers[last] = nil
	r.watchers = r.watchers[:last]
}

func (r *relay) wake() {
	r.watching.Lock()
	defer r.watching.Unlock()
	for _, c := range r.watchers {
		c.wake()
	}
}
