package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// ErrorDomain is the domain of every ErrorInfo.
const ErrorDomain = "fanfare.dev"

// How long clients are asked to wait before a retry.
const (
	retryStore    = time.Second            // a store that restarts takes seconds
	retryListen   = 500 * time.Millisecond // listening again is faster
	retryQueue    = 200 * time.Millisecond // a publish queue empties with the next commits
	retryOperator = 10 * time.Second       // an operator must act
	retrySlow     = time.Second
	retryLimit    = time.Second // and up to five times that, by jitter
)

// errEphemeralUnavailable refuses an ephemeral frame.
var errEphemeralUnavailable = errors.New("this server does not listen to its database, so it cannot deliver ephemeral frames; publish a durable one")

// failure is an error that a client is told about. Error is for the log and
// includes the cause; GRPCStatus and item are what a client gets and do not.
//
// It does not unwrap to its cause: a driver's io.EOF in there would make the
// logging interceptor take the call for a good one.
type failure struct {
	code    codes.Code
	reason  fanfarev1.ErrorReason
	message string
	// field is the path of the field at fault, as in "frames[3].payload".
	field string
	// position is told under the name positionName; it is not set if that is
	// empty.
	position     backlog.Position
	positionName string
	// retryIn 0 means that retrying does not help.
	retryIn time.Duration
	cause   error
}

// Error is for the log.
func (f *failure) Error() string {
	if f.cause == nil {
		return f.message
	}
	return f.message + ": " + f.cause.Error()
}

// GRPCStatus is what grpc sends for the error.
func (f *failure) GRPCStatus() *status.Status {
	st := status.New(f.code, f.message)
	if f.reason == fanfarev1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return st
	}
	info := &errdetails.ErrorInfo{Domain: ErrorDomain, Reason: reasonName(f.reason)}
	if f.positionName != "" {
		info.Metadata = map[string]string{f.positionName: f.position.String()}
	}
	details := []protoadapt.MessageV1{info}
	if f.retryIn > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.retryIn)})
	}
	if f.field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: f.field, Description: f.message},
		}})
	}
	detailed, err := st.WithDetails(details...)
	if err != nil {
		// Only for an OK status or an unmarshalable detail.
		return st
	}
	return detailed
}

// item is the same content as GRPCStatus for one item of a stream.
func (f *failure) item() *fanfarev1.Error {
	e := &fanfarev1.Error{Code: int32(f.code), Message: f.message, Reason: f.reason, Field: f.field}
	if f.positionName != "" {
		e.Position = positionProto(f.position)
	}
	if f.retryIn > 0 {
		e.RetryIn = durationpb.New(f.retryIn)
	}
	return e
}

// reasonName is a reason as ErrorInfo has it: without the enum's prefix.
func reasonName(r fanfarev1.ErrorReason) string {
	return strings.TrimPrefix(r.String(), "ERROR_REASON_")
}

// failureOf is the one place where errors of the domain become what a client is
// told. Errors it does not know are INTERNAL.
func failureOf(err error) *failure {
	var already *failure
	if errors.As(err, &already) {
		return already
	}
	var batch *backlog.BatchError
	if errors.As(err, &batch) {
		return inBatch(batch)
	}
	for _, f := range []func(error) *failure{requestFailure, storeFailure, callFailure} {
		if f := f(err); f != nil {
			return f
		}
	}
	return &failure{
		code:    codes.Internal,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_INTERNAL,
		message: "a fault in the server; its log has the details",
		cause:   err,
	}
}

// readFailureOf is failureOf for calls that store nothing.
func readFailureOf(err error) *failure {
	return failureOf(err).saying(fanfarev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, backlog.ErrUnavailable.Error())
}

// saying replaces the message of a failure that has the reason: the errors of a
// store speak of publishing.
func (f *failure) saying(reason fanfarev1.ErrorReason, message string) *failure {
	if f.reason == reason {
		f.message = message
	}
	return f
}

