package pgbacklog

import (
	"context"
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"syscall"
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

// Whoever starts waits for a server that is away, and is told at once of what waiting
// does not mend.
func TestUnlessLost(t *testing.T) {
	network := func(op string, err error) error {
		return fmt.Errorf("connect: %w", &net.OpError{Op: op, Net: "tcp", Err: err})
	}
	for _, test := range []struct {
		name string
		err  error
		lost bool
	}{
		{"unavailable already", unavailable(errors.New("away")), true},
		{"shutting down", serverError("FATAL", "57P01"), true},
		{"crashed", serverError("FATAL", "57P02"), true},
		{"starting up", fmt.Errorf("wrapped: %w", serverError("FATAL", "57P03")), true},
		{"too many sessions", serverError("FATAL", "53300"), true},
		{"pooler lost the server", serverError("ERROR", "08006"), true},
		{"pooler refuses parameters", serverError("FATAL", "08P01"), false},
		{"wrong password", serverError("FATAL", "28P01"), false},
		{"no database", serverError("FATAL", "3D000"), false},
		{"no rights", serverError("ERROR", "42501"), false},
		{"cancelled", serverError("ERROR", "57014"), false},
		{"end of the connection", io.EOF, true},
		{"end within a message", fmt.Errorf("wrapped: %w", io.ErrUnexpectedEOF), true},
		{"bad connection", driver.ErrBadConn, true},
		{"refused", network("dial", syscall.ECONNREFUSED), true},
		{"reset", network("read", syscall.ECONNRESET), true},
		{"reset while writing", network("write", syscall.EPIPE), true},
		{"TLS alert", network("remote error", tls.AlertError(42)), false},
		{"anything else", errors.New("no such thing"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := unlessLost(test.err)
			if !errors.Is(err, test.err) || errors.Is(err, backlog.ErrUnavailable) != test.lost {
				t.Errorf("unlessLost(%v) = %v", test.err, err)
			}
		})
	}
	if err := unlessLost(nil); err != nil {
		t.Errorf("success is %v", err)
	}
}

// Symptom: a replica without the client certificate that the server demands waited for
// ever at its start. Cause: the server's alert comes as an error of the network.
func TestStartWithoutTheClientCertificate(t *testing.T) {
	t.Parallel()
	donor := httptest.NewTLSServer(nil)
	defer donor.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go demandCertificate(conn, donor.TLS.Certificates)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	url := fmt.Sprintf("postgres://u@%s/d?sslmode=require", listener.Addr())
	_, openErr := Open(ctx, Config{URL: url})
	for name, err := range map[string]error{"Open": openErr, "Migrate": Migrate(ctx, url, "", nil)} {
		if !isTLSAlert(err) || errors.Is(err, backlog.ErrUnavailable) {
			t.Errorf("%s failed with %v", name, err)
		}
	}
}

// demandCertificate begins a session as PostgreSQL does, refuses it for lack of a
// client certificate, and stays until the client has gone.
func demandCertificate(conn net.Conn, own []tls.Certificate) {
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil { // SSLRequest
		return
	}
	if _, err := conn.Write([]byte("S")); err != nil {
		return
	}
	_ = tls.Server(conn, &tls.Config{Certificates: own, ClientAuth: tls.RequireAnyClientCert}).Handshake()
	_, _ = io.Copy(io.Discard, conn)
}
