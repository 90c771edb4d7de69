package service

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// What a delivery hands to grpc before that has written it. grpc admits 64 KiB for a
// call and then one message of any size; it blocks whoever sends another. A turn must
// not be blocked, so three messages leave room for the fourth, and nothing else is in
// flight with one that is larger than these.
const (
	// maxMessageBytes bounds a SubscribeResponse that carries several frames.
	maxMessageBytes = 16 << 10
	maxInFlight     = 4
)

// delivery is the sending side of one Subscribe: replay, seam and live are the same
// question to the subscription. It has no goroutine: what happens is done in turns,
// which its sender gives it when the subscription, its client or its timer woke it.
type delivery struct {
	server *Server
	stream grpc.ServerStream
	sub    *hub.Subscription
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
	// subscribed is true once the client has been sent Subscribed.
	subscribed bool
	// out is the next message if waiting is true, of so many bytes of frames, last the
	// client's position after it, and final true if it is the last message.
	out     outgoing
	waiting bool
	bytes   int
	last    backlog.Position
	final   bool
	// atEnd is true if nothing followed it when it was made out, in this turn.
	atEnd bool
	// large is true while a message may be in flight that goes alone.
	large bool
	// sent is the client's position after all that was handed to grpc, at sentAt.
	sent   backlog.Position
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
	// timer ticks when something is due, at tickAt.
	timer  *time.Timer
	tickAt time.Time
}

func (s *Server) newDelivery(stream grpc.ServerStream, name backlog.StreamName, start hub.Start) *delivery {
	now := time.Now()
	d := &delivery{
		server: s,
		stream: stream,
		sub:    s.hub.Subscribe(name, start),
		done:   make(chan error, 1),
		sentAt: now,
	}
	d.flight = newInFlight(connectionOf(stream.Context()), d.landed)
	d.out.flight = d.flight
	if age := s.ownStreamAge(); age > 0 {
		d.partAt = now.Add(age)
	}
	d.startTimer(now)
	d.sub.SetWake(d.wake)
	d.wake()
	return d
}

// serve returns how the call ends, when it does.
func (d *delivery) serve() error {
	err := d.wait()
	d.close()
	d.server.leave(d.stream.Context(), d.flight)
	return err
}

func (d *delivery) wait() error {
	ending := d.server.ending
	for {
		select {
		case err := <-d.done:
			return err
		case <-d.stream.Context().Done():
			return failureOf(d.stream.Context().Err())
		case <-ending:
			ending = nil
			// GOAWAY must go first.
			d.partAfter(d.server.partingDelay())
		}
	}
}

// close ends it, if it has not ended. No turn sends anything afterwards.
func (d *delivery) close() {
	d.mu.Lock()
	d.endLocked(nil)
	d.mu.Unlock()
	d.sub.Close()
}

func (d *delivery) wake() { d.server.sender.wake(d) }

func (d *delivery) tick() {
	d.ticked.Store(true)
	d.wake()
}

// landed is called when nothing is in flight any more.
func (d *delivery) landed() {
	if d.blocked.Load() && d.blocked.Swap(false) {
		d.wake()
	}
}

// partAfter has the call told to go after a time, because the server is draining.
func (d *delivery) partAfter(delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	now := time.Now()
	d.partAt, d.draining = now.Add(delay), true
	d.setTimerLocked(now)
}

// turn sends what there is to send, as far as that does not block.
func (d *delivery) turn(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			d.endLocked(panicFailure(p))
		}
	}()
	d.atEnd = false // something may have followed since
	if d.ticked.Load() {
		d.tickLocked(now)
	}
	for !d.ended && d.nextLocked() && d.roomLocked(now) {
		d.sendLocked(now)
		if d.atEnd && d.parting == nil {
			return
		}
	}
}

// nextLocked makes out the next message, unless there is none. It does so even if
// there is no room: only then it is known that something waits, and how the
// subscription ends, if it has.
func (d *delivery) nextLocked() bool {
	switch {
	case d.waiting:
		return true
	case d.parting != nil:
		return d.goodByeLocked()
	}
	next, ok, err := d.sub.TryNext(maxMessageBytes)
	if err != nil {
		d.endLocked(d.endOf(err))
		return false
	}
	if !ok {
		return false
	}
	bytes := 0
	for _, f := range next.Frames {
		bytes += len(f)
	}
	d.waitLocked(noticeProto(next.Notice), next.Last)
	d.out.frames, d.bytes, d.atEnd = next.Frames, bytes, next.AtEnd
	return true
}

// waitLocked makes a notice, or nil for frames, the next message.
func (d *delivery) waitLocked(notice *fanfarev1.SubscribeResponse, last backlog.Position) {
	d.out.frames, d.out.message, d.bytes, d.atEnd = nil, nil, 0, false
	if notice != nil {
		d.out.message = notice
	}
	d.last, d.waiting = last, true
}

// goodByeLocked makes Closing the next message, which says where the client stands,
// or ends a call that has not begun.
func (d *delivery) goodByeLocked() bool {
	if !d.subscribed {
		d.endLocked(d.parting)
		return false
	}
	d.waitLocked(closingProto(d.sent, d.parting.retryIn), d.sent)
	d.final = true
	return true
}

