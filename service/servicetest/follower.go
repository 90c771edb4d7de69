package servicetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Follower subscribes to a stream, records what it gets, and resumes from its
// last position whenever a connection ends, as a client should.
type Follower struct {
	recorder *Recorder
	cfg      FollowerConfig
	name     string
	stream   backlog.StreamName

	mu       sync.Mutex // guards what follows
	events   []Event
	complete bool
	changed  chan struct{} // closed and replaced at every event
	// position is where the follower resumes; nil before the first Subscribed.
	position *backlog.Position
	// responses counts what it has taken.
	responses int
	// stalls is how many want it to take nothing.
	stalls int
}

// FollowerConfig says how a follower follows.
type FollowerConfig struct {
	// Start is the start of the first connection; nil: oldest.
	Start *fanfarev1.SubscribeRequest
	// Pick returns the replica of the next connection.
	Pick func() fanfarev1.FanfareServiceClient
	// ReconnectEvery, if not 0, makes it leave after a random time up to twice
	// that, and resume.
	ReconnectEvery time.Duration
	// Rest, if not 0, is a pause after every response: a slow reader.
	Rest time.Duration
	// Away, if not 0, is how long it stays away after a connection; otherwise it is
	// back at once.
	Away time.Duration
	// Returns makes it come back, with the position that it had, after its stream
	// was closed. It rests as long before.
	Returns time.Duration
}

// Follower adds a subscriber to the run.
func (r *Recorder) Follower(name string, stream backlog.StreamName, cfg FollowerConfig) *Follower {
	f := &Follower{recorder: r, cfg: cfg, name: name, stream: stream, changed: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.followers = append(r.followers, f)
	return f
}

// Run follows until ctx ends or the stream is closed, unless it returns, which are
// nil, or a connection ends in a way that a client must not retry.
func (f *Follower) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := f.connection(ctx)
		switch status.Code(err) {
		case codes.OK:
			if f.cfg.Returns == 0 {
				return nil
			}
			pause(ctx, f.cfg.Returns)
		case codes.Unavailable, codes.ResourceExhausted, codes.Canceled, codes.DeadlineExceeded:
		default:
			if ctx.Err() == nil {
				return fmt.Errorf("follower %s: %w", f.name, err)
			}
		}
		pause(ctx, f.cfg.Away+5*time.Millisecond+rand.N(20*time.Millisecond))
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// connection is one Subscribe from the last position.
func (f *Follower) connection(ctx context.Context) error {
	if f.cfg.ReconnectEvery > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(2*f.cfg.ReconnectEvery))
		defer cancel()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := f.request()
	stream, err := f.cfg.Pick().Subscribe(ctx, request)
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			f.record(Event{Kind: SawEnd, Explained: true, Ended: codes.OK.String()}, nil)
			return nil
		}
		if err != nil {
			f.record(Event{Kind: SawEnd, Explained: explained(ctx, err), Ended: ended(ctx, err), Error: err.Error()}, nil)
			return err
		}
		f.took()
		f.take(request, response)
		if f.cfg.Rest > 0 {
			pause(ctx, f.cfg.Rest)
		}
		_ = f.await(ctx, "being allowed to go on", func() bool { return f.stalls == 0 }) // Recv tells of ctx
	}
}

// ended names how a call ended.
func ended(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "by the client"
	}
	return cmp.Or(reasonOf(err), status.Code(err).String())
}

// explained reports whether the end of a call says why: the client's own doing,
// a connection that broke, or a status with a reason.
func explained(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded: // the server may see the client's deadline first
		return true
	}
	return reasonOf(err) != ""
}

func (f *Follower) request() *fanfarev1.SubscribeRequest {
	request := &fanfarev1.SubscribeRequest{Channel: f.stream.Channel, Scope: f.stream.Scope}
	if p, ok := f.Position(); ok {
		request.Start = &fanfarev1.SubscribeRequest_After{After: &fanfarev1.Position{Epoch: p.Epoch, Sequence: p.Sequence}}
	} else if f.cfg.Start != nil {
		request.Start = f.cfg.Start.GetStart()
	}
	return request
}

func (f *Follower) take(request *fanfarev1.SubscribeRequest, response *fanfarev1.SubscribeResponse) {
	for _, frame := range response.GetFrames() {
		if frame.GetEphemeral() {
			f.record(Event{Kind: SawEphemeral, Content: ContentOfReceived(frame)}, frame.GetPosition())
			continue
		}
		f.record(Event{Kind: SawFrame, Content: ContentOfReceived(frame)}, frame.GetPosition())
	}
	switch n := response.GetNotice().(type) {
	case *fanfarev1.SubscribeResponse_Subscribed:
		e := startOf(request)
		e.Kind, e.Resumed = SawSubscribed, n.Subscribed.GetResumed()
		f.record(e, n.Subscribed.GetResumeAfter())
	case *fanfarev1.SubscribeResponse_Gap:
		f.record(Event{Kind: SawGap, Reason: n.Gap.GetReason()}, n.Gap.GetResumeAfter())
	case *fanfarev1.SubscribeResponse_CaughtUp:
		f.record(Event{Kind: SawCaughtUp}, n.CaughtUp.GetPosition())
	case *fanfarev1.SubscribeResponse_Closed:
		f.record(Event{Kind: SawClosed}, n.Closed.GetLast())
	}
}

