package clientlib

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// run makes one call after the other while there are frames, until the publisher ends.
func (p *Publisher) run(ctx context.Context) {
	defer close(p.left)
	defer p.cancel(nil)
	r := p.client.newRecovery()
	for p.awaitWork(ctx) {
		e := p.call(ctx, &r)
		if e == nil || ctx.Err() != nil {
			continue
		}
		pause, final := r.after(e)
		if final {
			p.end(e)
			return
		}
		p.callEnded(e)
		p.client.telemetry.interrupted(e)
		r.log("publisher interrupted", e, pause)
		wait(ctx, pause)
	}
	if !p.finished() {
		p.end(context.Cause(ctx))
	}
}

// awaitWork waits until there is something to publish, and reports whether that came
// before the end.
func (p *Publisher) awaitWork(ctx context.Context) bool {
	for ctx.Err() == nil && !p.finished() {
		if !p.idle() {
			return true
		}
		select {
		case <-p.work:
		case <-ctx.Done():
		}
	}
	return false
}

// call is one PublishStream. It returns nil when it ended because the publisher is
// finished.
func (p *Publisher) call(ctx context.Context, r *recovery) *Error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, err := r.access.authorize(ctx)
	if err != nil {
		return unsent(err)
	}
	server := &peer.Peer{}
	call, err := p.client.stub.PublishStream(ctx, answerOptions(server)...)
	if err != nil {
		return p.client.failed(err, server)
	}
	silence := p.watchSilence(func() { cancel(errIdle) })
	defer silence.stop()
	sending := make(chan *Error, 1)
	go func() {
		e := p.send(ctx, call)
		if e != nil {
			cancel(e) // interceptors leave the call as it is
		}
		sending <- e
	}()
	err = p.receive(call, r)
	cancel(nil)
	if e := <-sending; e != nil {
		return e
	}
	if errors.Is(err, io.EOF) && p.finished() {
		return nil
	}
	return p.client.failed(endOf(ctx, err), server)
}

// watchSilence has something called when frames of the call that begins are on their way
// and no answer comes for too long.
func (p *Publisher) watchSilence(tooLong func()) watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silence = newWatch(p.client.idleTimeout, tooLong)
	p.silence.stop()
	return p.silence
}

// unsent is an error before anything was sent.
func unsent(err error) *Error {
	e := errorOf(err)
	e.unsent = true
	return e
}

// send sends what there is until the publisher is finished, or the call has ended: then
// receiving knows why. An error is why this side ends it.
func (p *Publisher) send(ctx context.Context, call grpc.BidiStreamingClient[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse]) *Error {
	for {
		f, finished := p.next()
		switch {
		case finished:
			_ = call.CloseSend() // receiving knows of failures
			return nil
		case f != nil:
			err := call.Send(&fanfarev1.PublishStreamRequest{Number: f.number, Frame: f.frame})
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return p.notSent(f, err)
			}
			continue
		}
		select {
		case <-p.work:
		case <-ctx.Done():
			return nil
		}
	}
}

// receive takes answers until there is an error.
func (p *Publisher) receive(call grpc.BidiStreamingClient[fanfarev1.PublishStreamRequest, fanfarev1.PublishStreamResponse], r *recovery) error {
	for {
		answer, err := call.Recv()
		if err != nil {
			return err
		}
		r.acknowledge()
		r.progress()
		p.answer(answer)
	}
}
