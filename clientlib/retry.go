package clientlib

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// growth is by what the longest pause grows from one attempt to the next.
const growth = 3

// pauses are those between the attempts of one thing. Each is random over its whole
// length, so that clients that failed together do not come back together.
type pauses struct {
	shortest time.Duration
	longest  backoff.ExponentialBackOff
}

func (c *config) newPauses() pauses {
	return pauses{
		shortest: c.minBackoff,
		longest: backoff.ExponentialBackOff{
			InitialInterval: min(growth*c.minBackoff, c.maxBackoff),
			Multiplier:      growth,
			MaxInterval:     c.maxBackoff,
		},
	}
}

// next returns the next pause; asked is how long the server wants it to be at least,
// 0 if it does not say.
func (p *pauses) next(asked time.Duration) time.Duration {
	longest := p.longest.NextBackOff()
	if asked > 0 {
		return asked + rand.N(longest+1)
	}
	return p.shortest + rand.N(longest-p.shortest+1)
}

func (p *pauses) reset() { p.longest.Reset() }

// wait waits for d and reports whether ctx goes on.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// recovery decides what follows the end of a call that was to go on: of a
// subscription's or a session's.
type recovery struct {
	client *Client
	access access
	pauses pauses
	// failures are the calls in a row that brought nothing.
	failures int
	// acknowledged is when the current call was, zero if it was not.
	acknowledged time.Time
}

func (c *Client) newRecovery() recovery {
	return recovery{client: c, access: access{tokens: &c.tokenCache}, pauses: c.newPauses()}
}

// acknowledge notes that the server took the call.
func (r *recovery) acknowledge() {
	if r.acknowledged.IsZero() {
		r.acknowledged = time.Now()
	}
	r.access.accepted()
}

// progress notes that a call brought something new. Being taken is not enough: where
// the same frame ends each call anew, the pauses must grow.
func (r *recovery) progress() {
	r.failures = 0
	r.pauses.reset()
}

// after returns the pause after a call that ended with e; final is true if trying again
// does not help.
func (r *recovery) after(e *Error) (pause time.Duration, final bool) {
	if !r.acknowledged.IsZero() && time.Since(r.acknowledged) >= r.client.maxBackoff {
		r.progress()
	}
	r.acknowledged = time.Time{}
	r.failures++
	if !r.access.renew(e) && e.endsSubscription() {
		return 0, true
	}
	return r.pauses.next(e.RetryIn), false
}

// log tells of a call that ended, and of what is the same again and again less and less:
// of the first failure in a row, the second, the fourth, ….
func (r *recovery) log(what string, e *Error, pause time.Duration, more ...any) {
	if !r.worthLogging() {
		return
	}
	level := slog.LevelWarn
	if e.Reason == ReasonDraining || e.Reason == ReasonMaxStreamAge {
		level = slog.LevelInfo // as a server does in the course of its life
	}
	more = append(more, "error", e, "retry_in", pause, "failures", r.failures)
	r.client.logger.Log(context.Background(), level, what, more...)
}

func (r *recovery) worthLogging() bool { return r.failures&(r.failures-1) == 0 }
