package main

import (
	"math/rand/v2"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// maxMessageBytes bounds a message that carries several frames of the backlog, as
// the product bounds it.
const maxMessageBytes = 64 << 10

type streamName struct{ channel, scope string }

// hub has all streams. It keeps a stream for good once it was named.
type hub struct {
	form    form
	backlog int // frames of each stream that are kept
	buffer  int // messages that wait for one subscription
	epoch   uint64

	mu      sync.RWMutex // guards streams; taken before a stream's mu, never with it
	streams map[streamName]*stream
}

// stream is one numbering and who is subscribed to it.
type stream struct {
	hub *hub

	// mu makes the order of sequences that of the subscriptions' channels. A
	// publisher waits for full channels while it holds it.
	mu            sync.Mutex
	head          uint64
	kept          []*message // the newest frames, at most twice the backlog; elements never change
	subscriptions []*subscription
}

// message is one frame. Subscriptions share it, and their channels hold pointers:
// half of what interfaces take.
type message struct {
	content any // for SendMsg
	size    int // of its encoding
}

// subscription is one Subscribe call.
type subscription struct {
	stream   *stream
	index    int // in stream.subscriptions; guarded by stream.mu
	messages chan *message
	left     chan struct{} // closed when nobody reads messages any more
}

func newHub(f form, backlog, buffer int) *hub {
	return &hub{
		form: f, backlog: backlog, buffer: buffer,
		epoch:   rand.Uint64()>>2 | 1<<62, // as large as the product's, so that it takes as many bytes
		streams: make(map[streamName]*stream),
	}
}

func (h *hub) stream(name streamName) *stream {
	h.mu.RLock()
	s := h.streams[name]
	h.mu.RUnlock()
	if s != nil {
		return s
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams[name] == nil {
		h.streams[name] = &stream{hub: h}
	}
	return h.streams[name]
}

// publish numbers a frame and hands it to every subscription of its stream. It
// waits for those that are full.
func (h *hub) publish(f *fanfarev1.NewFrame) (*fanfarev1.PublishResponse, error) {
	s := h.stream(streamName{f.GetChannel(), f.GetScope()})
	s.mu.Lock()
	defer s.mu.Unlock()
	position := h.position(s.head + 1)
	m, err := h.form.message(&fanfarev1.Frame{
		Position: position, Created: timestamppb.Now(),
		Payload: f.GetPayload(), ContentType: f.GetContentType(), EventType: f.GetEventType(), Headers: f.GetHeaders(),
	})
	if err != nil {
		return nil, err
	}
	s.head++
	if h.backlog > 0 {
		s.keep(m)
	}
	for _, sub := range s.subscriptions {
		select {
		case sub.messages <- m:
		default:
			select {
			case sub.messages <- m:
			case <-sub.left:
			}
		}
	}
	return &fanfarev1.PublishResponse{Position: position}, nil
}

// position is 0-0 before the first frame.
func (h *hub) position(sequence uint64) *fanfarev1.Position {
	if sequence == 0 {
		return &fanfarev1.Position{}
	}
	return &fanfarev1.Position{Epoch: h.epoch, Sequence: sequence}
}

// keep adds a frame to the backlog. What it drops it drops by copying the rest,
// since subscriptions that replay hold on to the slice.
func (s *stream) keep(m *message) {
	if len(s.kept) >= 2*s.hub.backlog {
		s.kept = slices.Clone(s.kept[len(s.kept)-s.hub.backlog+1:])
	}
	s.kept = append(s.kept, m)
}

// start is what a subscription is sent before its channel.
type start struct {
	subscribed *fanfarev1.Subscribed
	replay     []*message
	caughtUp   *fanfarev1.Position
}

// subscribe registers a subscription. Whatever is published from then on waits in
// its channel; what was before is in the start.
func (h *hub) subscribe(r *fanfarev1.SubscribeRequest) (*subscription, start) {
	sub := &subscription{
		stream:   h.stream(streamName{r.GetChannel(), r.GetScope()}),
		messages: make(chan *message, h.buffer),
		left:     make(chan struct{}),
	}
	s := sub.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.index = len(s.subscriptions)
	s.subscriptions = append(s.subscriptions, sub)
	replayable := s.kept[max(0, len(s.kept)-h.backlog):]
	oldest := s.head - uint64(len(replayable)) + 1
	after := min(max(startOf(r, s.head), oldest-1), s.head)
	return sub, start{
		subscribed: &fanfarev1.Subscribed{Head: h.position(s.head), Oldest: oldest, ResumeAfter: h.position(after), Resumed: r.GetAfter() != nil},
		replay:     replayable[after-(oldest-1):],
		caughtUp:   h.position(s.head),
	}
}

// startOf returns the sequence after which a request wants to begin, whether or
// not the backlog has what follows it.
func startOf(r *fanfarev1.SubscribeRequest, head uint64) uint64 {
	switch from := r.GetStart().(type) {
	case *fanfarev1.SubscribeRequest_Live:
		return head
	case *fanfarev1.SubscribeRequest_After:
		return from.After.GetSequence()
	case *fanfarev1.SubscribeRequest_Last:
		return head - min(from.Last, head)
	}
	return 0
}

// send sends the start: Subscribed, the frames in as few messages as may be, and
// CaughtUp.
func (s start) send(call grpc.ServerStream, f form) error {
	err := call.SendMsg(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_Subscribed{Subscribed: s.subscribed}})
	if err != nil {
		return err
	}
	for rest := s.replay; len(rest) > 0; {
		n, size := 1, rest[0].size
		for n < len(rest) && size+rest[n].size <= maxMessageBytes {
			size += rest[n].size
			n++
		}
		if err := call.SendMsg(f.join(rest[:n])); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return call.SendMsg(&fanfarev1.SubscribeResponse{Notice: &fanfarev1.SubscribeResponse_CaughtUp{CaughtUp: &fanfarev1.CaughtUp{Position: s.caughtUp}}})
}

// leave takes the subscription out of its stream.
func (sub *subscription) leave() {
	close(sub.left) // first: a publisher that waits for the channel holds the lock
	s := sub.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.subscriptions[len(s.subscriptions)-1]
	s.subscriptions[sub.index] = last
	last.index = sub.index
	s.subscriptions[len(s.subscriptions)-1] = nil
	s.subscriptions = s.subscriptions[:len(s.subscriptions)-1]
}
