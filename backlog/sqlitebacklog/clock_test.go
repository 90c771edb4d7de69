package sqlitebacklog

import (
	"testing"
	"time"
)

// handClock is a clock whose time a test moves.
type handClock struct {
	clock
	wall   time.Time
	passed time.Duration
}

func newHandClock() *handClock {
	c := &handClock{wall: time.Date(2030, 5, 6, 7, 8, 9, 0, time.UTC)}
	c.read = func() (time.Time, time.Duration) { return c.wall, c.passed }
	return c
}

// pass lets time pass, which both clocks show.
func (c *handClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
	c.passed += d
}

// step sets the wall clock.
func (c *handClock) step(d time.Duration) {
	c.now() // the clock is read many times a minute
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

// stored is something that was stored: when, and by which time of the wall clock.
type stored struct {
	at, passed int64
}

func (c *handClock) store() stored { return stored{c.now().UnixMicro(), c.passed.Microseconds()} }

// TestClockSteps: whatever the wall clock does, what is younger than an age does
// not count as older; without steps, and with steps forward only, what is older
// counts so at once; and steps back keep it for no longer than they are.
func TestClockSteps(t *testing.T) {
	const age = time.Hour
	for name, tt := range map[string]struct {
		steps []time.Duration
		// late is by how much longer something is kept at most.
		late time.Duration
	}{
		"none":                          {nil, 0},
		"slewed":                        {[]time.Duration{900 * time.Millisecond, -900 * time.Millisecond}, 2 * time.Second},
		"forward":                       {[]time.Duration{2 * time.Hour}, 0},
		"forward for good, three times": {[]time.Duration{2 * time.Hour, time.Minute, 9 * time.Hour}, 0},
		"forward and set right":         {[]time.Duration{2 * time.Hour, -2 * time.Hour}, 2 * time.Hour},
		"back":                          {[]time.Duration{-2 * time.Hour}, 2 * time.Hour},
		"back and set right":            {[]time.Duration{-2 * time.Hour, 2 * time.Hour}, 2 * time.Hour},
		"years":                         {[]time.Duration{50 * 365 * 24 * time.Hour}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newHandClock()
			var all []stored
			for minute := range 24 * 60 {
				if minute%100 == 50 && minute/100 < len(tt.steps) {
					c.step(tt.steps[minute/100])
				}
				all = append(all, c.store())
				before := c.before(age)
				for _, s := range all {
					passed := c.passed - time.Duration(s.passed)*time.Microsecond
					if old := s.at < before; old && passed <= age-time.Second {
						t.Fatalf("minute %d: what is %v old counts as older than %v", minute, passed, age)
					} else if !old && passed > age+tt.late+time.Second {
						t.Fatalf("minute %d: what is %v old does not count as older than %v", minute, passed, age)
					}
				}
				c.pass(time.Minute)
			}
		})
	}
}

// TestClockManySteps: a clock that steps all the time does not grow, and nothing is
// old early.
func TestClockManySteps(t *testing.T) {
	c := newHandClock()
	var all []stored
	for n := range 10 * maxSteps {
		c.step(time.Duration(n%7-2) * time.Minute)
		c.pass(time.Second)
		all = append(all, c.store())
		before := c.before(time.Hour)
		for _, s := range all {
			if s.at < before && c.passed-time.Duration(s.passed)*time.Microsecond <= time.Hour {
				t.Fatalf("step %d: what is %v old counts as older than an hour", n, c.passed-time.Duration(s.passed)*time.Microsecond)
			}
		}
	}
	if len(c.steps) > maxSteps {
		t.Errorf("%d steps are remembered", len(c.steps))
	}
}

func TestSystemClock(t *testing.T) {
	var c clock
	for range 100 {
		now, before := c.now(), c.before(time.Hour)
		if d := time.Since(now); d < 0 || d > time.Minute || now.Nanosecond()%1000 != 0 || now.Location() != time.UTC {
			t.Fatalf("now is %v", now)
		}
		if d := time.Since(time.UnixMicro(before)) - time.Hour; d < 0 || d > time.Minute {
			t.Fatalf("an hour ago was %v", time.UnixMicro(before))
		}
	}
	if len(c.steps) != 0 {
		t.Errorf("steps %v", c.steps)
	}
}
