package backlog

import (
	"context"
	"time"
)

// Store keeps streams and their frames. All methods may be called concurrently.
// Input that [Publication.Validate] refuses is refused by every method that
// takes one, with a *LimitError and before anything else happens.
//
// Errors: what reached no verdict is ErrUnavailable, or ErrOutcomeUnknown for a
// write that may have been committed. A context's end before the work was sent
// to the database returns the context's error.
type Store interface {
	Reader

	// Submit hands in one publication and returns at once. done is called exactly
	// once, after the commit or the failure, possibly before Submit returns, and
	// must not block. Publications of one stream that are submitted one after
	// another are numbered in that order, those of different streams in any.
	//
	// If ctx ends before the publication was sent to the database it is withdrawn
	// and done gets the context's error; if it ends later done gets
	// ErrOutcomeUnknown. Of publications with one context, one that was submitted
	// after a withdrawn one is never stored, unless the context has a deadline: the
	// store gives up those that it has already tried a little earlier than others.
	//
	// done's error is a *LimitError, *KeyConflictError, *ExpectationError,
	// ErrSequenceExhausted, ErrPublishQueueFull, ErrNotificationQueueFull,
	// ErrDiskFull, ErrUnavailable (all: nothing stored), ErrOutcomeUnknown, or a context's.
	Submit(ctx context.Context, p Publication, done func(Outcome, error))

	// PublishBatch publishes all or nothing, in one transaction. Frames of one
	// stream are numbered in their order; an expectation refers to the head
	// including the batch's earlier frames. If every frame is a duplicate the
	// batch is one; a mixture is ErrPartlyDuplicate. A refused frame is named by a
	// *BatchError. At most MaxBatchFrames frames and MaxBatchBytes.
	//
	// While others hold one of its streams it waits as long as ctx allows, half a
	// minute if that has no deadline, and then fails with ErrUnavailable;
	// ErrPublishQueueFull: too many wait.
	PublishBatch(ctx context.Context, batch []Publication) ([]Outcome, error)

	// CloseStream closes a stream and announces it. A stream that is closed or
	// does not exist is left as it is. If epoch is not nil and the head's position
	// has another one, it returns an *ExpectationError. It waits as PublishBatch
	// does.
	CloseStream(ctx context.Context, stream StreamName, epoch *uint64) (CloseOutcome, error)

	// SetPolicy stores p in place of what was set for the same channel or prefix; a
	// policy that sets nothing is removed. Streams are bound by it at once, and
	// what they may no longer replay is deleted after the grace. Errors:
	// *LimitError, ErrTooManyPolicies.
	SetPolicy(ctx context.Context, p Policy) error

	// Run commits what is submitted and keeps the backlog's bounds, until ctx
	// ends; then it finishes the transactions in flight and fails what waits with
	// ErrUnavailable. It must run for Submit to make progress, and runs once.
	Run(ctx context.Context) error

	// Close releases the store's connections. It is called after Run returned.
	Close()
}

// Reader is the reading side of a Store.
type Reader interface {
	// Load reads the state of many streams and their newest frames, each stream
	// in one snapshot. If origin is not 0 and the server reached has another, or
	// is in recovery, the result is discarded, the connections are reset and the
	// error is ErrOtherServer. Results are in the order of the requests, at most
	// MaxLoadRequests of them.
	Load(ctx context.Context, origin uint64, requests []LoadRequest) (LoadResult, error)

	// Changed compares what is known of streams with their states, in one snapshot,
	// and returns the indexes, ascending, of those that are otherwise, as
	// [StreamState.ChangedFrom] says: they are to be loaded. Of streams that are as
	// they were, which most are, next to nothing is read or answered. It takes an
	// origin as Load does, and at most MaxLoadRequests streams.
	Changed(ctx context.Context, origin uint64, known []StreamState) ([]int, error)

	// ReadPage reads frames that follow a position, oldest first. Errors:
	// ErrNumberingGone, ErrTrimmed, ErrOtherServer.
	ReadPage(ctx context.Context, origin uint64, request PageRequest) (Page, error)

	// ListStreams returns up to limit (1 to MaxListedStreams) streams in byte order of
	// channel and scope, following after, only those of channel if it is not
	// empty. The zero StreamName starts at the first.
	ListStreams(ctx context.Context, channel string, after StreamName, limit int) ([]StreamState, error)

	// Policies returns all policies in the order of [ComparePolicies].
	Policies(ctx context.Context) ([]Policy, error)

	// Ping fails if the store does not answer, or answers from a server that
	// cannot be written to.
	Ping(ctx context.Context) error
}

// MaxLoadRequests bounds the requests of one Load and the streams of one Changed,
// MaxListedStreams the answer of one ListStreams.
const (
	MaxLoadRequests  = 1000
	MaxListedStreams = 1000
)

