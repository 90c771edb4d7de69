package listener

import "time"

// pace is of what happens at most once in hintInterval. The zero value is ready.
type pace struct {
	due  bool
	last time.Time
}

// wait is how long it may not happen yet.
func (p *pace) wait() time.Duration {
	if p.last.IsZero() {
		return 0
	}
	return hintInterval - time.Since(p.last)
}

// now reports whether it is due and may happen.
func (p *pace) now() bool { return p.due && p.wait() <= 0 }

// done notes that it happens.
func (p *pace) done() { p.due, p.last = false, time.Now() }
