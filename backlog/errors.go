package backlog

import (
	"errors"
	"fmt"
)

// Errors of a store. They are tested with errors.Is; what wraps them may carry
// details for logs that must not reach clients.
var (
	// ErrUnavailable: the store could not be reached or would not commit, and
	// nothing was stored. Retrying is safe. Reads return it too, so its text does
	// not speak of storing.
	ErrUnavailable = errors.New("the store is not available")
	// ErrOutcomeUnknown: the connection was lost, or the caller left, after the
	// transaction had been sent. It may have been committed. Only a retry with
	// the same idempotency key tells.
	ErrOutcomeUnknown = errors.New("the outcome of the publish is unknown; retry with the same idempotency key to learn it")
	// ErrPublishQueueFull: the replica holds as many waiting publishes as it may,
	// and nothing was stored.
	ErrPublishQueueFull = errors.New("the publish queue is full; nothing was stored")
	// ErrNotificationQueueFull: PostgreSQL's notification queue is full, because a
	// session of the database listens and does not read. Nothing was stored.
	ErrNotificationQueueFull = errors.New("the database's notification queue is full; nothing was stored")
	// ErrDiskFull: the store's disk is full. Nothing was stored. Publishing works
	// again when there is room; reading goes on.
	ErrDiskFull = errors.New("the store's disk is full; nothing was stored")
	// ErrTooManyPolicies: the store has MaxPolicies policies. Nothing was stored.
	ErrTooManyPolicies = fmt.Errorf("the store has %d policies, the most it may have", MaxPolicies)
	// ErrPartlyDuplicate: some frames of an atomic batch carry known idempotency
	// keys and others do not. Nothing was stored.
	ErrPartlyDuplicate = errors.New("some frames of the batch were published before and others were not; nothing was stored")
	// ErrSequenceExhausted: the stream's head is at the largest sequence.
	ErrSequenceExhausted = errors.New("the stream has no sequence left; close it to start a new numbering")
	// ErrOtherServer: a read reached a server that is not the one asked for, or
	// one in recovery. What it returned was discarded.
	ErrOtherServer = errors.New("the read reached another server than the one that announces frames")
	// ErrNumberingGone: the numbering that a page was asked for has been replaced
	// or removed, or the row at the position does not carry the position's epoch.
	ErrNumberingGone = errors.New("the numbering of the stream that the position belongs to is gone")
	// ErrTrimmed: frames after the position have been deleted.
	ErrTrimmed = errors.New("frames after the position have been trimmed")
)

// LimitError says which field of a request is outside which limit. Nothing was
// stored.
type LimitError struct {
	// Field is the name of the field as in the protocol: "channel", "payload", …
	Field string
	// Message is a phrase that follows the field's name and names the limit.
	Message string
}

func (e *LimitError) Error() string { return e.Field + " " + e.Message }

// KeyConflictError: the idempotency key is known with another content. Nothing
// was stored.
type KeyConflictError struct {
	// Position is that of the frame published under the key.
	Position Position
}

func (e *KeyConflictError) Error() string {
	return fmt.Sprintf("the idempotency key was used for another content, published at %s", e.Position)
}

// ExpectationError: the stream's head is not the expected one. Nothing was
// stored.
type ExpectationError struct {
	// Head is the position that an expectation would have had to name; 0-0 if the
	// stream does not exist or is closed.
	Head Position
}

func (e *ExpectationError) Error() string {
	return fmt.Sprintf("the stream's head is %s, not the expected one", e.Head)
}

// BatchError says which publication of an atomic batch was refused, and why.
// Nothing of the batch was stored.
type BatchError struct {
	// Index counts from 0.
	Index int
	// Err is one of the errors of this package.
	Err error
}

func (e *BatchError) Error() string { return fmt.Sprintf("frame %d of the batch: %v", e.Index, e.Err) }

// Unwrap returns Err.
func (e *BatchError) Unwrap() error { return e.Err }
