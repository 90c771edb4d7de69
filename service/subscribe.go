package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// maxMessageBytes bounds a SubscribeResponse that carries several frames.
const maxMessageBytes = 64 << 10

// Subscribe implements FanfareService.
func (s *Server) Subscribe(req *fanfarev1.SubscribeRequest, stream fanfarev1.FanfareService_SubscribeServer) error {
	name, err := streamName(req.GetChannel(), req.GetScope())
	if err != nil {
		return failureOf(err)
	}
	start, err := subscribeStart(req)
	if err != nil {
		return failureOf(err)
	}
	loop := func(ctx context.Context, w *writer, closing context.Context) error {
		return s.deliver(ctx, w, closing, name, start)
	}
	return s.run(stream, loop, func(w *writer, draining bool) error {
		if draining {
			return drainingFailure(retryIn())
		}
		return slowSubscriber(s.cfg.WriteTimeout, w.lastSent())
	})
}

// deliver subscribes and sends what the subscription has until it ends.
func (s *Server) deliver(ctx context.Context, w *writer, closing context.Context, name backlog.StreamName, start hub.Start) error {
	// closing ends with ctx, too; a wait for a listening must not outlast either.
	sub, err := s.hub.Subscribe(closing, name, start)
	if err != nil {
		if end := parting(closing); end != nil && ctx.Err() == nil {
			return end
		}
		return readFailureOf(err)
	}
	defer sub.Close()

	subscribed := sub.Subscribed()
	if err := w.send(subscribedProto(subscribed), subscribed.ResumeAfter); err != nil {
		return failureOf(err)
	}
	d := &delivery{server: s, sub: sub, w: w, wake: make(chan struct{}, 1)}
	sub.SetWake(d.wakeUp)
	return d.loop(ctx, closing)
}

// delivery is the sending side of one subscription: replay, seam and live are
// the same loop.
type delivery struct {
	server *Server
	sub    *hub.Subscription
	w      *writer
	// wake holds one token: that the subscription may have something.
	wake chan struct{}
}

// wakeUp is called by the hub, which must not be blocked.
func (d *delivery) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *delivery) loop(ctx, closing context.Context) error {
	heartbeat := d.server.cfg.Heartbeat
	idle := time.NewTimer(heartbeat)
	defer idle.Stop()
	lastSent := time.Now()
	for {
		sent, err := d.sendReady(closing)
		if err != nil || ctx.Err() != nil {
			return d.endOf(ctx, err)
		}
		if sent {
			lastSent = time.Now()
		}
		select {
		case <-d.wake:
		case <-closing.Done():
			return d.endOf(ctx, d.goodBye(closing))
		case <-idle.C:
			// The timer is not reset for every frame; it looks when it fires.
			if rest := heartbeat - time.Since(lastSent); rest > 0 {
				idle.Reset(rest)
				continue
			}
			if err := d.w.send(progressProto(d.sub.Position()), d.sub.Position()); err != nil {
				return d.endOf(ctx, err)
			}
			lastSent = time.Now()
			idle.Reset(heartbeat)
		}
	}
}

// sendReady sends until the subscription has nothing, or closing ends.
func (d *delivery) sendReady(closing context.Context) (sent bool, err error) {
	for closing.Err() == nil {
		next, ok, err := d.sub.TryNext(maxMessageBytes)
		if err != nil || !ok {
			return sent, err
		}
		message, err := deliveryMessage(next)
		if err != nil {
			return sent, err
		}
		if err := d.w.send(message, next.Last); err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

// goodBye tells the client that the server ends the call, and where it stands.
func (d *delivery) goodBye(closing context.Context) error {
	end := parting(closing)
	if end == nil {
		return context.Cause(closing) // the call itself has ended
	}
	last := d.sub.Position()
	err := d.w.send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closing{Closing: &fanfarev1.Closing{
		ResumeAfter: positionProto(last),
		RetryIn:     durationpb.New(end.retryIn),
	}}}, last)
	if err != nil {
		return err
	}
	return end
}

// endOf is how the call ends: OK after Closed.
func (d *delivery) endOf(ctx context.Context, err error) error {
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

// deliveryMessage is what is sent for a delivery.
func deliveryMessage(d hub.Delivery) (any, error) {
	if d.Notice == nil {
		return encodedFrames(d.Frames), nil
	}
	switch n := d.Notice.(type) {
	case hub.Gap:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: gapProto(n)}}, nil
	case hub.CaughtUp:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{
			CaughtUp: &fanfarev1.CaughtUp{Position: positionProto(n.Position)},
		}}, nil
	case hub.Status:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Status{
			Status: &fanfarev1.Status{Listening: n.Listening},
		}}, nil
	case hub.Closed:
		return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closed{
			Closed: &fanfarev1.Closed{Last: positionProto(n.Last)},
		}}, nil
	default:
		return nil, fmt.Errorf("a notice of type %T", n)
	}
}

func subscribedProto(n hub.Subscribed) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{Subscribed: &fanfarev1.Subscribed{
		Head:        positionProto(n.Head),
		Oldest:      n.Oldest,
		ResumeAfter: positionProto(n.ResumeAfter),
		Resumed:     n.Resumed,
	}}}
}

func progressProto(p backlog.Position) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Progress{
		Progress: &fanfarev1.Progress{Position: positionProto(p)},
	}}
}

func gapProto(g hub.Gap) *fanfarev1.Gap {
	return &fanfarev1.Gap{
		Reason:      gapReason(g.Reason),
		Requested:   positionProto(g.Requested),
		Oldest:      g.Oldest,
		Head:        positionProto(g.Head),
		ResumeAfter: positionProto(g.ResumeAfter),
	}
}

// gapReason is UNSPECIFIED, which clients treat as loss, for a reason that the
// protocol does not have.
func gapReason(r hub.GapReason) fanfarev1.GapReason {
	switch r {
	case hub.GapTrimmed:
		return fanfarev1.GapReason_GAP_REASON_TRIMMED
	case hub.GapEpochChanged:
		return fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED
	case hub.GapAhead:
		return fanfarev1.GapReason_GAP_REASON_AHEAD
	case hub.GapEphemeralMaybeMissed:
		return fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED
	default:
		return fanfarev1.GapReason_GAP_REASON_UNSPECIFIED
	}
}
