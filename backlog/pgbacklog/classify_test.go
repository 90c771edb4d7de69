package pgbacklog

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		fate fate
		want error // nil: none of the backlog's errors, for there is no use in a retry
	}{
		{"no connection", &notSentError{errors.New("connection refused")}, fateNotSent, backlog.ErrUnavailable},
		{"server starting up", &notSentError{serverError("FATAL", "57P03")}, fateNotSent, backlog.ErrUnavailable},
		{"lock timeout", serverError("ERROR", "55P03"), fateLocked, backlog.ErrUnavailable},
		{"lock timeout at the commit", &commitError{serverError("ERROR", "55P03")}, fateLocked, backlog.ErrUnavailable},
		{"deadlock", fmt.Errorf("wrapped: %w", serverError("ERROR", "40P01")), fateLocked, backlog.ErrUnavailable},
		{"serialization failure", serverError("ERROR", "40001"), fateLocked, backlog.ErrUnavailable},
		{"notification queue full", &commitError{serverError("ERROR", "54000")}, fateRefused, backlog.ErrNotificationQueueFull},
		{"row too large", serverError("ERROR", "54000"), fateData, nil},
		{"invalid encoding", serverError("ERROR", "22021"), fateData, nil},
		{"check violated", serverError("ERROR", "23514"), fateData, nil},
		{"damaged data", serverError("ERROR", "XX001"), fateData, nil},
		{"read only", serverError("ERROR", "25006"), fateRefused, backlog.ErrUnavailable},
		{"disk full", serverError("ERROR", "53100"), fateRefused, backlog.ErrDiskFull},
		{"disk full at the commit", &commitError{serverError("ERROR", "53100")}, fateRefused, backlog.ErrDiskFull},
		{"disk full before the first statement", &notSentError{serverError("FATAL", "53100")}, fateNotSent, backlog.ErrUnavailable},
		{"cancelled by somebody", serverError("ERROR", "57014"), fateRefused, backlog.ErrUnavailable},
		{"out of time", fmt.Errorf("%w: %w", errOutOfTime, serverError("ERROR", "57014")), fateLocked, backlog.ErrUnavailable},
		{"no rights", serverError("ERROR", "42501"), fateRefused, backlog.ErrUnavailable},
		{"commit rolled back", errRolledBack, fateRefused, backlog.ErrUnavailable},
		{"terminated", serverError("FATAL", "57P01"), fateUnknown, backlog.ErrOutcomeUnknown},
		{"pooler lost the server", serverError("ERROR", "08006"), fateUnknown, backlog.ErrOutcomeUnknown},
		{"completion unknown", serverError("ERROR", "40003"), fateUnknown, backlog.ErrOutcomeUnknown},
		{"connection lost", errors.New("unexpected EOF"), fateUnknown, backlog.ErrOutcomeUnknown},
		{"too slow", context.DeadlineExceeded, fateUnknown, backlog.ErrOutcomeUnknown},
		{"translated severity", translated("FEHLER", "ERROR", "53100"), fateRefused, backlog.ErrDiskFull},
		{"empty code", serverError("ERROR", ""), fateRefused, backlog.ErrUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := judge(test.err)
			if f != test.fate {
				t.Errorf("fate %v, want %v", f, test.fate)
			}
			if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if test.want == nil && (err == nil || errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, backlog.ErrOutcomeUnknown)) {
				t.Errorf("error %v must not ask for a retry", err)
			}
		})
	}
	if f, err := judge(nil); f != fateCommitted || err != nil {
		t.Errorf("success is %v, %v", f, err)
	}
}

func translated(severity, unlocalized, code string) error {
	return &pgconn.PgError{Severity: severity, SeverityUnlocalized: unlocalized, Code: code}
}
