package clientlib

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// errorDomain is the domain of the server's ErrorInfo.
const errorDomain = "fanfare.dev"

// Reasons of errors that callers of this library meet most; the others are the names
// of fanfare.v1.ErrorReason without their prefix, too.
const (
	ReasonInvalidField      = "INVALID_FIELD"
	ReasonKeyConflict       = "KEY_CONFLICT"
	ReasonExpectationFailed = "EXPECTATION_FAILED"
	ReasonOutcomeUnknown    = "OUTCOME_UNKNOWN"
	ReasonPublishQueueFull  = "PUBLISH_QUEUE_FULL"
	ReasonPartlyDuplicate   = "PARTLY_DUPLICATE"
	ReasonSlowSubscriber    = "SLOW_SUBSCRIBER"
	ReasonDraining          = "DRAINING"
	ReasonLimitReached      = "LIMIT_REACHED"
	ReasonMaxStreamAge      = "MAX_STREAM_AGE"
)

// Errors that errors.Is finds in what the library returns.
var (
	// ErrOutcomeUnknown: a frame may have been published or not. Only for frames
	// without an idempotency key, and where the context ended before a retry told.
	ErrOutcomeUnknown = errors.New("the outcome is unknown")
	// ErrNotContiguous: the server delivered a stream with a hole, again and again.
	ErrNotContiguous = errors.New("the delivered frames are not contiguous")
	// ErrClosed: the client or publisher was closed before.
	ErrClosed = errors.New("closed")
)

// Error is what the server, or the connection to it, answered.
type Error struct {
	// Code is the canonical code.
	Code codes.Code
	// Reason is a name of fanfare.v1.ErrorReason without its prefix; empty if the
	// error is not the server's own, such as a connection that broke.
	Reason string
	// Field is the field outside its limit; empty if none is.
	Field string
	// Message is for people.
	Message string
	// Position is the actual head if an expectation failed, the position published
	// under the key if the key conflicts, the subscription's if it was too slow.
	Position Position
	// RetryIn is how long the server asks to wait before a retry; 0 if it does not.
	RetryIn time.Duration

	cause error
	// unsent is true if the call never had a connection.
	unsent bool
}

// Error is the code, the reason and the message.
func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("%s (%s): %s", e.Code, e.Reason, e.Message)
}

// Is makes errors.Is(err, ErrOutcomeUnknown) work.
func (e *Error) Is(target error) bool {
	return target == ErrOutcomeUnknown && e.Reason == ReasonOutcomeUnknown
}

// Unwrap returns what the error was made of; nil if that is nothing.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus makes status.Code and status.FromError work.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// errorOf makes an *Error of what a call returned. Errors that have no status, such
// as those of a context, get the code that grpc would give them.
func errorOf(err error) *Error {
	var already *Error
	if errors.As(err, &already) {
		return already
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	e := &Error{Code: st.Code(), Message: st.Message(), cause: err}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() != errorDomain {
				continue
			}
			e.Reason = d.GetReason()
			for _, text := range d.GetMetadata() {
				if p, err := ParsePosition(text); err == nil {
					e.Position = p
				}
			}
		case *errdetails.RetryInfo:
			e.RetryIn = max(0, d.GetRetryDelay().AsDuration())
		case *errdetails.BadRequest:
			for _, violation := range d.GetFieldViolations() {
				e.Field = violation.GetField()
			}
		}
	}
	return e
}

// itemError makes an *Error of one within a stream.
func itemError(item *fanfarev1.Error) *Error {
	e := &Error{
		Code:     codes.Code(item.GetCode()), //nolint:gosec // a google.rpc.Code
		Field:    item.GetField(),
		Message:  item.GetMessage(),
		Position: positionOf(item.GetPosition()),
		RetryIn:  max(0, item.GetRetryIn().AsDuration()),
	}
	if r := item.GetReason(); r != fanfarev1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		e.Reason = strings.TrimPrefix(r.String(), "ERROR_REASON_")
	}
	return e
}

// checkText is the error of the first text that is not UTF-8, nil if there is none, of the
// message at path, empty for the request. The server would say the same of it, but
// protobuf does not send it: the call would fail, and a call that is shared with others.
func checkText(path string, texts ...text) *Error {
	for _, t := range texts {
		if utf8.ValidString(t.value) {
			continue
		}
		if path != "" {
			t.field = path + "." + t.field
		}
		return &Error{Code: codes.InvalidArgument, Reason: ReasonInvalidField, Field: t.field, Message: t.field + " is not valid UTF-8"}
	}
	return nil
}

type text struct{ field, value string }

// endsSubscription reports whether trying again cannot help a subscription.
// UNAUTHENTICATED is final here; a new token comes before.
func (e *Error) endsSubscription() bool {
	switch e.Code {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.Unimplemented, codes.AlreadyExists:
		return true
	case codes.ResourceExhausted:
		return e.Reason == ReasonLimitReached && e.RetryIn == 0
	default:
		return false
	}
}

// storedNothing reports whether nothing was stored for certain, and a retry may help.
func (e *Error) storedNothing() bool {
	switch e.Code {
	case codes.Unavailable:
		return e.Reason != "" || e.unsent
	case codes.ResourceExhausted:
		return e.Reason != "" && e.RetryIn > 0
	default:
		return false
	}
}

// mayHaveStored reports whether a publish that failed so may have been stored, so that
// only an idempotency key makes a retry safe.
func (e *Error) mayHaveStored() bool {
	if e.unsent {
		return false
	}
	switch e.Code {
	case codes.Unavailable:
		return e.Reason == ""
	case codes.Unknown, codes.DeadlineExceeded, codes.Canceled, codes.Internal:
		return true
	default:
		return false
	}
}

// refusesAFrame reports whether a call of many frames that ended so did because of one of
// them, such as one that is larger than grpc takes.
func (e *Error) refusesAFrame() bool {
	return e.Code != codes.Unauthenticated && !e.unsent && !e.storedNothing() && !e.mayHaveStored()
}

// tellsOfTheStore reports whether a refusal says that the frame is not stored, also of
// earlier tries with its key: the server had looked.
func (e *Error) tellsOfTheStore() bool {
	switch e.Code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		return true
	default:
		return false
	}
}

// outcomeUnknown is the error of a publish that may have been stored.
func (e *Error) outcomeUnknown() *Error {
	if e.Reason == ReasonOutcomeUnknown {
		return e
	}
	return &Error{
		Code: codes.Unknown, Reason: ReasonOutcomeUnknown,
		Message: "the frame may have been published or not: " + e.Error(),
		cause:   e,
	}
}

// ended is the error of work that ended for a cause, and the last error before it.
func ended(cause, last error) error { return fmt.Errorf("%w; before that: %w", cause, last) }