func inBatch(batch *backlog.BatchError) *failure {
	f := failureOf(batch.Err)
	f.message = fmt.Sprintf("frames[%d]: %s", batch.Index, f.message)
	if f.field != "" {
		f.field = "frames[" + strconv.Itoa(batch.Index) + "]." + f.field
	}
	return f
}

// requestFailure knows what is wrong with a request.
func requestFailure(err error) *failure {
	var (
		limit    *backlog.LimitError
		conflict *backlog.KeyConflictError
		expected *backlog.ExpectationError
	)
	switch {
	case errors.As(err, &limit):
		return &failure{
			code:    codes.InvalidArgument,
			reason:  fanfarev1.ErrorReason_ERROR_REASON_INVALID_FIELD,
			message: limit.Error(),
			field:   limit.Field,
		}
	case errors.As(err, &conflict):
		return &failure{
			code:         codes.AlreadyExists,
			reason:       fanfarev1.ErrorReason_ERROR_REASON_KEY_CONFLICT,
			message:      conflict.Error(),
			position:     conflict.Position,
			positionName: "position",
		}
	case errors.As(err, &expected):
		return &failure{
			code:         codes.Aborted,
			reason:       fanfarev1.ErrorReason_ERROR_REASON_EXPECTATION_FAILED,
			message:      expected.Error(),
			position:     expected.Head,
			positionName: "head",
		}
	case errors.Is(err, errEphemeralUnavailable):
		return &failure{
			code:    codes.FailedPrecondition,
			reason:  fanfarev1.ErrorReason_ERROR_REASON_EPHEMERAL_UNAVAILABLE,
			message: errEphemeralUnavailable.Error(),
		}
	}
	return nil
}

// storeFailures are what a store or a bus can refuse with, but for what is wrong
// with a request's fields. Where an error is several of them the first counts.
var storeFailures = []struct {
	sentinel error
	code     codes.Code
	reason   fanfarev1.ErrorReason
	retryIn  time.Duration
	// message is the sentinel's if it is empty.
	message string
	// expected is true if what wraps the sentinel is not worth a line of the log.
	expected bool
}{
	{
		// Not UNAVAILABLE, which meshes and client libraries retry by themselves:
		// that could store the frame twice.
		sentinel: backlog.ErrOutcomeUnknown, code: codes.Unknown,
		reason: fanfarev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, retryIn: retryStore,
	},
	{
		sentinel: backlog.ErrPartlyDuplicate, code: codes.FailedPrecondition,
		reason: fanfarev1.ErrorReason_ERROR_REASON_PARTLY_DUPLICATE, expected: true,
	},
	{
		sentinel: backlog.ErrSequenceExhausted, code: codes.FailedPrecondition,
		reason: fanfarev1.ErrorReason_ERROR_REASON_SEQUENCE_EXHAUSTED, expected: true,
	},
	{
		sentinel: backlog.ErrTooManyPolicies, code: codes.ResourceExhausted,
		reason: fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED, expected: true,
	},
	{
		sentinel: backlog.ErrPublishQueueFull, code: codes.ResourceExhausted,
		reason: fanfarev1.ErrorReason_ERROR_REASON_PUBLISH_QUEUE_FULL, retryIn: retryQueue, expected: true,
	},
	{
		sentinel: backlog.ErrNotificationQueueFull, code: codes.ResourceExhausted,
		reason: fanfarev1.ErrorReason_ERROR_REASON_NOTIFICATION_QUEUE_FULL, retryIn: retryOperator,
	},
	{
		sentinel: backlog.ErrDiskFull, code: codes.ResourceExhausted,
		reason: fanfarev1.ErrorReason_ERROR_REASON_DISK_FULL, retryIn: retryOperator,
	},
	{
		sentinel: backlog.ErrUnavailable, code: codes.Unavailable,
		reason: fanfarev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, retryIn: retryStore,
		message: storeUnavailable,
	},
	{
		sentinel: backlog.ErrOtherServer, code: codes.Unavailable,
		reason: fanfarev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, retryIn: retryStore,
		message: storeUnavailable,
	},
	{
		sentinel: hub.ErrNotListening, code: codes.Unavailable,
		reason: fanfarev1.ErrorReason_ERROR_REASON_NOT_LISTENING, retryIn: retryListen,
		message: "the server is not told of new frames at the moment, so no subscription can begin; try again",
	},
}

