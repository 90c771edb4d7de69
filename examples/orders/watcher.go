package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// watcher follows the shop's changes over the generated stubs.
type watcher struct {
	client fanfarev1.FanfareServiceClient
	// seen is called with every change, in order, each once. An error ends the
	// watcher.
	seen func(*fanfarev1.Position, change) error
	// gap is called where changes are missing: whoever keeps a copy of the orders
	// must read the table again. An error ends the watcher.
	gap func(*fanfarev1.Gap) error
	log *log.Logger

	// last is where to go on: the position of the last change that seen took. Nil
	// begins with the oldest change that the backlog holds.
	last *fanfarev1.Position
	wait *backoff.ExponentialBackOff
}

// run watches until ctx ends or the stream is closed, which are nil. When a
// server goes away it subscribes again, after the last position.
func (w *watcher) run(ctx context.Context) error {
	w.wait = backoff.NewExponentialBackOff()
	w.wait.InitialInterval, w.wait.MaxInterval = 100*time.Millisecond, 5*time.Second
	for {
		err := w.subscribe(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			w.log.Print("the stream was closed")
			return nil
		case !resumable(err):
			return err
		}
		wait := max(w.wait.NextBackOff(), retryDelay(err))
		w.log.Printf("%s; subscribing %s in %v", status.Convert(err).Message(), w.start(), wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// start says where the next call begins.
func (w *watcher) start() string {
	if w.last == nil {
		return "from the oldest"
	}
	return "after " + positionText(w.last)
}

// resumable reports whether a subscription that ended with err can be continued
// by position, on this server or another.
func resumable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
		return true
	case codes.ResourceExhausted: // but not a frame that is too large for this client
		info := detail[*errdetails.ErrorInfo](err)
		return info.GetReason() == "SLOW_SUBSCRIBER"
	default:
		return false
	}
}

// retryDelay is how long the server asks to wait; 0 if it does not.
func retryDelay(err error) time.Duration {
	return detail[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration()
}

// detail is the detail of one type of a status; nil if it has none, which
// generated getters allow.
func detail[D any](err error) (none D) {
	for _, d := range status.Convert(err).Details() {
		if found, ok := d.(D); ok {
			return found
		}
	}
	return none
}

// subscribe follows one call to its end: io.EOF after the stream was closed.
func (w *watcher) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the call if this returns first
	request := &fanfarev1.SubscribeRequest{Channel: channel, Scope: scope}
	if w.last != nil {
		request.Start = &fanfarev1.SubscribeRequest_After{After: w.last}
	}
	call, err := w.client.Subscribe(ctx, request)
	if err != nil {
		return err
	}
	for {
		response, err := call.Recv()
		if err != nil {
			return err
		}
		if err := w.take(response); err != nil {
			return err
		}
	}
}

// take takes what the server sent: frames, or one notice. Notices that only
// inform, and those of newer servers, are left aside.
func (w *watcher) take(response *fanfarev1.SubscribeResponse) error {
	for _, frame := range response.GetFrames() {
		if err := w.takeFrame(frame); err != nil {
			return err
		}
	}
	switch notice := response.GetNotice().(type) {
	case *fanfarev1.SubscribeResponse_Subscribed:
		w.wait.Reset()
		// A position of one's own stays until a frame or a gap has moved it:
		// otherwise a gap that a broken connection withheld would go unnoticed.
		if w.last == nil {
			w.last = notice.Subscribed.GetResumeAfter()
		}
	case *fanfarev1.SubscribeResponse_Gap:
		if err := w.gap(notice.Gap); err != nil {
			return err
		}
		w.last = notice.Gap.GetResumeAfter()
	}
	return nil
}

// takeFrame hands a change over, and only then moves on.
func (w *watcher) takeFrame(frame *fanfarev1.Frame) error {
	position := frame.GetPosition()
	if next := w.last.GetSequence() + 1; position.GetSequence() != next {
		return fmt.Errorf("change %s came instead of number %d", positionText(position), next)
	}
	var c change
	if err := json.Unmarshal(frame.GetPayload(), &c); err != nil {
		return fmt.Errorf("change %s: %w", positionText(position), err)
	}
	if err := w.seen(position, c); err != nil {
		return err
	}
	w.last = position
	return nil
}
