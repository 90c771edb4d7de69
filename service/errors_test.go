package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// driverText stands for what a driver says: addresses, names of roles, SQL.
const driverText = "dial tcp 10.0.0.7:5432: password authentication failed for user fanfare"

func wrapped(sentinel error) error {
	return fmt.Errorf("publish: %w: %w", sentinel, errors.New(driverText))
}

func TestFailureOf(t *testing.T) {
	head := backlog.Position{Epoch: 3, Sequence: 4}
	for name, test := range map[string]struct {
		err    error
		code   codes.Code
		reason string // empty: no ErrorInfo
		field  string
		retry  bool
		head   string
	}{
		"limit":        {err: &backlog.LimitError{Field: "channel", Message: "must not be empty"}, code: codes.InvalidArgument, reason: "INVALID_FIELD", field: "channel"},
		"key conflict": {err: &backlog.KeyConflictError{Position: head}, code: codes.AlreadyExists, reason: "KEY_CONFLICT", head: "3-4"},
		"expectation":  {err: &backlog.ExpectationError{Head: head}, code: codes.Aborted, reason: "EXPECTATION_FAILED", head: "3-4"},
		"in a batch": {err: &backlog.BatchError{Index: 2, Err: &backlog.LimitError{Field: "payload", Message: "is too large"}}, code: codes.InvalidArgument,
			reason: "INVALID_FIELD", field: "frames[2].payload"},
		"partly duplicate":   {err: backlog.ErrPartlyDuplicate, code: codes.FailedPrecondition, reason: "PARTLY_DUPLICATE"},
		"sequence exhausted": {err: backlog.ErrSequenceExhausted, code: codes.FailedPrecondition, reason: "SEQUENCE_EXHAUSTED"},
		"outcome unknown":    {err: wrapped(backlog.ErrOutcomeUnknown), code: codes.Unknown, reason: "OUTCOME_UNKNOWN", retry: true},
		"unavailable":        {err: wrapped(backlog.ErrUnavailable), code: codes.Unavailable, reason: "STORE_UNAVAILABLE", retry: true},
		"unavailable by a deadline of its own": {err: fmt.Errorf("%w: %w", backlog.ErrUnavailable, context.DeadlineExceeded),
			code: codes.Unavailable, reason: "STORE_UNAVAILABLE", retry: true},
		"other server":       {err: wrapped(backlog.ErrOtherServer), code: codes.Unavailable, reason: "STORE_UNAVAILABLE", retry: true},
		"queue full":         {err: wrapped(backlog.ErrPublishQueueFull), code: codes.ResourceExhausted, reason: "PUBLISH_QUEUE_FULL", retry: true},
		"notification queue": {err: wrapped(backlog.ErrNotificationQueueFull), code: codes.ResourceExhausted, reason: "NOTIFICATION_QUEUE_FULL", retry: true},
		"disk full":          {err: wrapped(backlog.ErrDiskFull), code: codes.ResourceExhausted, reason: "DISK_FULL", retry: true},
		"too many policies":  {err: backlog.ErrTooManyPolicies, code: codes.ResourceExhausted, reason: "LIMIT_REACHED"},
		"not listening":      {err: wrapped(hub.ErrNotListening), code: codes.Unavailable, reason: "NOT_LISTENING", retry: true},
		"cancelled":          {err: context.Canceled, code: codes.Canceled},
		"deadline":           {err: context.DeadlineExceeded, code: codes.DeadlineExceeded},
		"of grpc":            {err: status.Error(codes.ResourceExhausted, "message too large"), code: codes.ResourceExhausted},
		"anything else":      {err: errors.New(driverText), code: codes.Internal, reason: "INTERNAL"},
		"an end of file":     {err: fmt.Errorf("read: %w", io.EOF), code: codes.Internal, reason: "INTERNAL"},
		"a panic":            {err: recovering(func() error { panic(driverText) }), code: codes.Internal, reason: "INTERNAL"},
		"draining":           {err: drainingFailure(time.Second), code: codes.Unavailable, reason: "DRAINING", retry: true},
		"slow":               {err: slowSubscriber(time.Second, head), code: codes.ResourceExhausted, reason: "SLOW_SUBSCRIBER", retry: true, head: "3-4"},
	} {
		t.Run(name, func(t *testing.T) {
			f := failureOf(test.err)
			st := status.Convert(f)
			if st.Code() != test.code {
				t.Errorf("code %s, want %s", st.Code(), test.code)
			}
			if strings.Contains(st.String(), "10.0.0.7") || strings.Contains(f.item().String(), "10.0.0.7") {
				t.Errorf("a driver's text reaches the client: %s", st)
			}
			if strings.Contains(test.err.Error(), driverText) && f.cause == nil && test.reason != "PUBLISH_QUEUE_FULL" {
				t.Error("the cause is not kept for the log")
			}
			var got struct {
				reason, field, position string
				retry                   bool
			}
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					got.reason = d.GetReason()
					if d.GetDomain() != ErrorDomain {
						t.Errorf("domain %q", d.GetDomain())
					}
					for _, p := range d.GetMetadata() {
						got.position = p
					}
				case *errdetails.RetryInfo:
					got.retry = d.GetRetryDelay().AsDuration() > 0
				case *errdetails.BadRequest:
					got.field = d.GetFieldViolations()[0].GetField()
				}
			}
			if got.reason != test.reason || got.field != test.field || got.retry != test.retry || got.position != test.head {
				t.Errorf("details are %+v, want reason %q, field %q, retry %t, position %q", got, test.reason, test.field, test.retry, test.head)
			}
			item := f.item()
			if codes.Code(item.GetCode()) != test.code || item.GetField() != test.field || (item.GetRetryIn() != nil) != test.retry {
				t.Errorf("the item says %v", item)
			}
		})
	}
}

