package clientlib

import (
	"fmt"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Event is what a subscription yields: one of *[Frame], *[Subscribed], *[CaughtUp],
// *[Gap], *[Status], *[Closed] and *[Interrupted].
type Event interface{ event() }

// Frame is a published frame. Its payload and headers must not be changed: subscriptions
// of one stream may share them.
type Frame struct {
	// Position is where the frame stands in its stream; zero if it is ephemeral.
	Position Position
	// Payload is the published bytes, unchanged; may be empty.
	Payload []byte
	// ContentType is the publisher's; empty if it gave none.
	ContentType string
	// EventType is the publisher's; empty if it gave none.
	EventType string
	// Headers are the publisher's; nil if it gave none.
	Headers map[string]string
	// Created is when the frame was numbered or, if it is ephemeral, published, by the
	// store's clock. Order is by position and delivery alone.
	Created time.Time
	// Ephemeral is true if the frame is not stored. It leaves the position as it is.
	Ephemeral bool
}

// Subscribed says that the subscription is in force: a frame that commits from now
// on will be delivered. It comes first, and again after each [Interrupted] that the
// subscription has got over.
type Subscribed struct {
	// Head is the stream's newest position; 0-0 if it does not exist.
	Head Position
	// Oldest is the oldest sequence that a new subscription could replay; head + 1 if
	// there is none.
	Oldest uint64
	// ResumeAfter is where delivery begins: the next frame is the one after it, unless
	// a Gap follows.
	ResumeAfter Position
	// Resumed is true if delivery continues from a position without a gap.
	Resumed bool
	// Ephemeral is true if the stream has ever carried an ephemeral frame. Where a
	// subscription comes back to such a stream, a Gap with the reason
	// [EphemeralMaybeMissed] follows.
	Ephemeral bool
}

// CaughtUp says that all frames stored before the subscription began have been
// delivered. It comes once after each Subscribed and after each Gap that frames were
// lost in.
type CaughtUp struct {
	// Position is the subscription's.
	Position Position
}

// Gap says that frames are missing here.
type Gap struct {
	// Reason is why.
	Reason GapReason
	// Requested is the position that could not be continued from.
	Requested Position
	// Oldest is the oldest sequence that can be replayed.
	Oldest uint64
	// Head is the stream's newest position.
	Head Position
	// ResumeAfter is the subscription's new position: delivery goes on after it. With
	// EphemeralMaybeMissed it is the same as Requested.
	ResumeAfter Position
}

// GapReason says why frames are missing. Take an unknown one for a loss.
type GapReason int32

// Reasons of a [Gap].
const (
	// Trimmed: frames after the position are no longer in the backlog.
	Trimmed = GapReason(fanfarev1.GapReason_GAP_REASON_TRIMMED)
	// EpochChanged: the position belongs to another numbering. The stream was closed
	// and reopened, or the store lost commits.
	EpochChanged = GapReason(fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED)
	// Ahead: the position is ahead of the stream's head. The store lost commits.
	Ahead = GapReason(fanfarev1.GapReason_GAP_REASON_AHEAD)
	// EphemeralMaybeMissed: ephemeral frames may have been missed here. No durable one
	// was, and the position stays.
	EphemeralMaybeMissed = GapReason(fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED)
)

// String is the reason's name in the protocol, such as TRIMMED.
func (r GapReason) String() string {
	const prefix = "GAP_REASON_"
	if name := fanfarev1.GapReason(r).String(); len(name) > len(prefix) && name[:len(prefix)] == prefix {
		return name[len(prefix):]
	}
	return fmt.Sprintf("GapReason(%d)", int32(r))
}

// Status tells of the server's listener. While it does not listen, durable frames
// wait and ephemeral ones may be missed.
type Status struct {
	// Listening is whether the server hears of new frames.
	Listening bool
}

// Closed says that the stream was closed. It is the last event; io.EOF follows.
type Closed struct {
	// Last is the last position of the numbering that ended.
	Last Position
}

// Interrupted says that the call ended, or could not begin, and that the
// subscription tries again by itself. Ephemeral frames that are published until the
// next Subscribed are missed; durable ones are not.
type Interrupted struct {
	// Err is why: usually an *[Error].
	Err error
	// RetryIn is how long the subscription waits before it tries again.
	RetryIn time.Duration
}

func (*Frame) event()       {}
func (*Subscribed) event()  {}
func (*CaughtUp) event()    {}
func (*Gap) event()         {}
func (*Status) event()      {}
func (*Closed) event()      {}
func (*Interrupted) event() {}

func frameOf(f *fanfarev1.Frame) *Frame {
	frame := &Frame{
		Position:    positionOf(f.GetPosition()),
		Payload:     f.GetPayload(),
		ContentType: f.GetContentType(),
		EventType:   f.GetEventType(),
		Headers:     f.GetHeaders(),
		Ephemeral:   f.GetEphemeral(),
	}
	if created := f.GetCreated(); created != nil {
		frame.Created = created.AsTime()
	}
	return frame
}
