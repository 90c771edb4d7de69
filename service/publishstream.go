package service

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/auth"
)

// Bounds of what one PublishStream may have unanswered; beyond them its requests
// are not read.
const (
	maxPipelinedFrames = 1024
	maxPipelinedBytes  = 8 << 20
)

// PublishStream implements FanfareService.
func (s *Server) PublishStream(stream fanfarev1.FanfareService_PublishStreamServer) error {
	p := &pipeline{
		server:  s,
		stream:  stream,
		slots:   make(chan struct{}, maxPipelinedFrames),
		bytes:   semaphore.NewWeighted(maxPipelinedBytes),
		answers: make(chan answer, maxPipelinedFrames),
	}
	return s.run(stream, p.loop, func(*writer, bool) error {
		// Not RESOURCE_EXHAUSTED or UNAVAILABLE, which say that nothing was stored.
		return &failure{
			code:    codes.Unknown,
			reason:  fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN,
			message: "answers were not taken; the outcome of what was not answered is unknown",
		}
	})
}

// pipeline is one PublishStream. A goroutine reads requests and submits them in
// their order; the send loop sends answers as they come. A request holds a slot
// from before it is submitted until its answer has been sent, so that answers
// never overflow their channel and the store's callback never blocks.
type pipeline struct {
	server  *Server
	stream  fanfarev1.FanfareService_PublishStreamServer
	slots   chan struct{}
	bytes   *semaphore.Weighted
	answers chan answer

	mu sync.Mutex // guards what follows
	// admitted counts requests that will be answered.
	admitted int
	// stopped is set when no further request may be admitted.
	stopped bool
}

type answer struct {
	response *fanfarev1.PublishStreamResponse
	// weight is what the request held of pipeline.bytes.
	weight int64
}

// loop sends answers until every admitted request has one and no more come.
func (p *pipeline) loop(ctx context.Context, w *writer, closing context.Context) error {
	// Requests that arrive once the call is closing are not admitted; the client
	// sees them unanswered, and nothing of them was stored.
	received := make(chan error, 1)
	p.server.loops.Go(func() {
		received <- recovering(func() error { return p.receive(closing) })
	})
	var (
		sent     int
		total    = -1 // not known yet
		result   error
		farewell = closing.Done()
	)
	for total < 0 || sent < total {
		select {
		case a := <-p.answers:
			if err := w.send(a.response); err != nil {
				return failureOf(err)
			}
			p.bytes.Release(a.weight)
			<-p.slots
			sent++
		case err := <-received:
			received = nil
			if total >= 0 {
				break
			}
			total, result = p.stop(), err
			if end := parting(closing); err != nil && end != nil && ctx.Err() == nil {
				result = end // it waited for room when the call was told to go
			}
		case <-farewell:
			farewell = nil
			if end := parting(closing); total < 0 && end != nil && ctx.Err() == nil {
				total, result = p.stop(), end
			}
		case <-ctx.Done():
			return failureOf(ctx.Err())
		}
	}
	return result
}

// receive reads and submits requests until the client half-closes, which is
// nil, or ctx ends.
func (p *pipeline) receive(ctx context.Context) error {
	// The call's end, not ctx's: what was admitted before the call began to close is
	// carried through. And not its deadline, by which the store would give up some
	// publications before others: those of a call are all carried through or, from one
	// on, withdrawn.
	publishing, cancel := context.WithCancel(context.WithoutCancel(p.stream.Context()))
	context.AfterFunc(p.stream.Context(), cancel)
	for {
		request, err := p.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return failureOf(err)
		}
		if err := p.submit(ctx, publishing, request); err != nil {
			return failureOf(err)
		}
	}
}

// submit waits for room, until ctx ends, and hands one request to the store, which
// may withdraw it when publishing ends.
func (p *pipeline) submit(ctx, publishing context.Context, request *fanfarev1.PublishStreamRequest) error {
	number := request.GetNumber()
	publication, invalid := p.server.publication("frame", request.GetFrame())
	caller := p.server.caller(p.stream.Context())
	switch {
	case caller.Expired(time.Now()):
		return tokenExpired() // ends the call: the frame can be sent again on another
	case invalid == nil:
		invalid = permit(caller, auth.Publish, publication.Stream)
	}
	weight := min(int64(publication.Size()), maxPipelinedBytes)
	if err := p.bytes.Acquire(ctx, weight); err != nil {
		return err
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !p.admit() {
		return context.Canceled
	}
	if invalid != nil {
		p.answers <- p.refused(number, weight, invalid)
		return nil
	}
	p.server.store.Submit(publishing, publication, func(o backlog.Outcome, err error) {
		if err != nil {
			p.answers <- p.refused(number, weight, publishFailureOf(err, publication))
			return
		}
		p.answers <- answer{weight: weight, response: &fanfarev1.PublishStreamResponse{
			Number:  number,
			Outcome: &fanfarev1.PublishStreamResponse_Published{Published: p.server.published(o)},
		}}
	})
	return nil
}

func (p *pipeline) refused(number uint64, weight int64, err error) answer {
	f := failureOf(err)
	p.server.logItem(p.stream.Context(), "a frame of PublishStream", "refused a frame of a PublishStream", f)
	return answer{weight: weight, response: &fanfarev1.PublishStreamResponse{
		Number:  number,
		Outcome: &fanfarev1.PublishStreamResponse_Error{Error: f.item()},
	}}
}

// admit counts a request that will be answered, unless the call is closing.
func (p *pipeline) admit() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.admitted++
	return true
}

// stop ends admission and returns how many requests have been admitted.
func (p *pipeline) stop() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	return p.admitted
}