// "Nothing was stored" is said once, and not to those who read; the log repeats
// nothing either.
func TestWordsOfAnUnavailableStore(t *testing.T) {
	err := fmt.Errorf("%w: load: %w", backlog.ErrUnavailable, fmt.Errorf("%w: %s", backlog.ErrUnavailable, driverText))
	for _, c := range []struct {
		f            *failure
		message, log string
	}{
		{failureOf(err), "the store is not available; nothing was stored", "the store is not available; nothing was stored: load: " + driverText},
		{readFailureOf(err), "the store is not available", "the store is not available: load: " + driverText},
		{failureOf(backlog.ErrUnavailable), "the store is not available; nothing was stored", "the store is not available; nothing was stored"},
		{readFailureOf(backlog.ErrOtherServer), "the store is not available", "the store is not available: " + backlog.ErrOtherServer.Error()},
		{failureOf(wrapped(backlog.ErrOutcomeUnknown)), backlog.ErrOutcomeUnknown.Error(), backlog.ErrOutcomeUnknown.Error() + ": publish: " + driverText},
	} {
		if got := status.Convert(c.f).Message(); got != c.message {
			t.Errorf("a client is told %q, want %q", got, c.message)
		}
		if got := c.f.Error(); got != c.log {
			t.Errorf("the log says %q, want %q", got, c.log)
		}
	}
}

// Whoever closes a stream has no idempotency key to retry with, and a blind
// retry could close the numbering after.
func TestWordsOfACloseWithUnknownOutcome(t *testing.T) {
	s := testServer(t, &fakeStore{err: wrapped(backlog.ErrOutcomeUnknown)})
	_, err := s.CloseStream(t.Context(), &fanfarev1.CloseStreamRequest{Channel: "c"})
	st := status.Convert(err)
	if st.Code() != codes.Unknown || !strings.Contains(st.Message(), "expected_epoch") || strings.Contains(st.Message(), "publish") {
		t.Errorf("a client is told %s: %s", st.Code(), st.Message())
	}
}

// An embedded store has neither a listener nor a database server. Only the error
// that no other store than PostgreSQL has may name what it has.
func TestMessagesFitEveryStore(t *testing.T) {
	for _, known := range storeFailures {
		if known.sentinel == backlog.ErrNotificationQueueFull {
			continue
		}
		message := storeFailure(known.sentinel).message
		for _, foreign := range []string{"listener", "database", "PostgreSQL", "connect"} {
			if strings.Contains(message, foreign) {
				t.Errorf("%s is told as %q", reasonName(known.reason), message)
			}
		}
	}
}
