package service

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/service/auth"
)

// What an outlet hands to grpc before that has written it. grpc admits 64 KiB for a
// call and then one message of any size; it blocks whoever sends another. A turn must
// not be blocked, so three messages leave room for the fourth, and nothing else is in
// flight with one that is larger than these.
const (
	// maxMessageBytes bounds a message that carries several frames.
	maxMessageBytes = 16 << 10
	maxInFlight     = 4
)

// source says what an outlet sends. Its methods are called with outlet.mu held, but
// for wake hooks of its own, by one goroutine at a time.
type source interface {
	// nextLocked makes outlet.out the next message, unless there is none, and reports
	// whether there is one. It does so even if there is no room: only then it is known
	// that something waits, and how the call ends, if it has.
	nextLocked() bool
	// sentLocked is told that this message has been handed over, and reports whether to
	// ask for another.
	sentLocked(now time.Time) bool
	// beganLocked reports whether the client has been told that the call has begun.
	beganLocked() bool
	// beatLocked makes a heartbeat the next message.
	beatLocked()
	// slowLocked is how the call ends whose client has taken nothing for too long.
	slowLocked() *failure
	// endOf is how the call ends when a send fails.
	endOf(err error) error
	// dropLocked gives up what it has for the client.
	dropLocked()
}

// outlet is the sending side of a streaming call. It has no goroutine: what happens is
// done in turns, which its sender gives it when its source, its client or a timer woke
// it.
type outlet struct {
	server *Server
	stream grpc.ServerStream
	source source
	flight *inFlight
	// done has room for one: how the call ends.
	done chan error

	// woken is true while a turn is coming, ticked if the timer has woken it, and
	// blocked while it waits for what is in flight.
	woken, ticked, blocked atomic.Bool

	mu sync.Mutex // guards what follows
	// ended is set when the call has ended, or its handler is returning: grpc forbids
	// a SendMsg that begins after that.
	ended bool
	// out is the next message if waiting is true, of so many bytes of frames, and final
	// true if it is the last message.
	out     outgoing
	waiting bool
	bytes   int
	final   bool
	// large is true while a message may be in flight that goes alone.
	large bool
	// sentAt is when something was last handed to grpc.
	sentAt time.Time
	// blockedAt is since when the next message waits for what is in flight, which was
	// blockedBy then; zero if it does not.
	blockedAt time.Time
	blockedBy int64
	// partAt is when the call is told to go, zero for never: because of its age, or
	// because the server is draining. parting is how it then ends, and pressing is true
	// if it was for the drain.
	partAt   time.Time
	draining bool
	parting  *failure
	pressing bool
	// timer ticks when the call is to be told to go, or to be ended, at tickAt. It is
	// nil until that is near: most calls need none. Heartbeats are the connection's.
	timer  *time.Timer
	tickAt time.Time
	// caller is whose token the call ends with, the last one's of a session, whose
	// reauthenticate replaces it; nil for nobody's, and for everybody's if the server
	// verifies no tokens. The mutex guards it.
	caller *auth.Identity
	// seat is its place among the outlets of its connection; the outbox guards it.
	seat int
}

// open has the outlet send what its source says, when it is woken.
func (o *outlet) open(s *Server, stream grpc.ServerStream, source source) {
	now := time.Now()
	o.server, o.stream, o.source = s, stream, source
	o.done = make(chan error, 1)
	o.sentAt = now
	o.flight = newInFlight(connectionOf(stream.Context()), o.landed)
	o.out.flight = o.flight
	if s.cfg.Verifier != nil {
		o.caller = auth.FromContext(stream.Context())
	}
	if age := s.ownStreamAge(); age > 0 {
		o.partAt = now.Add(age)
	}
	s.sender.join(o)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setTimerLocked(now)
}

// wait returns how the call ends, when it does.
func (o *outlet) wait() error {
	ending := o.server.ending
	for {
		select {
		case err := <-o.done:
			return err
		case <-o.stream.Context().Done():
			return failureOf(o.stream.Context().Err())
		case <-ending:
			ending = nil
			// GOAWAY must go first.
			o.partAfter(o.server.partingDelay())
		}
	}
}

