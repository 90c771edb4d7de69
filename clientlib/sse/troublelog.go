package sse

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// troubleInterval is the least time between two lines of one kind.
const troubleInterval = time.Second

// troubleLog tells of trouble that all browsers have at the same time: while the servers
// are away each of them comes back every few seconds. The first line of a kind is
// logged at once, then one in an interval, with how many were left out since the last.
type troubleLog struct {
	logger *slog.Logger

	mu sync.Mutex // guards kinds
	// kinds are by their texts, which are constants.
	kinds map[string]*troubleKind
}

type troubleKind struct {
	last    time.Time
	leftOut int
}

// tell tells of an error, unless it is that somebody has left or ctx, which is theirs, has
// ended.
func (t *troubleLog) tell(ctx context.Context, level slog.Level, text string, err error, fields ...any) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	leftOut, due := t.count(text, time.Now())
	if !due {
		return
	}
	if fields = append(fields, "error", err); leftOut > 0 {
		fields = append(fields, "left_out", leftOut)
	}
	t.logger.Log(ctx, level, text, fields...)
}

func (t *troubleLog) count(text string, now time.Time) (leftOut int, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.kinds[text]
	if k == nil {
		k = &troubleKind{}
		t.kinds[text] = k
	}
	if !k.last.IsZero() && now.Sub(k.last) < troubleInterval {
		k.leftOut++
		return 0, false
	}
	leftOut, k.leftOut, k.last = k.leftOut, 0, now
	return leftOut, true
}
