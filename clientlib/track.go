package clientlib

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// maxBreaks is how often in a row a server may deliver a stream with a hole before the
// subscription gives up.
const maxBreaks = 5

// delivery is what SubscribeResponse and SessionResponse have in common.
type delivery interface {
	GetFrames() []*fanfarev1.Frame
	GetSubscribed() *fanfarev1.Subscribed
	GetCaughtUp() *fanfarev1.CaughtUp
	GetGap() *fanfarev1.Gap
	GetProgress() *fanfarev1.Progress
	GetStatus() *fanfarev1.Status
	GetClosed() *fanfarev1.Closed
	GetClosing() *fanfarev1.Closing
}

// item is an event on its way to Next.
type item struct {
	// event is nil if only the size counts: a frame that the subscription has had.
	event Event
	// position is the subscription's once Next has returned the event.
	position Position
	// size is that of a frame as the server encoded it, 0 of other events.
	size int
}

// track follows a subscription through its calls. It knows where the next call begins,
// and hands nothing on that does not continue what was before: neither a repetition
// nor what comes after a hole. It does no I/O and is for one goroutine.
type track struct {
	stream Stream
	start  Start
	// position is after everything handed on, once begun is true.
	position Position
	begun    bool
	// ephemeral is true once the stream is known to carry ephemeral frames.
	ephemeral bool
	// awaits is the head of a closed stream of whose next numbering the subscription
	// has seen nothing yet; zero otherwise.
	awaits Position
	breaks int

	// What follows is of the current call.

	// asked is the position that the call resumes from, if resumes is true.
	asked   Position
	resumes bool
	// subscribed is true once Subscribed came, closed once Closed did.
	subscribed, closed bool
	// owesGap is true if the server did not resume, until it has said why.
	owesGap bool
	// retryIn is what Closing asked for.
	retryIn time.Duration

	items []item
}

func newTrack(stream Stream, start Start) track {
	return track{stream: stream, start: start, position: start.position}
}

// begin returns the request of the next call: the start again while the server has not
// said where that is, and from then on what follows the position. Live again would
// miss what was published in between.
func (t *track) begin() *fanfarev1.SubscribeRequest {
	start := t.start
	if t.begun {
		start = After(t.position)
	}
	t.asked, t.resumes = start.position, start.kind == startAfter
	t.subscribed, t.owesGap, t.retryIn = false, false, 0
	return start.request(t.stream)
}

// take returns what a response brings; the next take overwrites it. With an error the
// call cannot be trusted any further, and what was returned is good.
func (t *track) take(r delivery) ([]item, error) {
	clear(t.items)
	t.items = t.items[:0]
	for _, f := range r.GetFrames() {
		if err := t.takeFrame(f); err != nil {
			return t.items, err
		}
	}
	return t.items, t.takeNotice(r)
}

func (t *track) takeFrame(f *fanfarev1.Frame) error {
	size := encodedSize(f)
	p := positionOf(f.GetPosition())
	switch {
	case !t.subscribed:
		return t.broken("a frame came before Subscribed")
	case f.GetEphemeral():
		t.ephemeral = true
	case t.owesGap:
		return t.broken("frame %s came and no Gap, though delivery was not resumed after %s", p, t.asked)
	case p.Sequence == t.position.Sequence+1:
		t.position, t.awaits, t.breaks = p, Position{}, 0
	case p.Sequence <= t.position.Sequence && p.Epoch == t.position.Epoch:
		t.items = append(t.items, item{size: size, position: t.position})
		return nil
	default:
		return t.broken("frame %s came after %s without a Gap", p, t.position)
	}
	t.items = append(t.items, item{frameOf(f), t.position, size})
	return nil
}

// encodedSize is what a frame takes in the server's message, and of credit.
func encodedSize(f *fanfarev1.Frame) int {
	return protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(f))
}

