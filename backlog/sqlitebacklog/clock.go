package sqlitebacklog

import (
	"sync"
	"time"
)

const (
	// stepTolerance is the least difference of the two clocks that counts as a
	// step: less is the time between reading one and the other.
	stepTolerance = time.Second
	// maxSteps bounds the steps that are remembered.
	maxSteps = 64
)

// clock is the store's idea of time. Two things are asked of it: when something
// happened, which is what the wall clock says, and what is older than an age,
// which decides what is deleted for good.
//
// A wall clock steps: it is set by hand, by a virtual machine that wakes up, by
// the first answer of a time server. The stored times are the wall clock's, so
// the clock remembers by how much it has stepped against the time that this
// process has measured, and leaves steps out of ages:
//
//   - The clock jumps forward by two hours: nothing is two hours older at once,
//     and nothing is deleted early, whether or not it is set right again.
//   - The clock jumps back by two hours: what was stored before the jump, and
//     what follows it in the same stream until the clock has caught up, stays for
//     up to two hours longer, not for ever.
//
// A step matters to ages for as long as there may be something that is not older
// than the age and was stored before the step. Time that a machine sleeps may
// look like a step. Between two processes the clock is believed. The zero value
// is the system's clock.
type clock struct {
	// read, if not nil, replaces the system's clocks in tests: it returns what time
	// it is, and how much of it has passed since some moment.
	read func() (wall time.Time, passed time.Duration)

	// mu guards what follows: what the two clocks gave when they were last
	// compared, and the steps of the wall clock, the newest last.
	mu         sync.Mutex
	compared   bool
	lastWall   time.Time
	lastPassed time.Duration
	steps      []step
}

// step is a step of the wall clock.
type step struct {
	at, by time.Duration // at by the time that has passed
}

// processStart carries the monotonic reading that time.Since measures from.
var processStart = time.Now()

// now returns the wall clock's time in UTC with microseconds.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compareLocked()
	return c.lastWall.UTC().Truncate(time.Microsecond)
}

// before returns the time before which things were stored that are older than
// age, in microseconds since 1970.
func (c *clock) before(age time.Duration) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compareLocked()
	return c.lastWall.Add(-age - c.leadLocked(age)).UnixMicro()
}

// leadLocked returns by how much more than what has passed the wall clock may
// have gone on since something was stored that is not older than age. A step that
// is longer ago than age came before all that.
func (c *clock) leadLocked(age time.Duration) time.Duration {
	lead, sum := time.Duration(0), time.Duration(0)
	for i := len(c.steps) - 1; i >= 0 && c.lastPassed-c.steps[i].at <= age; i-- {
		sum += c.steps[i].by
		lead = max(lead, sum)
	}
	return lead
}

// compareLocked notices a step of the wall clock since the last call.
func (c *clock) compareLocked() {
	wall, passed := c.readLocked()
	if by := wall.Sub(c.lastWall) - (passed - c.lastPassed); c.compared && by.Abs() > stepTolerance {
		c.stepLocked(step{at: passed, by: by})
	}
	c.compared, c.lastWall, c.lastPassed = true, wall, passed
}

func (c *clock) readLocked() (wall time.Time, passed time.Duration) {
	if c.read != nil {
		return c.read()
	}
	now := time.Now()
	// Round takes the monotonic reading away, which Sub would use.
	return now.Round(0), now.Sub(processStart)
}

// stepLocked remembers a step. The two oldest of too many become one that keeps
// things at least as long.
func (c *clock) stepLocked(s step) {
	c.steps = append(c.steps, s)
	if len(c.steps) > maxSteps {
		first, second := c.steps[0], c.steps[1]
		c.steps = c.steps[1:]
		c.steps[0] = step{at: second.at, by: max(second.by, first.by+second.by)}
	}
}
