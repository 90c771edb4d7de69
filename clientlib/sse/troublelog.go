package sse

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// troubleInterval is the least time between two lines of one kind.
	troubleInterval = time.Second
	// refusalInterval is the same of refusals, which anybody can cause, as for those of
	// calls.
	refusalInterval = 5 * time.Second
)

// troubleLog tells of trouble that all browsers have at the same time: while the servers
// are away each of them comes back every few seconds. The first line of a kind is
// logged at once, then one in an interval, with how many were left out since the last.
type troubleLog struct {
	logger *slog.Logger

	mu sync.Mutex // guards kinds
	// kinds are by their texts, and reasons of refusals: the program's, never a browser's.
	kinds map[string]*troubleKind
}

type troubleKind struct {
	last    time.Time
	leftOut int
}

// tell tells of an error, unless it is that somebody has left or ctx, which is theirs, has
// ended.
func (t *troubleLog) tell(ctx context.Context, level slog.Level, text string, err error, fields ...any) {
	t.tellKind(ctx, text, troubleInterval, level, text, err, fields...)
}

// tellRefusal tells why somebody was refused. Those with a cause are counted
// apart: requests without a credential must not hide what is wrong with others'.
func (t *troubleLog) tellRefusal(ctx context.Context, level slog.Level, reason string, refusal *Refusal, fields ...any) {
	const text = "refused a browser"
	kind, err := text+" "+reason, error(refusal)
	if refusal.Cause != nil {
		kind, err = kind+" with a cause", refusal.Cause
	}
	t.tellKind(ctx, kind, refusalInterval, level, text, err, append(fields, "reason", reason)...)
}

func (t *troubleLog) tellKind(ctx context.Context, kind string, interval time.Duration, level slog.Level, text string, err error, fields ...any) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || !t.logger.Enabled(ctx, level) {
		return
	}
	leftOut, due := t.count(kind, time.Now(), interval)
	if !due {
		return
	}
	if fields = append(fields, "error", err); leftOut > 0 {
		fields = append(fields, "left_out", leftOut)
	}
	t.logger.Log(ctx, level, text, fields...)
}

func (t *troubleLog) count(kind string, now time.Time, interval time.Duration) (leftOut int, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.kinds[kind]
	if k == nil {
		k = &troubleKind{}
		t.kinds[kind] = k
	}
	if !k.last.IsZero() && now.Sub(k.last) < interval {
		k.leftOut++
		return 0, false
	}
	leftOut, k.leftOut, k.last = k.leftOut, 0, now
	return leftOut, true
}
