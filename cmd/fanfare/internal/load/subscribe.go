package load

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// NoticeKind says what a subscriber is told beside frames.
type NoticeKind int

// The numbers are those of the fields in SubscribeResponse.
const (
	CaughtUp NoticeKind = iota + 3
	Gap
	Progress
	Status
	Closed
	Closing
)

// String returns the notice's name.
func (k NoticeKind) String() string {
	names := [...]string{"CaughtUp", "Gap", "Progress", "Status", "Closed", "Closing"}
	if k < CaughtUp || k > Closing {
		return "unknown notice"
	}
	return names[k-CaughtUp]
}

// StreamHandler takes what a subscription gets. It is called on the connection's
// reader, in the order of arrival, and must not block; a time is that of arrival.
// After Cancel it may be called for what is being handed on at the moment, and then
// no more.
type StreamHandler interface {
	// Subscribed is called with the sequence after which delivery begins.
	Subscribed(after uint64, at time.Time)
	// Frames is called for n frames that stand one behind the other in one message:
	// durable ones, whose sequences ascend by one from first to last; or ephemeral
	// ones, with first and last 0. bytes is the size of their encodings.
	Frames(n int, first, last uint64, bytes int, at time.Time)
	// Notice is called for notices other than Subscribed.
	Notice(kind NoticeKind, at time.Time)
	// End is called last: with nil for the status OK, else with the status as grpc-go
	// would return it, or ErrClosed.
	End(err error)
}

// Stream is a subscription.
type Stream struct {
	conn   *Conn
	stream *stream
}

// Subscribe begins a subscription and returns at once. h may be called before it
// returns.
func (c *Conn) Subscribe(r *fanfarev1.SubscribeRequest, h StreamHandler) (*Stream, error) {
	return c.subscribe(r, h, false)
}

// SubscribeHeld begins a subscription that takes Options.StreamWindow bytes and then
// nothing more until Resume, as one whose client has stopped reading.
func (c *Conn) SubscribeHeld(r *fanfarev1.SubscribeRequest, h StreamHandler) (*Stream, error) {
	if c.options.StreamWindow == maxWindow {
		return nil, errors.New("a stream cannot be held without a bound on its window")
	}
	return c.subscribe(r, h, true)
}

func (c *Conn) subscribe(r *fanfarev1.SubscribeRequest, h StreamHandler, held bool) (*Stream, error) {
	request, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	s, err := c.open(fanfarev1.FanfareService_Subscribe_FullMethodName, request, subscription{h}, held)
	if err != nil {
		return nil, err
	}
	return &Stream{conn: c, stream: s}, nil
}

// Cancel ends the subscription, without a call of End.
func (s *Stream) Cancel() { s.conn.giveUp(s.stream.id) }

// Resume lets a held subscription take everything. It must be called at most once,
// and not for others.
func (s *Stream) Resume() {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[s.stream.id] == nil {
		return
	}
	c.must(c.framer.WriteWindowUpdate(s.stream.id, maxWindow-c.options.StreamWindow))
	c.signal()
}

// subscription takes the messages of a Subscribe call apart.
type subscription struct{ StreamHandler }

func (s subscription) end(err error) { s.End(err) }

var errMalformed = status.Error(codes.Internal, "the server sent a message that is no SubscribeResponse")

// message reads a SubscribeResponse. A run of frames that ascend by one is handed on
// as one; where they do not, the next run begins, for the handler to judge.
func (s subscription) message(b []byte, at time.Time) error {
	var run run
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return errMalformed
		}
		if kind != protowire.BytesType {
			n := protowire.ConsumeFieldValue(number, kind, b[tag:])
			if n < 0 {
				return errMalformed
			}
			b = b[tag+n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b[tag:])
		if n < 0 {
			return errMalformed
		}
		if number == 1 {
			sequence, err := sequenceOf(value)
			if err != nil {
				return err
			}
			if !run.add(sequence, tag+n) {
				s.Frames(run.n, run.first, run.last, run.bytes, at)
				run.begin(sequence, tag+n)
			}
		} else if err := s.notice(number, value, at); err != nil {
			return err
		}
		b = b[tag+n:]
	}
	if run.n > 0 {
		s.Frames(run.n, run.first, run.last, run.bytes, at)
	}
	return nil
}

// notice hands a notice on. One that this client does not know is ignored.
func (s subscription) notice(number protowire.Number, value []byte, at time.Time) error {
	switch kind := NoticeKind(number); {
	case kind == CaughtUp-1:
		var subscribed fanfarev1.Subscribed
		if proto.Unmarshal(value, &subscribed) != nil {
			return errMalformed
		}
		s.Subscribed(subscribed.GetResumeAfter().GetSequence(), at)
	case kind >= CaughtUp && kind <= Closing:
		s.Notice(kind, at)
	}
	return nil
}

// run is frames of one message that stand one behind the other.
type run struct {
	n           int
	first, last uint64
	bytes       int
}

// add adds a frame, 0 for an ephemeral one, and reports whether it belongs to the
// run.
func (r *run) add(sequence uint64, bytes int) bool {
	switch {
	case r.n == 0:
		r.begin(sequence, bytes)
		return true
	case sequence == 0 && r.last == 0, sequence != 0 && r.last != 0 && sequence == r.last+1:
		r.n, r.last, r.bytes = r.n+1, sequence, r.bytes+bytes
		return true
	}
	return false
}

func (r *run) begin(sequence uint64, bytes int) { *r = run{1, sequence, sequence, bytes} }

// sequenceOf returns the sequence of an encoded Frame, 0 for an ephemeral one. It
// looks no further than it must; servers write the position first.
func sequenceOf(frame []byte) (uint64, error) {
	ephemeral := false
	for len(frame) > 0 {
		number, kind, tag := protowire.ConsumeTag(frame)
		if tag < 0 {
			return 0, errMalformed
		}
		n := protowire.ConsumeFieldValue(number, kind, frame[tag:])
		if n < 0 {
			return 0, errMalformed
		}
		switch {
		case number == 1 && kind == protowire.BytesType:
			position, _ := protowire.ConsumeBytes(frame[tag:])
			return sequenceOfPosition(position)
		case number == 7 && kind == protowire.VarintType:
			ephemeral = frame[tag] != 0
		}
		frame = frame[tag+n:]
	}
	if !ephemeral {
		return 0, errMalformed
	}
	return 0, nil
}

// sequenceOfPosition returns the sequence of an encoded Position, which a frame has
// from 1 on.
func sequenceOfPosition(position []byte) (uint64, error) {
	var sequence uint64
	for len(position) > 0 {
		number, kind, tag := protowire.ConsumeTag(position)
		if tag < 0 {
			return 0, errMalformed
		}
		n := protowire.ConsumeFieldValue(number, kind, position[tag:])
		if n < 0 {
			return 0, errMalformed
		}
		if number == 2 && kind == protowire.VarintType {
			sequence, _ = protowire.ConsumeVarint(position[tag:])
		}
		position = position[tag+n:]
	}
	if sequence == 0 {
		return 0, errMalformed
	}
	return sequence, nil
}
