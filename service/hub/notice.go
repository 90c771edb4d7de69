package hub

import "github.com/fanfare-io/fanfare/backlog"

// Delivery is what follows a cursor: frames or a notice, never both.
type Delivery struct {
	// Frames are encoded frames in order; the durable ones among them are
	// contiguous. The bytes are shared by all subscriptions: nobody may change them,
	// or the slice.
	Frames [][]byte
	// Last is the subscription's position once this is delivered, which no ephemeral
	// frame moves.
	Last backlog.Position
	// Notice is a Subscribed, Gap, CaughtUp, Status or Closed; nil if there are
	// Frames.
	Notice Notice
	// AtEnd is true if nothing follows yet: there is no need to ask, the wake hook will
	// be called.
	AtEnd bool
}

// Notice is what a subscriber must know besides frames: [Subscribed], [Gap],
// [CaughtUp], [Status] or [Closed].
type Notice interface{ notice() }

// Subscribed tells where a subscription begins. It comes first, once.
type Subscribed struct {
	// Head is the stream's newest position as this replica knows it: 0-0 if the
	// stream does not exist, the last one of the numbering that ended if it is
	// closed.
	Head backlog.Position
	// Oldest is the oldest sequence that a new subscription could replay;
	// Head.Sequence + 1 if there is none.
	Oldest uint64
	// ResumeAfter is where delivery begins. If a Gap follows it is the position
	// asked for, so that a client which loses the connection before the Gap asks
	// for it again, and is told again.
	ResumeAfter backlog.Position
	// Resumed is true if the start was a position and delivery continues from it.
	Resumed bool
	// Ephemeral is true if the stream has ever carried an ephemeral frame.
	Ephemeral bool
}

// GapReason says why frames are missing.
type GapReason uint8

// Reasons of a Gap.
const (
	// GapTrimmed: frames after the position have been trimmed.
	GapTrimmed GapReason = iota + 1
	// GapEpochChanged: the position belongs to another numbering.
	GapEpochChanged
	// GapAhead: the position is ahead of the stream's head.
	GapAhead
	// GapEphemeralMaybeMissed: ephemeral frames may have been missed; no durable
	// one was.
	GapEphemeralMaybeMissed
)

func (r GapReason) String() string {
	switch r {
	case GapTrimmed:
		return "trimmed"
	case GapEpochChanged:
		return "epoch changed"
	case GapAhead:
		return "ahead"
	case GapEphemeralMaybeMissed:
		return "ephemeral maybe missed"
	default:
		return "unknown"
	}
}

// Gap says that frames between the subscriber's position and ResumeAfter are
// not available. Delivery goes on after ResumeAfter. If its reason is
// GapEphemeralMaybeMissed the two are the same: it stands where ephemeral frames
// may have been, before those that came later.
type Gap struct {
	Reason GapReason
	// Requested is the position that could not be continued from, or the
	// subscriber's.
	Requested backlog.Position
	// Oldest is the oldest sequence that can be replayed.
	Oldest uint64
	// Head is the stream's newest position.
	Head backlog.Position
	// ResumeAfter is the subscriber's new position.
	ResumeAfter backlog.Position
}

// CaughtUp says that every durable frame stored before the subscription began, or
// before its last Gap, has been delivered. It comes once after each of them, but
// for a Gap of the reason GapEphemeralMaybeMissed, which moves nothing.
type CaughtUp struct {
	// Position is the subscriber's.
	Position backlog.Position
}

// Closed says that the stream was closed; io.EOF follows.
type Closed struct {
	// Last is the last position of the numbering that ended.
	Last backlog.Position
}

func (Subscribed) notice() {}
func (Gap) notice()        {}
func (CaughtUp) notice()   {}
func (Closed) notice()     {}
