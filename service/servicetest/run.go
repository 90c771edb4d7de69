package servicetest

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Run is what was seen of a run, for validators. Ticks order its events: what
// has the lower tick happened before.
type Run struct {
	Publishes   []Publish
	Subscribers []Subscriber
	Samples     []ListenerSample
	// Windows may be empty; Isolated is about them.
	Windows []Window
	Memory  []MemorySample
}

// Tick is a moment of a run, from 1. 0 means never.
type Tick uint64

// Moment is one, too, as the time since the run began; ticks order what happened
// at the same.
type Moment = time.Duration

// Window is a time of a run in which nothing was wrong but what must not concern
// others.
type Window struct {
	From, To Moment
	// Held are the streams that foreign transactions held.
	Held []backlog.StreamName
	// Stalled are the subscribers that took nothing.
	Stalled []string
}

// Result is what a publisher was told.
type Result uint8

// Results of a publish.
const (
	// Unknown: it may have been stored. Also of a publish nobody was answered for.
	Unknown Result = iota
	// Confirmed: it was stored at Position or, if it is ephemeral, announced.
	Confirmed
	// Refused: nothing was stored.
	Refused
	// RolledBack: the transaction that published it was rolled back.
	RolledBack
)

// Publish is one attempt to publish.
type Publish struct {
	// Publisher names who sent it. Attempts of one publisher to one stream are
	// sent in the order of Began.
	Publisher string
	Stream    backlog.StreamName
	// Ephemeral is true if it asked for an ephemeral frame.
	Ephemeral bool
	// Content is different for every frame of a run; attempts with one
	// idempotency key share it.
	Content Content
	// Began is before it was sent, Ended after it was answered.
	Began, Ended     Tick
	BeganAt, EndedAt Moment
	Result           Result
	// Position and Duplicate are set if Result is Confirmed and it is not ephemeral.
	Position  backlog.Position
	Duplicate bool
}

// Subscriber is one subscriber over all its connections to one stream.
type Subscriber struct {
	Name   string
	Stream backlog.StreamName
	Events []Event
	// Complete is true if it stayed until the last frame of the run arrived.
	Complete bool
	// Slow is true if it takes less than there is by design.
	Slow bool
}

// EventKind is what a subscriber saw.
type EventKind uint8

// Kinds of events.
const (
	// SawSubscribed: a connection begins. Asked and Start are what was asked for,
	// Position is resume_after.
	SawSubscribed EventKind = iota + 1
	// SawFrame has Position and Content. It is a durable frame.
	SawFrame
	// SawEphemeral has Content.
	SawEphemeral
	// SawGap: Position is resume_after.
	SawGap
	// SawCaughtUp has Position.
	SawCaughtUp
	// SawClosed: Position is the last of the numbering.
	SawClosed
	// SawEnd: the connection ended. Explained is false if neither the client's
	// cancellation nor a status with a reason says why.
	SawEnd
)

// Event is one thing that a subscriber saw.
type Event struct {
	Tick     Tick
	At       Moment
	Kind     EventKind
	Position backlog.Position
	Content  Content
	// Start and Asked are of SawSubscribed: the kind of start, and the position of
	// a StartAfter.
	Start   StartKind
	Asked   backlog.Position
	Resumed bool
	// Reason is of SawGap.
	Reason fanfarev1.GapReason
	// Explained, Ended and Error are of SawEnd. Ended names how, by its reason or code;
	// Error is all that was said of it, for people.
	Explained    bool
	Ended, Error string
}

// isLoss reports whether the event says that durable frames are missing.
func (e *Event) isLoss() bool {
	return e.Kind == SawGap && e.Reason != fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED
}

// StartKind is a form of start.
type StartKind uint8

// Forms of start.
const (
	StartOldest StartKind = iota + 1
	StartLive
	StartAfter
	StartLast
)

// ListenerSample is how many listener connections a replica had at a moment.
type ListenerSample struct {
	Replica     string
	Connections int
}

// MemorySample is how much memory a replica used at a moment, and the most that it
// may use.
type MemorySample struct {
	Replica      string
	Bytes, Bound int64
}

// Content identifies everything of a frame that its publisher chose.
type Content [sha256.Size]byte

// ContentOf returns the content of a frame to publish.
func ContentOf(f *fanfarev1.NewFrame) Content {
	return content(f.GetPayload(), f.GetContentType(), f.GetEventType(), f.GetHeaders())
}

// ContentOfReceived returns the content of a delivered frame.
func ContentOfReceived(f *fanfarev1.Frame) Content {
	return content(f.GetPayload(), f.GetContentType(), f.GetEventType(), f.GetHeaders())
}

func content(payload []byte, contentType, eventType string, headers map[string]string) Content {
	h := sha256.New()
	add := func(b []byte) {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		_, _ = h.Write(b)
	}
	add(payload)
	add([]byte(contentType))
	add([]byte(eventType))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		add([]byte(name))
		add([]byte(headers[name]))
	}
	return Content(h.Sum(nil))
}