// close ends it, if it has not ended. No turn sends anything afterwards.
func (o *outlet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endLocked(nil)
}

func (o *outlet) wake() { o.server.sender.wake(o) }

func (o *outlet) tick() {
	o.ticked.Store(true)
	o.wake()
}

// landed is called when nothing is in flight any more.
func (o *outlet) landed() {
	if o.blocked.Load() && o.blocked.Swap(false) {
		o.wake()
	}
}

// partAfter has the call told to go after a time, because the server is draining.
func (o *outlet) partAfter(delay time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	now := time.Now()
	o.partAt, o.draining = now.Add(delay), true
	o.setTimerLocked(now)
}

// turn sends what there is to send, as far as that does not block.
func (o *outlet) turn(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			o.endLocked(panicFailure(p))
		}
	}()
	if o.ticked.Load() && o.ticked.Swap(false) {
		// The tick may have come since now, while others had their turns. Without it
		// what is due would not be, and no other tick would come.
		now = time.Now()
		o.tickLocked(now)
	}
	if o.caller.Expired(now) {
		o.expireLocked(now)
	}
	for !o.ended && o.source.nextLocked() && o.roomLocked(now) {
		if !o.sendLocked(now) {
			return
		}
	}
}

// messageLocked makes a message, or nil for frames that are still to be set, the next
// one.
func (o *outlet) messageLocked(message any) {
	o.out.frames, o.out.message, o.out.numbers, o.bytes = nil, message, nil, 0
	o.waiting = true
}

// framesLocked makes frames the next message.
func (o *outlet) framesLocked(frames encodedFrames) {
	o.messageLocked(nil)
	o.out.frames = frames
	for _, f := range frames {
		o.bytes += len(f)
	}
}

// forgetLocked gives up the next message.
func (o *outlet) forgetLocked() {
	o.waiting, o.out.frames, o.out.message, o.out.numbers = false, nil, nil, nil
}

// roomLocked reports whether the next message can be sent without being blocked. If
// not, there will be a turn when everything in flight has been written.
func (o *outlet) roomLocked(now time.Time) bool {
	inFlight := o.flight.references.Load()
	if inFlight == 0 {
		o.large = false
	}
	if inFlight < o.mostInFlight() {
		return true
	}
	o.blocked.Store(true)
	if o.flight.references.Load() == 0 {
		o.blocked.Store(false)
		return true
	}
	if o.blockedAt.IsZero() {
		o.blockedAt, o.blockedBy = now, inFlight
		o.setTimerLocked(now)
	}
	return false
}

// mostInFlight is how many messages may be in flight with the next one.
func (o *outlet) mostInFlight() int64 {
	if o.large || o.bytes > maxMessageBytes {
		return 1
	}
	return maxInFlight
}

// sendLocked reports whether there may be more to send.
func (o *outlet) sendLocked(now time.Time) bool {
	err := o.stream.SendMsg(&o.out)
	o.forgetLocked()
	o.large = o.large || o.bytes > maxMessageBytes
	switch {
	case err != nil:
		o.endLocked(o.source.endOf(err))
		return false
	case o.final:
		o.endLocked(o.parting)
	}
	o.sentAt = now
	o.blockedAt, o.blockedBy = time.Time{}, 0
	return o.source.sentLocked(now)
}

// tickLocked does what is due. The time is one after the tick.
func (o *outlet) tickLocked(now time.Time) {
	if inFlight := o.flight.references.Load(); inFlight < o.blockedBy {
		o.blockedAt, o.blockedBy = now, inFlight // it has taken something
	}
	switch {
	case o.ended:
		return
	case !o.blockedAt.IsZero() && now.Sub(o.blockedAt) >= o.patience():
		o.endLocked(o.stalled())
		return
	case !o.partAt.IsZero() && !now.Before(o.partAt):
		o.partDueLocked(now)
	case !o.waiting && o.idleLocked(now) && o.source.beganLocked():
		o.source.beatLocked()
	}
	o.setTimerLocked(now)
}