func startOf(request *fanfarev1.SubscribeRequest) Event {
	switch start := request.GetStart().(type) {
	case *fanfarev1.SubscribeRequest_After:
		return Event{Start: StartAfter, Asked: positionOf(start.After)}
	case *fanfarev1.SubscribeRequest_Live:
		return Event{Start: StartLive}
	case *fanfarev1.SubscribeRequest_Last:
		return Event{Start: StartLast}
	default:
		return Event{Start: StartOldest}
	}
}

func positionOf(p *fanfarev1.Position) backlog.Position {
	return backlog.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}

// record appends an event; position, if not nil, becomes the follower's.
func (f *Follower) record(e Event, position *fanfarev1.Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if position != nil {
		e.Position = positionOf(position)
		f.position = &e.Position
	}
	e.Tick, e.At = f.recorder.now(), f.recorder.Moment()
	f.events = append(f.events, e)
	f.changeLocked()
}

func (f *Follower) changeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *Follower) took() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.responses++
}

// Stall makes the follower take nothing after its next response, as a client that
// hangs, until the returned function is called.
func (f *Follower) Stall() (goOn func()) {
	f.addStall(1)
	return sync.OnceFunc(func() { f.addStall(-1) })
}

func (f *Follower) addStall(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stalls += n
	f.changeLocked()
}

// Name is what the run calls it.
func (f *Follower) Name() string { return f.name }

// Stream is what it follows.
func (f *Follower) Stream() backlog.StreamName { return f.stream }

// Position returns where the follower stands; false before Subscribed.
func (f *Follower) Position() (backlog.Position, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.position == nil {
		return backlog.Position{}, false
	}
	return *f.position, true
}

// AwaitSubscribed waits until the follower has been acknowledged.
func (f *Follower) AwaitSubscribed(ctx context.Context) error {
	return f.await(ctx, "Subscribed", func() bool { return f.position != nil })
}

// AwaitLast waits for the last frame of the run on this stream; the follower is
// then complete.
func (f *Follower) AwaitLast(ctx context.Context, last backlog.Position) error {
	err := f.await(ctx, last.String(), func() bool { return f.position != nil && f.position.Sequence >= last.Sequence })
	f.completeIf(err == nil)
	return err
}

func (f *Follower) completeIf(done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.complete = f.complete || done
}

// AwaitLastFrame is AwaitLast by content, for streams that are closed in the run,
// whose sequences begin anew.
func (f *Follower) AwaitLastFrame(ctx context.Context, c Content) error {
	err := f.AwaitFrame(ctx, c)
	f.completeIf(err == nil)
	return err
}

// AwaitFrame waits for a durable frame.
func (f *Follower) AwaitFrame(ctx context.Context, c Content) error {
	return f.awaitEvent(ctx, "a durable frame", SawFrame, c)
}

// AwaitEphemeral waits for an ephemeral frame.
func (f *Follower) AwaitEphemeral(ctx context.Context, c Content) error {
	return f.awaitEvent(ctx, "an ephemeral frame", SawEphemeral, c)
}

func (f *Follower) awaitEvent(ctx context.Context, what string, kind EventKind, c Content) error {
	return f.Await(ctx, what, func(e Event) bool { return e.Kind == kind && e.Content == c })
}

// awaitFrom waits for an event among those from looked on.
func (f *Follower) awaitFrom(ctx context.Context, looked int, what string, is func(Event) bool) error {
	return f.await(ctx, what, func() bool {
		found := slices.ContainsFunc(f.events[looked:], is)
		looked = len(f.events)
		return found
	})
}

// Await waits for an event, unless there has been one.
func (f *Follower) Await(ctx context.Context, what string, is func(Event) bool) error {
	return f.awaitFrom(ctx, 0, what, is)
}

// Expect returns a function that waits for an event from now on.
func (f *Follower) Expect(what string, is func(Event) bool) (await func(ctx context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := len(f.events)
	return func(ctx context.Context) error { return f.awaitFrom(ctx, from, what, is) }
}

// await waits for a condition that is evaluated with mu held.
func (f *Follower) await(ctx context.Context, what string, condition func() bool) error {
	for {
		f.mu.Lock()
		done, changed, events, position := condition(), f.changed, len(f.events), f.position
		f.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("follower %s of %s waits for %s after %d events at %v: %w", f.name, f.stream, what, events, position, ctx.Err())
		}
	}
}

func (f *Follower) subscriber() Subscriber {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Subscriber{Name: f.name, Stream: f.stream, Events: f.events, Complete: f.complete, Slow: f.cfg.Rest > 0}
}
