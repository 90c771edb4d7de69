package listener

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Times between attempts to connect. The first after a loss is made at once,
// because every moment without a connection delays frames. Where connections die
// young, losses are spaced by up to maxLossRetry: the time that a connection
// lived counts, so that it is the rate that is bounded and not the absence that
// grows. A server that cannot be reached is asked less and less often.
const (
	minRetry     = 5 * time.Millisecond
	maxLossRetry = 200 * time.Millisecond
	maxDialRetry = 2 * time.Second
)

// retries yields the jittered time before the next attempt.
type retries struct {
	lost   *backoff.ExponentialBackOff // between losses of connections that listened
	failed *backoff.ExponentialBackOff // after a connection that did not get there
}

func newRetries() *retries {
	series := func(longest time.Duration) *backoff.ExponentialBackOff {
		return &backoff.ExponentialBackOff{InitialInterval: minRetry, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: longest}
	}
	return &retries{lost: series(maxLossRetry), failed: series(maxDialRetry)}
}

// after returns how long to wait after a connection that listened for some time;
// negative if it never did.
func (r *retries) after(listened, healthy time.Duration) time.Duration {
	if listened < 0 {
		return r.failed.NextBackOff()
	}
	r.failed.Reset()
	if listened >= healthy {
		r.lost.Reset()
		return 0
	}
	return max(0, r.lost.NextBackOff()-listened)
}

// outage is what is known about the time since the connection was lost.
type outage struct {
	since    time.Time
	attempts int
}

// keepConnected runs one session after another.
func (l *Listener) keepConnected(ctx context.Context) error {
	retries := newRetries()
	var number uint64
	var gone outage
	for {
		listened, err := l.runSession(ctx, &number, &gone)
		var deaf *ProbeError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &deaf):
			return err
		}
		if listened >= 0 {
			gone = outage{since: time.Now()}
		}
		gone.attempts++
		delay := retries.after(listened, l.config.HealthyAfter)
		l.log(slog.LevelWarn, "channel reconnect "+l.names(), "error", err, "attempt", gone.attempts, "retry_in", delay)
		if !pause(ctx, delay) {
			return nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// runSession connects and serves until the connection is lost. It returns why,
// and for how long the connection listened, negative if it never did.
func (l *Listener) runSession(ctx context.Context, number *uint64, gone *outage) (time.Duration, error) {
	s, err := l.connect(ctx)
	if err != nil {
		l.down(err)
		return -1, err
	}
	defer s.close()
	if err := s.begin(ctx, number); err != nil {
		l.down(err)
		return -1, err
	}
	l.report(s, gone)
	begun := time.Now()
	err = s.serve(ctx)
	s.lost(err)
	return time.Since(begun), err
}

// begin takes a connection to the point where it listens to everything and
// everyone knows.
func (s *session) begin(ctx context.Context, number *uint64) error {
	if err := s.listenFirst(ctx); err != nil {
		return err
	}
	if *number == 0 {
		if err := s.probeFirst(ctx); err != nil {
			return err
		}
	}
	*number++
	s.connected.Listening.Number = *number
	s.tell()
	s.listener.up(s)
	s.listener.admit(s)
	return nil
}

// report logs that the listener is up.
func (l *Listener) report(s *session, gone *outage) {
	attributes := []any{"listening", s.connected.Listening.Number, "origin", s.connected.Listening.Origin, "backend_pid", s.backendPID}
	if !gone.since.IsZero() {
		attributes = append(attributes, "away", time.Since(gone.since), "attempts", gone.attempts)
	}
	l.log(slog.LevelInfo, "channel listen "+l.names(), attributes...)
	if s.pooled && s.connected.Listening.Number == 1 {
		l.logger.Warn("something stands between the listener and PostgreSQL: the process id of the handshake is another than the session's. A pooler in session mode works; if there is none, ignore this; otherwise set --listen-database-url to reach PostgreSQL directly",
			"handshake_pid", s.conn.PID(), "backend_pid", s.backendPID)
	}
}

// log logs unless there have been too many lines lately: an outage must not
// fill the disk.
func (l *Listener) log(level slog.Level, message string, attributes ...any) {
	l.logs.log(l.logger, level, message, attributes...)
}

// throttle allows one event a second, and a few at once after a quiet time. The
// zero value is ready.
type throttle struct {
	burst      int // how many at once; 0: throttleBurst
	spent      int // of burst
	last       time.Time
	suppressed int
}

const throttleBurst = 4

// allow reports whether an event may happen, and how many did not since the
// last that might.
func (t *throttle) allow(now time.Time) (allowed bool, suppressed int) {
	if refill := int(now.Sub(t.last) / time.Second); refill > 0 {
		t.spent = max(0, t.spent-refill)
		t.last = now
	}
	if t.spent >= cmp.Or(t.burst, throttleBurst) {
		t.suppressed++
		return false, 0
	}
	t.spent++
	suppressed, t.suppressed = t.suppressed, 0
	return true, suppressed
}

// log logs a line if it may, with how many did not since the last that might.
func (t *throttle) log(logger *slog.Logger, level slog.Level, message string, attributes ...any) {
	allowed, suppressed := t.allow(time.Now())
	if !allowed {
		return
	}
	if suppressed > 0 {
		attributes = append(attributes, "suppressed", suppressed)
	}
	logger.Log(context.Background(), level, message, attributes...)
}