// StreamState is what a store knows about a stream at one instant. Of a stream
// that does not exist, only Stream is set.
type StreamState struct {
	Stream StreamName
	Exists bool
	// OwnEpoch is the stream's own epoch; see the package comment.
	OwnEpoch uint64
	// Head is the newest position.
	Head Position
	// Base is the position before the oldest frame that a new subscription may
	// replay: Head if there is none.
	Base Position
	// Floor is the sequence at or below which frames may have been deleted.
	Floor uint64
	// Closed is true from the close to the next publish, which starts a new
	// numbering.
	Closed bool
	// EverClosed is true if the stream has been closed at least once: 0-0 is then
	// a position of an earlier numbering.
	EverClosed bool
	// PreviousOwnEpoch is the own epoch of the numbering before this one, 0 if
	// this is the first.
	PreviousOwnEpoch uint64
	// Ephemeral is true if the stream has ever carried an ephemeral frame.
	Ephemeral bool
	// Backlog is how many of the newest frames a new subscription may replay;
	// RetentionAge is how old they may be, 0 meaning any age.
	Backlog      uint64
	RetentionAge time.Duration
	// Created is when the stream first existed, Updated when it last changed or an
	// ephemeral frame used it, the latter up to UseInterval late.
	Created, Updated time.Time
}

// ChangedFrom reports whether the state differs from what was known of the stream: in
// the numbering, the head, its flags or the bounds of its backlog, or because frames
// may have been deleted that the known Base and Backlog have a new subscription
// replay. Other fields do not matter.
func (s *StreamState) ChangedFrom(known *StreamState) bool {
	if s.Exists != known.Exists || !s.Exists {
		return s.Exists != known.Exists
	}
	kept := known.Base.Sequence
	if s.Head.Sequence > s.Backlog {
		kept = max(kept, s.Head.Sequence-s.Backlog)
	}
	return s.OwnEpoch != known.OwnEpoch || s.Head != known.Head || s.Floor > kept ||
		s.Closed != known.Closed || s.EverClosed != known.EverClosed || s.Ephemeral != known.Ephemeral ||
		s.Backlog != known.Backlog || s.RetentionAge != known.RetentionAge
}

// LoadRequest asks for a stream's state and newest frames.
type LoadRequest struct {
	Stream StreamName
	// After: only frames with greater sequences are wanted. They need not be
	// within what a new subscription may replay.
	After uint64
	// MaxFrames and MaxBytes (of payloads) bound what is returned; the newest
	// frames are kept. One frame is returned whatever its size. MaxFrames 0
	// returns none.
	MaxFrames, MaxBytes int
	// Verify lists sequences whose positions are wanted.
	Verify []uint64
}

// Loaded is the answer to a LoadRequest.
type Loaded struct {
	State StreamState
	// NotBefore is, by the store's clock, the time at which frames were just not
	// too old to be replayed when this was read: older ones are. It goes on with
	// time that passes, whatever clocks do. Zero if no age is too old.
	NotBefore time.Time
	// Before is the position before Frames[0], or Head if there are none. Its
	// epoch is 0 if the row is gone, which happens only below State.Base.
	Before Position
	// Frames are contiguous, ascending, and end at State.Head.
	Frames []Frame
	// Verified has the full position for each of Verify; epoch 0 where the stream
	// has no row there and does not remember the position as head or floor.
	Verified []Position
}

// LoadResult is the answer to a Load.
type LoadResult struct {
	// Origin of the server that answered.
	Origin  uint64
	Streams []Loaded
}

// PageRequest asks for the frames that follow After.
type PageRequest struct {
	Stream StreamName
	// OwnEpoch names the numbering; one that was closed or replaced is readable
	// for the grace. 0 means the current one.
	OwnEpoch uint64
	After    Position
	// Running reads whatever rows are still there, for a subscription that has
	// begun. Otherwise frames below the state's Base count as trimmed.
	Running bool
	// MaxFrames and MaxBytes (of payloads) bound the page; at least one frame is
	// returned if there is one.
	MaxFrames, MaxBytes int
}

// Page is the answer to a PageRequest.
type Page struct {
	State StreamState
	// Frames are contiguous and begin at After.Sequence+1. Empty at the head.
	Frames []Frame
}

// CloseOutcome is the answer to CloseStream.
type CloseOutcome struct {
	// Last is the position after which the stream is closed; 0-0 if the stream
	// does not exist.
	Last Position
	// AlreadyClosed is true if it was closed before or does not exist.
	AlreadyClosed bool
}

// Publish submits one publication and waits for its outcome. Errors are those
// of Submit.
func Publish(ctx context.Context, s Store, p Publication) (Outcome, error) {
	type result struct {
		outcome Outcome
		err     error
	}
	// Buffered, so that done never blocks.
	c := make(chan result, 1)
	s.Submit(ctx, p, func(o Outcome, err error) { c <- result{o, err} })
	r := <-c
	return r.outcome, r.err
}