// partDueLocked tells the call to go. One that is too old waits for that while a new
// one could not begin.
func (o *outlet) partDueLocked(now time.Time) {
	if !o.draining && (!o.source.beganLocked() || o.server.bus.Current().Number == 0) {
		o.partAt = now.Add(time.Second + rand.N(o.server.cfg.MaxStreamAge/10+1))
		return
	}
	o.partAt = time.Time{}
	if !o.draining {
		o.parting = oldAgeFailure(retryIn())
		return
	}
	o.parting, o.pressing = drainingFailure(retryIn()), true
	if !o.blockedAt.IsZero() {
		o.blockedAt = now
	}
}

// expireLocked ends the call, whose token has expired: no frame follows. The client is
// told where it stands if that can be told at once.
func (o *outlet) expireLocked(now time.Time) {
	if o.ended || o.final {
		return
	}
	o.forgetLocked()
	o.bytes = 0
	o.source.dropLocked()
	o.parting = tokenExpired()
	if !o.source.beganLocked() || !o.roomLocked(now) {
		o.endLocked(o.parting)
	}
}

// patience is how long the client may take nothing while something waits.
func (o *outlet) patience() time.Duration {
	if o.pressing {
		return min(o.server.cfg.WriteTimeout, lastWords)
	}
	// No shorter for a call that is too old: nothing presses, as at a drain.
	return o.server.cfg.WriteTimeout
}

// stalled is how the call ends whose client has taken nothing for that long.
func (o *outlet) stalled() error {
	if o.pressing {
		return o.parting
	}
	return o.source.slowLocked()
}

// idleLocked reports whether a heartbeat is due. It may come an eighth early, so that
// the calls of a connection have theirs together.
func (o *outlet) idleLocked(now time.Time) bool {
	return now.Sub(o.sentAt) >= o.server.cfg.Heartbeat-o.server.early()
}

// early is how much earlier than it must a heartbeat may come.
func (s *Server) early() time.Duration { return s.cfg.Heartbeat / 8 }

// look is what a connection asks all its outlets, at least once in the time of a
// heartbeat: whether to have a turn, and when to be asked again.
func (o *outlet) look(now time.Time) (due bool, next time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next = now.Add(o.server.cfg.Heartbeat)
	if o.ended {
		return false, next
	}
	o.setTimerLocked(now)
	if !o.idleLocked(now) {
		return false, o.sentAt.Add(o.server.cfg.Heartbeat)
	}
	o.ticked.Store(true)
	return true, next
}

// setTimerLocked has the timer tick when something is due before the connection
// looks again.
func (o *outlet) setTimerLocked(now time.Time) {
	at := now.Add(o.server.cfg.Heartbeat)
	near := false
	sooner := func(t time.Time) {
		if !t.After(at) {
			at, near = t, true
		}
	}
	if !o.partAt.IsZero() {
		sooner(o.partAt)
	}
	if !o.blockedAt.IsZero() {
		sooner(o.blockedAt.Add(o.patience()))
	}
	if deadline := o.caller.Deadline(); !deadline.IsZero() {
		sooner(deadline)
	}
	switch {
	case !near, o.tickAt.After(now) && !o.tickAt.After(at): // it looks again then
	case o.timer == nil:
		o.tickAt, o.timer = at, time.AfterFunc(at.Sub(now), o.tick)
	default:
		o.tickAt = at
		o.timer.Reset(at.Sub(now))
	}
}

// endLocked has the handler return err, unless it does already.
func (o *outlet) endLocked(err error) {
	if o.ended {
		return
	}
	o.ended = true
	o.forgetLocked()
	o.blocked.Store(false)
	if o.timer != nil {
		o.timer.Stop()
	}
	o.flight.connection.outbox.leave(o)
	o.done <- err
}