// roomLocked reports whether the next message can be sent without being blocked. If
// not, there will be a turn when everything in flight has been written.
func (d *delivery) roomLocked(now time.Time) bool {
	inFlight := d.flight.references.Load()
	if inFlight == 0 {
		d.large = false
	}
	if inFlight < d.mostInFlight() {
		return true
	}
	d.blocked.Store(true)
	if d.flight.references.Load() == 0 {
		d.blocked.Store(false)
		return true
	}
	if d.blockedAt.IsZero() {
		d.blockedAt, d.blockedBy = now, inFlight
		if d.nextTick(now).Before(d.tickAt) {
			d.setTimerLocked(now)
		}
	}
	return false
}

// mostInFlight is how many messages may be in flight with the next one.
func (d *delivery) mostInFlight() int64 {
	if d.large || d.bytes > maxMessageBytes {
		return 1
	}
	return maxInFlight
}

func (d *delivery) sendLocked(now time.Time) {
	err := d.stream.SendMsg(&d.out)
	d.waiting, d.out.frames, d.out.message = false, nil, nil
	d.large = d.large || d.bytes > maxMessageBytes
	switch {
	case err != nil:
		d.endLocked(d.endOf(err))
		return
	case d.final:
		d.endLocked(d.parting)
	}
	d.subscribed = true
	d.sent, d.sentAt = d.last, now
	d.blockedAt, d.blockedBy = time.Time{}, 0
}

// tickLocked does what is due.
func (d *delivery) tickLocked(now time.Time) {
	d.ticked.Store(false)
	if inFlight := d.flight.references.Load(); inFlight < d.blockedBy {
		d.blockedAt, d.blockedBy = now, inFlight // it has taken something
	}
	switch {
	case d.ended:
		return
	case !d.blockedAt.IsZero() && now.Sub(d.blockedAt) >= d.patience():
		d.endLocked(d.stalled())
		return
	case !d.partAt.IsZero() && !now.Before(d.partAt):
		d.partDueLocked(now)
	case d.subscribed && !d.waiting && now.Sub(d.sentAt) >= d.server.cfg.Heartbeat:
		position := d.sub.Position()
		d.waitLocked(progressProto(position), position)
	}
	d.setTimerLocked(now)
}

// partDueLocked tells the call to go. One that is too old waits for that while a new
// one could not begin.
func (d *delivery) partDueLocked(now time.Time) {
	if !d.draining && (!d.subscribed || d.server.bus.Current().Number == 0) {
		d.partAt = now.Add(time.Second + rand.N(d.server.cfg.MaxStreamAge/10+1))
		return
	}
	d.partAt = time.Time{}
	if !d.draining {
		d.parting = oldAgeFailure(retryIn())
		return
	}
	d.parting, d.pressing = drainingFailure(retryIn()), true
	if !d.blockedAt.IsZero() {
		d.blockedAt = now
	}
}

// patience is how long the client may take nothing while something waits.
func (d *delivery) patience() time.Duration {
	if d.pressing {
		return min(d.server.cfg.WriteTimeout, lastWords)
	}
	// No shorter for a call that is too old: nothing presses, as at a drain.
	return d.server.cfg.WriteTimeout
}

// stalled is how the call ends whose client has taken nothing for that long.
func (d *delivery) stalled() error {
	if d.pressing {
		return d.parting
	}
	return slowSubscriber(d.server.cfg.WriteTimeout, d.sent)
}

func (d *delivery) startTimer(now time.Time) {
	d.mu.Lock() // the timer may tick before it is known here
	defer d.mu.Unlock()
	d.tickAt = d.nextTick(now)
	d.timer = time.AfterFunc(d.tickAt.Sub(now), d.tick)
}

func (d *delivery) setTimerLocked(now time.Time) {
	d.tickAt = d.nextTick(now)
	d.timer.Reset(d.tickAt.Sub(now))
}

// nextTick is when something will be due.
func (d *delivery) nextTick(now time.Time) time.Time {
	next := d.sentAt.Add(d.server.cfg.Heartbeat)
	if !next.After(now) {
		next = now.Add(d.server.cfg.Heartbeat)
	}
	if !d.partAt.IsZero() && d.partAt.Before(next) {
		next = d.partAt
	}
	if !d.blockedAt.IsZero() {
		if stalled := d.blockedAt.Add(d.patience()); stalled.Before(next) {
			next = stalled
		}
	}
	return next
}

// endLocked has the handler return err, unless it does already.
func (d *delivery) endLocked(err error) {
	if d.ended {
		return
	}
	d.ended = true
	d.waiting, d.out.frames, d.out.message = false, nil, nil
	d.blocked.Store(false)
	d.timer.Stop()
	d.done <- err
}

// endOf is how the call ends when the subscription or a send says so: OK after
// Closed.
func (d *delivery) endOf(err error) error {
	ctx := d.stream.Context()
	switch {
	case ctx.Err() != nil:
		return failureOf(ctx.Err())
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, hub.ErrSlowSubscriber):
		return droppedFrames(d.sub.Position())
	default:
		return readFailureOf(err)
	}
}