func (t *track) takeNotice(r delivery) error {
	switch {
	case r.GetSubscribed() != nil:
		return t.takeSubscribed(r.GetSubscribed())
	case r.GetClosing() != nil:
		t.retryIn = r.GetClosing().GetRetryIn().AsDuration()
	case r.GetStatus() != nil:
		t.add(&Status{Listening: r.GetStatus().GetListening()})
	case r.GetGap() != nil:
		t.takeGap(r.GetGap())
	case r.GetCaughtUp() != nil:
		if err := t.reach("CaughtUp", r.GetCaughtUp().GetPosition()); err != nil {
			return err
		}
		t.add(&CaughtUp{Position: t.position})
	case r.GetProgress() != nil:
		return t.reach("Progress", r.GetProgress().GetPosition())
	case r.GetClosed() != nil:
		if err := t.reach("Closed", r.GetClosed().GetLast()); err != nil {
			return err
		}
		t.closed = true
		t.add(&Closed{Last: positionOf(r.GetClosed().GetLast())})
	}
	return nil
}

func (t *track) takeSubscribed(n *fanfarev1.Subscribed) error {
	after, head := positionOf(n.GetResumeAfter()), positionOf(n.GetHead())
	switch {
	case t.subscribed:
		return t.broken("Subscribed came twice")
	case t.resumes && after.Sequence != t.asked.Sequence:
		return t.broken("what follows %s was asked for, and delivery begins after %s", t.asked, after)
	}
	again := t.begun
	t.begun, t.subscribed = true, true
	if t.owesGap = t.resumes && !n.GetResumed(); !t.owesGap { // otherwise the Gap moves it
		t.moveTo(after, head)
	}
	t.ephemeral = t.ephemeral || n.GetEphemeral()
	t.add(&Subscribed{Head: head, Oldest: n.GetOldest(), ResumeAfter: after, Resumed: n.GetResumed(), Ephemeral: n.GetEphemeral()})
	if again && t.ephemeral {
		t.add(&Gap{Reason: EphemeralMaybeMissed, Requested: after, Oldest: n.GetOldest(), Head: head, ResumeAfter: after})
	}
	return nil
}

func (t *track) takeGap(n *fanfarev1.Gap) {
	g := &Gap{
		Reason:      GapReason(n.GetReason()),
		Requested:   positionOf(n.GetRequested()),
		Oldest:      n.GetOldest(),
		Head:        positionOf(n.GetHead()),
		ResumeAfter: positionOf(n.GetResumeAfter()),
	}
	if g.Reason == EphemeralMaybeMissed {
		t.ephemeral = true
		t.add(g)
		return
	}
	t.owesGap = false
	// Who waits for the next numbering of a closed stream has the position 0-0, which
	// the server cannot resume from. As long as it is the same numbering that is closed
	// there is nothing to miss.
	waits := t.position.IsZero() && g.ResumeAfter.IsZero() && g.Head == t.awaits && !g.Head.IsZero()
	t.moveTo(g.ResumeAfter, g.Head)
	if !waits {
		t.add(g)
	}
}

// moveTo moves the position. At 0-0 delivery goes on with the next numbering, and head
// is that of the last.
func (t *track) moveTo(p, head Position) {
	t.position, t.awaits = p, Position{}
	if p.IsZero() {
		t.awaits = head
	}
}

// reach checks a notice's position, which must not be ahead of what came.
func (t *track) reach(notice string, at *fanfarev1.Position) error {
	if at == nil {
		return nil
	}
	if p := positionOf(at); p.Sequence > t.position.Sequence {
		return t.broken("%s said %s after %s without a Gap", notice, p, t.position)
	}
	return nil
}

func (t *track) add(e Event) { t.items = append(t.items, item{event: e, position: t.position}) }

// broken is the error of a delivery that is not contiguous.
func (t *track) broken(format string, args ...any) error {
	t.breaks++
	return &Error{Code: codes.DataLoss, Message: fmt.Sprintf(format, args...), cause: ErrNotContiguous}
}

// hopeless reports whether resuming has not helped often enough.
func (t *track) hopeless() bool { return t.breaks >= maxBreaks }
