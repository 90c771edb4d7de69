package sse_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// upstream is a server of one stream that does what the protocol says, and to which
// happens what a test wants: what takes a real one a failover, a restore or bad luck.
type upstream struct {
	fanfarev1.UnimplementedFanfareServiceServer

	mu sync.Mutex // guards what follows
	// numbering is the epoch that the numbering began with, epoch that of the next frame;
	// 0: there is no numbering.
	numbering, epoch uint64
	// frames are those of the numbering; what is up to floor is trimmed.
	frames []*fanfarev1.Frame
	floor  uint64
	// closed is true while the stream is closed; everClosed once it has been.
	closed, everClosed bool
	passed             int // ephemeral frames published
	carries, deaf      bool
	calls              map[*upstreamCall]bool
	// held says who is not answered; nil: nobody.
	held      func(*fanfarev1.SubscribeRequest) bool
	changed   chan struct{}
	lastEpoch uint64
}

// upstreamCall is a Subscribe.
type upstreamCall struct {
	pending []*fanfarev1.SubscribeResponse
	more    chan struct{}
	// end is what the call ends with after pending, once over is true.
	over bool
	end  error
	// lags is true while pending is kept back.
	lags bool
}

func (c *upstreamCall) send(r *fanfarev1.SubscribeResponse) {
	c.pending = append(c.pending, r)
	c.signal()
}

func (c *upstreamCall) finish(err error) {
	c.over, c.end = true, err
	c.signal()
}

func (c *upstreamCall) signal() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// startUpstream serves until the test ends, and returns the address.
func startUpstream(t testing.TB) (*upstream, string) {
	t.Helper()
	u := &upstream{calls: map[*upstreamCall]bool{}, changed: make(chan struct{})}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	fanfarev1.RegisterFanfareServiceServer(server, u)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(socket) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return u, socket.Addr().String()
}

// hold has nobody answered, or everybody again.
func (u *upstream) hold(held bool) {
	u.holdThose(func(*fanfarev1.SubscribeRequest) bool { return held })
}

// holdThose has those not answered that held says.
func (u *upstream) holdThose(held func(*fanfarev1.SubscribeRequest) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held = held
	close(u.changed)
	u.changed = make(chan struct{})
}

func (u *upstream) Subscribe(r *fanfarev1.SubscribeRequest, s fanfarev1.FanfareService_SubscribeServer) error {
	u.mu.Lock()
	for u.held != nil && u.held(r) {
		changed := u.changed
		u.mu.Unlock()
		select {
		case <-changed:
		case <-s.Context().Done():
			return s.Context().Err()
		}
		u.mu.Lock()
	}
	if u.deaf {
		u.mu.Unlock()
		return status.Error(codes.Unavailable, "not listening")
	}
	c := &upstreamCall{more: make(chan struct{}, 1)}
	u.calls[c] = true
	u.beginLocked(c, r)
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.calls, c)
	}()
	for {
		u.mu.Lock()
		pending, over, end := c.pending, c.over, c.end
		if c.lags {
			pending, over = nil, false
		} else {
			c.pending = nil
		}
		u.mu.Unlock()
		for _, response := range pending {
			if err := s.Send(response); err != nil {
				return err
			}
		}
		if over {
			return end
		}
		select {
		case <-c.more:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// lag has the calls that there are lag behind, or catch up.
func (u *upstream) lag(lags bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.calls {
		c.lags = lags
		c.signal()
	}
}

func (u *upstream) at(sequence uint64) *fanfarev1.Position {
	switch {
	case u.numbering == 0:
		return &fanfarev1.Position{}
	case sequence == 0:
		return &fanfarev1.Position{Epoch: u.numbering}
	default:
		return u.frames[sequence-1].GetPosition()
	}
}

func (u *upstream) head() uint64 { return uint64(len(u.frames)) }

// beginLocked queues what a new call gets at once.
func (u *upstream) beginLocked(c *upstreamCall, r *fanfarev1.SubscribeRequest) {
	head := u.at(u.head())
	subscribed := &fanfarev1.Subscribed{Head: head, Oldest: u.floor + 1, Ephemeral: u.carries}
	var gap *fanfarev1.Gap
	from, waits := u.floor, u.closed
	switch start := r.GetStart().(type) {
	case *fanfarev1.SubscribeRequest_Live:
		from = u.head()
	case *fanfarev1.SubscribeRequest_Last:
		from = max(u.floor, u.head()-min(u.head(), start.Last))
	case *fanfarev1.SubscribeRequest_After:
		var reason fanfarev1.GapReason
		p := start.After
		switch {
		case p.GetEpoch() == 0 && p.GetSequence() == 0 && !u.everClosed && u.floor == 0:
			from, waits = 0, false
		case u.numbering != 0 && p.GetSequence() > u.head():
			reason = fanfarev1.GapReason_GAP_REASON_AHEAD
		case u.numbering == 0 || u.at(p.GetSequence()).GetEpoch() != p.GetEpoch():
			reason = fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED
		case p.GetSequence() < u.floor:
			reason = fanfarev1.GapReason_GAP_REASON_TRIMMED
		default:
			from, waits = p.GetSequence(), false
		}
		subscribed.Resumed, subscribed.ResumeAfter = reason == 0, p
		if reason != 0 {
			gap = &fanfarev1.Gap{Reason: reason, Requested: p, Oldest: u.floor + 1, Head: head}
		}
	}
	after := u.at(from)
	if waits {
		after = &fanfarev1.Position{}
	}
	if subscribed.ResumeAfter == nil {
		subscribed.ResumeAfter = after
	}
	c.send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{Subscribed: subscribed}})
	if gap != nil {
		gap.ResumeAfter = after
		c.send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: gap}})
	}
	if !waits {
		for _, f := range u.frames[from:] {
			c.send(&fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{f}})
		}
		after = head
	}
	c.send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{CaughtUp: &fanfarev1.CaughtUp{Position: after}}})
	if u.closed && !waits {
		c.send(closedResponse(head))
		c.finish(nil)
	}
}

