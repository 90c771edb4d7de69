package clientlib

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// maxEndings is how many calls in a row may end on one frame before it is given up, which
// with the pauses of [WithBackoff]'s default takes some seconds: calls also end so while a
// proxy refuses them for a while, whatever they carry.
const maxEndings = 5

// pipeline is what a Publisher has taken and not yet answered.
//
// A frame is first in queue, then in sent. One that the server refuses for a moment is
// held at its stream: later frames of the stream that are on their way may yet be stored,
// and it must not come after them. When none is on its way any more the held ones go back
// to the queue, in order.
type pipeline struct {
	client *Client
	// queue is in the order of sending.
	queue []*Pending
	// sent are by number those of the current call without an answer.
	sent    map[uint64]*Pending
	streams map[Stream]*streamState
	// unanswered is how many frames there are.
	unanswered int
	number     uint64
	// A call ended for one of the frames up to careful, and it is not known which. They
	// go alone, of which alone is true while one is on its way.
	careful uint64
	alone   bool
	// endings is how many calls in a row ended while it was.
	endings int
	// silence watches whether answers come to the current call.
	silence watch
	pauses  pauses
	closed  bool
	// work has a token when there is something for the sender.
	work chan struct{}

	// over ends with what ends the publisher.
	over context.Context
	fail context.CancelCauseFunc
}

// streamState is that of a stream of which frames are on their way or held.
type streamState struct {
	// sent is how many are on their way.
	sent int
	// refused are those that the server did not take, later the ones that wait for
	// them; both in order.
	refused, later []*Pending
	// released is true while a timer runs that releases them.
	released bool
}

func newPipeline(c *Client) pipeline {
	over, fail := context.WithCancelCause(context.Background())
	return pipeline{
		client:  c,
		sent:    map[uint64]*Pending{},
		streams: map[Stream]*streamState{},
		pauses:  c.newPauses(),
		work:    make(chan struct{}, 1),
		over:    over,
		fail:    fail,
	}
}

// addLocked takes a frame; one that is invalid is answered at once.
func (p *Publisher) addLocked(f *Pending, invalid error) error {
	switch {
	case p.over.Err() != nil:
		return context.Cause(p.over)
	case p.closed:
		return ErrClosed
	}
	p.unanswered++
	if invalid != nil {
		p.resolveLocked(f, Published{}, invalid)
		return nil
	}
	p.number++
	f.number = p.number
	p.queue = append(p.queue, f)
	signal(p.work)
	return nil
}

func (p *Publisher) closeLocked() {
	p.closed = true
	signal(p.work)
}

// next returns the next frame to send, which counts as sent; nil if there is none now.
// finished is true when there will be none.
func (p *Publisher) next() (f *Pending, finished bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		f := p.queue[0]
		careful := f.number <= p.careful
		if len(p.sent) > 0 && (careful || p.alone) {
			return nil, false
		}
		p.queue[0] = nil
		p.queue = p.queue[1:]
		state := p.streams[f.given.Stream]
		if state == nil {
			state = &streamState{}
			p.streams[f.given.Stream] = state
		}
		if len(state.refused) > 0 {
			state.later = append(state.later, f)
			continue
		}
		state.sent++
		if len(p.sent) == 0 {
			p.silence.start()
		}
		p.sent[f.number], p.alone = f, careful
		return f, false
	}
	return nil, p.closed && p.unanswered == 0
}

// idle reports whether no call is needed now.
func (p *Publisher) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unanswered == 0
}

func (p *Publisher) finished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed && p.unanswered == 0
}

// answer takes an answer of the server.
func (p *Publisher) answer(r *fanfarev1.PublishStreamResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.sent[r.GetNumber()]
	if f == nil {
		return
	}
	delete(p.sent, f.number)
	p.endings = 0
	p.silence.start()
	if len(p.sent) == 0 {
		p.silence.stop()
		signal(p.work) // for those that go alone
	}
	state := p.streams[f.given.Stream]
	state.sent--
	if r.GetError() == nil {
		p.pauses.reset()
		p.overtakenLocked(state, f.number)
		p.resolveLocked(f, f.published(r.GetPublished()), nil)
	} else if e := itemError(r.GetError()); e.storedNothing() || f.safe() && e.mayHaveStored() {
		f.refused, f.doubtful = e, f.doubtful || e.mayHaveStored()
		state.refused = append(state.refused, f)
	} else {
		f.doubtful = f.doubtful || e.mayHaveStored()
		p.resolveLocked(f, Published{}, f.told(e))
	}
	p.settleLocked(f.given.Stream, state)
}

// overtakenLocked gives up what was refused before a frame that was stored.
func (p *Publisher) overtakenLocked(state *streamState, stored uint64) {
	state.refused = slices.DeleteFunc(state.refused, func(f *Pending) bool {
		if f.number > stored {
			return false
		}
		p.resolveLocked(f, Published{}, f.told(f.refused))
		return true
	})
}

