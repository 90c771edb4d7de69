package service

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// delivery is the sending side of one Subscribe: replay, seam and live are the same
// question to the subscription.
type delivery struct {
	outlet
	sub *hub.Subscription

	// What follows is guarded by outlet.mu.

	// subscribed is true once the client has been sent Subscribed.
	subscribed bool
	// atEnd is true if nothing followed the next message when it was made out, in this
	// turn.
	atEnd bool
	// last is the client's position after the next message, sent that after all that was
	// handed to grpc.
	last, sent backlog.Position
}

func (s *Server) newDelivery(stream grpc.ServerStream, name backlog.StreamName, start hub.Start) *delivery {
	d := &delivery{sub: s.hub.Subscribe(name, start)}
	d.open(s, stream, d)
	d.sub.SetWake(d.wake)
	d.wake()
	return d
}

// serve returns how the call ends, when it does.
func (d *delivery) serve() error {
	err := d.wait()
	d.close()
	d.sub.Close()
	d.server.leave(d.stream.Context(), d.flight)
	return err
}

// nextLocked implements source.
func (d *delivery) nextLocked() bool {
	switch {
	case d.waiting:
		d.atEnd = false // something may have followed since
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
	d.last, d.atEnd = next.Last, next.AtEnd
	if next.Notice == nil {
		d.framesLocked(next.Frames)
	} else {
		d.messageLocked(noticeProto(next.Notice))
	}
	return true
}

// noticeLocked makes a notice the next message.
func (d *delivery) noticeLocked(notice *fanfarev1.SubscribeResponse, last backlog.Position) {
	d.messageLocked(notice)
	d.last, d.atEnd = last, false
}

// goodByeLocked makes Closing the next message, which says where the client stands,
// or ends a call that has not begun.
func (d *delivery) goodByeLocked() bool {
	if !d.subscribed {
		d.endLocked(d.parting)
		return false
	}
	d.noticeLocked(closingProto(d.sent, d.parting.retryIn), d.sent)
	d.final = true
	return true
}

// sentLocked implements source.
func (d *delivery) sentLocked(time.Time) bool {
	d.subscribed = true
	d.sent = d.last
	return !d.atEnd || d.parting != nil
}

func (d *delivery) beganLocked() bool { return d.subscribed }

func (d *delivery) dropLocked() {}

func (d *delivery) beatLocked() {
	position := d.sub.Position()
	d.noticeLocked(progressProto(position), position)
}

func (d *delivery) slowLocked() *failure { return slowSubscriber(d.server.cfg.WriteTimeout, d.sent) }

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