func closedResponse(last *fanfarev1.Position) *fanfarev1.SubscribeResponse {
	return &fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Closed{Closed: &fanfarev1.Closed{Last: last}}}
}

func (u *upstream) sendAllLocked(r *fanfarev1.SubscribeResponse) {
	for c := range u.calls {
		if !c.over {
			c.send(r)
		}
	}
}

// reopenLocked begins a numbering if there is none.
func (u *upstream) reopenLocked() {
	if u.numbering == 0 || u.closed {
		u.lastEpoch++
		u.numbering, u.epoch, u.frames, u.floor, u.closed = u.lastEpoch, u.lastEpoch, nil, 0, false
	}
}

// publish publishes durable frames, whose payload is their position.
func (u *upstream) publish(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range n {
		u.reopenLocked()
		p := &fanfarev1.Position{Epoch: u.epoch, Sequence: u.head() + 1}
		f := &fanfarev1.Frame{Position: p, Payload: []byte(positionText(p))}
		u.frames = append(u.frames, f)
		u.sendAllLocked(&fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{f}})
	}
}

// pass publishes an ephemeral frame, whose payload is its number and what it follows.
func (u *upstream) pass() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reopenLocked()
	u.passed++
	u.carries = true
	f := &fanfarev1.Frame{Ephemeral: true, Payload: fmt.Appendf(nil, "%d after %s", u.passed, positionText(u.at(u.head())))}
	u.sendAllLocked(&fanfarev1.SubscribeResponse{Frames: []*fanfarev1.Frame{f}})
}

// published is how many ephemeral frames have been.
func (u *upstream) published() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.passed
}

func (u *upstream) closeStream() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.numbering == 0 || u.closed {
		return
	}
	u.closed, u.everClosed = true, true
	for c := range u.calls {
		c.send(closedResponse(u.at(u.head())))
		c.finish(nil)
	}
}

// trim drops all frames but the newest n.
func (u *upstream) trim(n uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.floor = max(u.floor, u.head()-min(u.head(), n))
}

// moveOrigin has later frames in another epoch, as after a restart of the database.
func (u *upstream) moveOrigin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lastEpoch++
	u.epoch = u.lastEpoch
}

// loseCommits takes the newest frames back, as a failover can. All are told.
func (u *upstream) loseCommits(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.numbering == 0 || u.closed || len(u.frames) < n || u.head()-uint64(n) < u.floor {
		return
	}
	requested := u.at(u.head())
	u.frames = u.frames[:len(u.frames)-n]
	u.lastEpoch++
	u.epoch = u.lastEpoch
	if len(u.frames) == 0 {
		u.numbering = u.epoch
	}
	after := u.at(u.head())
	u.sendAllLocked(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: &fanfarev1.Gap{
		Reason: fanfarev1.GapReason_GAP_REASON_AHEAD, Requested: requested, Oldest: u.floor + 1, Head: after, ResumeAfter: after,
	}}})
	u.sendAllLocked(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{CaughtUp: &fanfarev1.CaughtUp{Position: after}}})
}

// interrupt ends all calls.
func (u *upstream) interrupt() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.calls {
		c.finish(status.Error(codes.Unavailable, "as the test says"))
	}
}

// listen has the server lose its listener, or have it back; then ephemeral frames may
// have been missed.
func (u *upstream) listen(listening bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.deaf == !listening {
		return
	}
	u.deaf = !listening
	if listening && u.carries {
		for c := range u.calls {
			if p := u.at(u.head()); !c.over {
				c.send(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Gap{Gap: &fanfarev1.Gap{
					Reason: fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED, Requested: p, Head: p, ResumeAfter: p,
				}}})
			}
		}
	}
	u.sendAllLocked(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Status{Status: &fanfarev1.Status{Listening: listening}}})
}

// The first byte says that what commits from now on arrives, so none may come before the
// server has said so; and then it must come.
func TestNothingIsSentBeforeTheSubscriptionIsInForce(t *testing.T) {
	u, address := startUpstream(t)
	e := newEdge(t, newClient(t, []string{address}), nil)
	u.hold(true)
	opened := make(chan *browser, 1)
	go func() { opened <- e.open(one) }()
	eventually(t, "the edge waits for the server", func() bool { return e.Stats().Connections == 1 && e.Stats().Streams == 1 })
	select {
	case <-opened:
		t.Fatal("the request was answered and the server was not")
	case <-time.After(200 * time.Millisecond): // that nothing comes cannot be awaited
	}
	u.hold(false)
	b := <-opened
	u.pass()
	b.until("1 after")
}