// settleLocked has a stream's refused frames tried again once none of its frames is on
// its way, and forgets a stream of which there is nothing. Frames that wait for refused
// ones go on as soon as there are none: frames that are taken afterwards would be sent
// before them.
func (p *Publisher) settleLocked(s Stream, state *streamState) {
	if len(state.refused) == 0 && len(state.later) > 0 {
		p.requeueLocked(state.later)
		state.later = nil
	}
	switch {
	case state.sent > 0 || state.released:
	case len(state.refused) > 0:
		slices.SortFunc(state.refused, byNumber)
		asked := time.Duration(0)
		for _, f := range state.refused {
			asked = max(asked, f.refused.RetryIn)
		}
		state.released = true
		time.AfterFunc(p.pauses.next(asked), func() { p.releaseHeld(s, state) })
	default:
		delete(p.streams, s)
	}
}

// releaseHeld puts held frames back, unless the end of the call has done that.
func (p *Publisher) releaseHeld(s Stream, state *streamState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams[s] != state {
		return
	}
	delete(p.streams, s)
	p.requeueLocked(slices.Concat(state.refused, state.later))
}

// requeueLocked puts frames before everything in the queue, which of their streams has
// only later ones.
func (p *Publisher) requeueLocked(frames []*Pending) {
	p.queue = slices.Concat(frames, p.queue)
	signal(p.work)
}

func byNumber(a, b *Pending) int { return cmp.Compare(a.number, b.number) }

// callEnded puts back what the ended call left unanswered. If that may have been stored,
// frames without a key are given up, and so are those refused before one of them: they
// might come after it.
func (p *Publisher) callEnded(e *Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.refusesAFrame() {
		p.suspectLocked(e)
	} else {
		p.endings = 0
	}
	back := slices.Collect(maps.Values(p.sent))
	if e.mayHaveStored() {
		back = slices.DeleteFunc(back, func(f *Pending) bool {
			f.doubtful = true
			if !f.safe() {
				p.resolveLocked(f, Published{}, f.told(e))
			}
			return !f.safe()
		})
		for _, state := range p.streams {
			if state.sent > 0 {
				p.overtakenLocked(state, p.number)
			}
		}
	}
	for _, state := range p.streams {
		back = slices.Concat(back, state.refused, state.later)
	}
	slices.SortFunc(back, byNumber)
	clear(p.sent)
	clear(p.streams)
	p.requeueLocked(back)
}

// suspectLocked finds out for which frame the call ended: for one that goes alone, if
// several do in a row. It must not end each call anew, and hold up all others with that.
func (p *Publisher) suspectLocked(e *Error) {
	for number, f := range p.sent {
		if !p.alone {
			p.careful = max(p.careful, number)
			continue
		}
		if p.endings++; p.endings == maxEndings {
			p.endings = 0
			delete(p.sent, number)
			p.resolveLocked(f, Published{}, f.told(e))
		}
	}
}

// notSent gives up a frame that grpc, or what the caller's connection has around it, does
// not send: for its size, or since it cannot be encoded. The call ends for it; unlike a
// server, which has answered before, that says nothing of the other frames. It returns what
// does.
func (p *Publisher) notSent(f *Pending, err error) *Error {
	e := errorOf(err)
	switch e.Code {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Unauthenticated:
		// That is the call's end, and no fault of the frame.
	default:
		p.giveUp(f, e)
	}
	return &Error{Code: codes.Unknown, Message: "the call ended because a frame could not be sent: " + e.Error(), cause: e}
}

func (p *Publisher) giveUp(f *Pending, e *Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent[f.number] != f {
		return // a server has answered what it did not get
	}
	delete(p.sent, f.number)
	p.streams[f.given.Stream].sent--
	p.resolveLocked(f, Published{}, f.abandoned(e))
}

// end fails everything that is left.
func (p *Publisher) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail(err)
	left := slices.Concat(slices.Collect(maps.Values(p.sent)), p.queue)
	for _, state := range p.streams {
		left = slices.Concat(left, state.refused, state.later)
	}
	for _, f := range left {
		f.doubtful = f.doubtful || p.sent[f.number] != nil
		p.resolveLocked(f, Published{}, f.abandoned(err))
	}
	p.queue = nil
	clear(p.sent)
	clear(p.streams)
}

// told is what the caller gets of a frame that failed with e.
func (f *Pending) told(e *Error) *Error {
	if f.doubtful && !e.tellsOfTheStore() {
		return e.outcomeUnknown()
	}
	return e
}

// abandoned is what the caller gets of a frame that the publisher gave up.
func (f *Pending) abandoned(err error) error {
	if f.doubtful {
		return errorOf(err).outcomeUnknown()
	}
	return err
}

// failure is what ended the publisher before its time; nil if nothing did.
func (p *Publisher) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return context.Cause(p.over)
}

func (p *Publisher) resolveLocked(f *Pending, result Published, err error) {
	f.result, f.err = result, err
	close(f.done)
	f.task.end(context.Background(), err)
	p.release(f.size)
	if p.unanswered--; p.unanswered == 0 {
		signal(p.work)
	}
}
