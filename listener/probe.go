package listener

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// ProbeError means that notifications do not reach the listener although its
// connection works. It is a matter of configuration.
type ProbeError struct {
	// Cause is the likely reason.
	Cause string
	// Remedy says what to set.
	Remedy string
}

func (e *ProbeError) Error() string {
	return "LISTEN does not work: a notification was committed and did not arrive. " + e.Cause + ". " + e.Remedy
}

const (
	probePrefix = "fanfare_probe_"
	// probeCommitTimeout bounds the commit of a probe.
	probeCommitTimeout = 5 * time.Second
)

// probe is a notification of the listener's own, on its way through the pool.
type probe struct {
	// notifyChannel is known to nobody else, so that what arrives is this probe.
	notifyChannel string
	payload       string
	// arrived is written and read by the listener's goroutine.
	arrived   bool
	committed chan error // buffered; the outcome of the NOTIFY
	cancel    context.CancelFunc
	// due is when the probe must have arrived; zero until it has been committed.
	due time.Time
	err error // of the NOTIFY
}

func (p *probe) received(payload string) { p.arrived = p.arrived || payload == p.payload }

// settle learns the outcome of the NOTIFY if there is one.
func (p *probe) settle(allowed time.Duration) {
	select {
	case p.err = <-p.committed:
		p.due = time.Now().Add(allowed)
	default:
	}
}

// startProbe listens to a new notify channel and has the pool notify it; sent is
// called when that has ended.
func (s *session) startProbe(ctx context.Context, sent func()) error {
	l := s.listener
	p := &probe{notifyChannel: probePrefix + strings.ToLower(rand.Text()), payload: rand.Text(), committed: make(chan error, 1)}
	if _, err := s.execute(ctx, "listen "+quote(p.notifyChannel)); err != nil {
		return explain(err)
	}
	s.listened[p.notifyChannel] = nil
	commit, cancel := context.WithTimeout(ctx, probeCommitTimeout)
	p.cancel = cancel
	s.probe = p
	go func() {
		p.committed <- l.config.Probe(commit, p.notifyChannel, p.payload)
		sent()
	}()
	return nil
}

// endProbe forgets the probe and stops listening to its notify channel.
func (s *session) endProbe(ctx context.Context) error {
	name := s.probe.notifyChannel
	s.dropProbe()
	delete(s.listened, name)
	if _, err := s.execute(ctx, "unlisten "+quote(name)); err != nil {
		return explain(err)
	}
	return nil
}

// dropProbe forgets the probe and waits for its goroutine.
func (s *session) dropProbe() {
	p := s.probe
	s.probe = nil
	p.cancel()
	if p.due.IsZero() {
		<-p.committed
	}
}

// probeFirst makes sure, before anything is acknowledged, that notifications
// arrive. Others that arrive meanwhile are dropped: nobody has been told that
// anyone listens.
func (s *session) probeFirst(ctx context.Context) error {
	if s.listener.config.Probe == nil {
		return nil
	}
	sent, markSent := context.WithCancel(ctx)
	defer markSent()
	if err := s.startProbe(ctx, markSent); err != nil {
		return err
	}
	if err := s.awaitProbe(ctx, sent); err != nil {
		return err
	}
	if s.pooled && s.probe.arrived {
		if _, err := s.execute(ctx, "select "+pins); err != nil {
			return explain(err)
		}
	}
	s.judgeProbe()
	return s.endProbe(ctx)
}

// awaitProbe returns nil once the probe has arrived, or could not be committed;
// a *ProbeError if it was committed and is overdue.
func (s *session) awaitProbe(ctx, sent context.Context) error {
	p := s.probe
	for {
		p.settle(s.listener.config.ProbeTimeout)
		wait, cancel := sent, context.CancelFunc(func() {})
		switch {
		case p.arrived || !p.due.IsZero() && p.err != nil:
			return nil
		case p.due.IsZero():
		case !time.Now().Before(p.due):
			return s.diagnose(ctx)
		default:
			wait, cancel = context.WithDeadline(ctx, p.due)
		}
		err := s.conn.WaitForNotification(wait)
		s.deliver()
		over := wait.Err() != nil && !s.conn.IsClosed()
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !over:
			return explain(err)
		}
	}
}

// diagnose finds out why a committed probe did not arrive. If the connection
// fails meanwhile that is the reason, and no verdict.
func (s *session) diagnose(ctx context.Context) error {
	results, err := s.execute(ctx, fmt.Sprintf(
		"select pg_backend_pid(), current_database(), (select count(*) from pg_listening_channels() c where c = '%s')", s.probe.notifyChannel))
	s.deliver()
	if err != nil {
		return explain(err)
	}
	row, err := onlyRow(results, 3)
	if err != nil {
		return err
	}
	if s.probe.arrived {
		return nil // late, yet it came
	}
	pid, handshake := string(row[0]), strconv.FormatUint(uint64(s.conn.PID()), 10)
	if pid != handshake || string(row[2]) != "1" {
		return &ProbeError{
			Cause: fmt.Sprintf("The connection seems to lead through a pooler in transaction mode, where LISTEN is lost "+
				"(process id %s in the handshake, %s in the session)", handshake, pid),
			Remedy: "Set --listen-database-url to a URL that reaches PostgreSQL directly, or a pooler in session mode",
		}
	}
	return &ProbeError{
		Cause:  fmt.Sprintf("The URL that publishes and the one that listens (database %q) seem to lead to different databases or servers", row[1]),
		Remedy: "Set --listen-database-url to a URL of the same database on the same server, or leave it out",
	}
}

// probeAside probes without gating anything, one step at each ping, until a
// probe has been committed on the connection. A connection that dies young is
// not probed.
func (s *session) probeAside(ctx context.Context) error {
	switch {
	case s.listener.config.Probe == nil || s.probed:
		return nil
	case s.probe == nil:
		return s.startProbe(ctx, func() {})
	}
	p := s.probe
	p.settle(s.listener.config.ProbeTimeout)
	if !p.arrived && (p.due.IsZero() || p.err == nil && time.Now().Before(p.due)) {
		return nil
	}
	if !p.arrived && p.err == nil {
		var deaf *ProbeError
		if err := s.diagnose(ctx); err != nil && !errors.As(err, &deaf) {
			return err
		} else if err != nil {
			s.probed = true
			s.listener.noteProbe(s, err)
			s.listener.logger.Error("the listener's probe did not arrive", "error", err)
			return s.endProbe(ctx)
		}
	}
	s.judgeProbe()
	return s.endProbe(ctx)
}

// judgeProbe records a probe that arrived or could not be committed.
func (s *session) judgeProbe() {
	if s.probe.arrived {
		s.probed = true
		s.listener.noteProbe(s, nil)
		return
	}
	s.listener.noteProbe(s, s.probe.err)
	s.listener.log(slog.LevelWarn, "the listener's probe could not be committed; whether notifications arrive is not known", "error", s.probe.err)
}

// noteProbe records the result of a probe. One that arrived proves that a pooler
// in between, if there is one, is in session mode.
func (l *Listener) noteProbe(s *session, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.ProbeErr = err
	if err == nil && s.pooled {
		l.proven = true
	}
}

func (l *Listener) poolerProven() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proven
}