var storeUnavailable = backlog.ErrUnavailable.Error() + "; nothing was stored"

// storeFailure knows the storeFailures.
func storeFailure(err error) *failure {
	for _, known := range storeFailures {
		if !errors.Is(err, known.sentinel) {
			continue
		}
		f := &failure{
			code:    known.code,
			reason:  known.reason,
			message: cmp.Or(known.message, known.sentinel.Error()),
			retryIn: known.retryIn,
		}
		if !known.expected {
			f.cause = causeOf(err, known.sentinel, f.message)
		}
		return f
	}
	return nil
}

// causeOf is what err says beyond the message of its failure, which usually
// repeats the sentinel; nil if that is nothing.
func causeOf(err, sentinel error, message string) error {
	repeated := sentinel.Error()
	if !strings.HasPrefix(message, repeated) {
		return err
	}
	text := strings.ReplaceAll(err.Error(), repeated+": ", "")
	if text = strings.TrimSuffix(text, repeated); text == "" {
		return nil
	}
	return errors.New(strings.TrimSuffix(text, ": "))
}

// callFailure knows how a call ends by the client's doing.
func callFailure(err error) *failure {
	switch {
	case errors.Is(err, context.Canceled):
		return &failure{code: codes.Canceled, message: "the call was cancelled"}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{code: codes.DeadlineExceeded, message: "the call's deadline has passed"}
	}
	// What grpc itself returned from sending or receiving.
	if st, ok := status.FromError(err); ok && st.Code() != codes.Unknown {
		return &failure{code: st.Code(), message: st.Message()}
	}
	return nil
}

// drainingFailure ends a call because the server is going away.
func drainingFailure(retryIn time.Duration) *failure {
	return &failure{
		code:    codes.Unavailable,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_DRAINING,
		message: "the server is going away; go on with another replica, or with this one when it is back",
		retryIn: retryIn,
	}
}

// oldAgeFailure ends a call because it has lasted as long as one may.
func oldAgeFailure(retryIn time.Duration) *failure {
	return &failure{
		code:    codes.Unavailable,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_MAX_STREAM_AGE,
		message: "the call has lasted as long as the server lets one last; go on with a new one",
		retryIn: retryIn,
	}
}

// tooManyCalls refuses a streaming call, or a subscription of a session, of a server
// that has limit of them.
func tooManyCalls(limit int) *failure {
	return &failure{
		code:    codes.ResourceExhausted,
		reason:  fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED,
		message: fmt.Sprintf("the server has %d streaming calls and subscriptions of sessions, the most that it takes; try another replica, or this one later", limit),
		retryIn: retryLimit + rand.N(4*retryLimit).Truncate(time.Millisecond),
	}
}

// slowSubscriber ends a subscription whose client stopped reading. sent is the
// last position whose frame was handed to the transport.
func slowSubscriber(timeout time.Duration, sent backlog.Position) *failure {
	return tooSlow(fmt.Sprintf("nothing was taken for %s while frames waited; resume with the last position", timeout), sent)
}

// droppedFrames ends a subscription that was too far behind for ephemeral frames
// to be kept for it. sent is its position.
func droppedFrames(sent backlog.Position) *failure {
	return tooSlow("ephemeral frames came faster than they were taken, or more came at once than the replica keeps of a stream "+
		"(4,096 frames or 4 MiB by default), and some were dropped; resume with the last position", sent)
}

func tooSlow(message string, sent backlog.Position) *failure {
	return &failure{
		code:         codes.ResourceExhausted,
		reason:       fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER,
		message:      message,
		position:     sent,
		positionName: "position",
		retryIn:      retrySlow,
	}
}
