package hub

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logInterval is the least time between two lines about the same kind of trouble.
const logInterval = 10 * time.Second

// throttledLog logs one kind of trouble that may come many times a second, for as
// long as it lasts: the first line at once, then one in an interval, with how many
// were left out since the last. It is safe for concurrent use; its mutex is a leaf.
type throttledLog struct {
	log  *slog.Logger
	text string

	mu      sync.Mutex
	last    time.Time
	leftOut int
}

func (t *throttledLog) warn(attributes ...slog.Attr) {
	leftOut, due := t.next(time.Now())
	if !due {
		return
	}
	if leftOut > 0 {
		attributes = append(attributes, slog.Int("left_out", leftOut))
	}
	t.log.LogAttrs(context.Background(), slog.LevelWarn, t.text, attributes...)
}

func (t *throttledLog) next(now time.Time) (leftOut int, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.last.IsZero() && now.Sub(t.last) < logInterval {
		t.leftOut++
		return 0, false
	}
	leftOut, t.leftOut, t.last = t.leftOut, 0, now
	return leftOut, true
}
