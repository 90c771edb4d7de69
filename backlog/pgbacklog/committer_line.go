package pgbacklog

import (
	"context"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Pauses between attempts that fail at once grow from the first to the second.
const (
	minPause = 5 * time.Millisecond
	maxPause = 250 * time.Millisecond
)

// An attempt that waits for locks ends a margin before the first deadline of its
// callers, so that they learn that nothing was stored instead of an unknown
// outcome: a tenth of the time that is left, within these bounds.
const (
	minMargin = 10 * time.Millisecond
	maxMargin = 100 * time.Millisecond
)

// A caller with less time left than this is not attempted: the first time, and
// again after it has waited for a lock in vain, or for its turn.
const (
	minAttemptTime = 2 * minMargin
	minRetryTime   = maxMargin
)

// waitUnder is how long an attempt may wait for locks when left remains until a
// caller's deadline.
func waitUnder(left time.Duration) time.Duration {
	return max(left-min(max(left/10, minMargin), maxMargin), time.Millisecond)
}

// A line is a queue of items in their order of arrival, and what its
// transactions have taught about it: the batch, or a lane.
type line struct {
	waiting itemList
	// limit, if not 0, is how many items a transaction may carry. It is halved
	// when one fails on data, until an item fails alone and is the culprit, and
	// doubled when one succeeds.
	limit int
	// failures counts transactions that failed since one succeeded, not those that
	// failed on data.
	failures int
}

// take moves the front of what waits into flight, and returns apart what it met
// whose callers have left. They have all that waits withdrawn, in any order, and
// none of it may be stored without what they had submitted before.
func (l *line) take(maxFrames int, maxBytes int64) (taken, left []*item) {
	if l.limit >= maxFrames {
		l.limit = 0
	}
	if l.limit > 0 {
		maxFrames = l.limit
	}
	taken = make([]*item, 0, min(maxFrames, l.waiting.len))
	var bytes int64
	for it := l.waiting.front; it != nil && len(taken) < maxFrames; it = l.waiting.front {
		if it.gone != nil && it.gone() != nil {
			l.waiting.remove(it)
			left = append(left, it)
			continue
		}
		if bytes += it.size; len(taken) > 0 && (bytes > maxBytes || it.call != nil) {
			break
		}
		l.waiting.remove(it)
		it.state = itemInFlight
		taken = append(taken, it)
		if it.call != nil {
			break // it has a transaction of its own
		}
	}
	return taken, left
}

// lockTimeout is the longest wait for a lock that the deadlines of items allow,
// 0 for any.
func lockTimeout(items []*item, now time.Time) time.Duration {
	var shortest time.Duration
	for _, it := range items {
		if it.deadline.IsZero() {
			continue
		}
		if wait := waitUnder(it.deadline.Sub(now)); shortest == 0 || wait < shortest {
			shortest = wait
		}
	}
	return shortest
}

// learn notes how a transaction with n items ended.
func (l *line) learn(f fate, n int) {
	switch f {
	case fateCommitted:
		l.failures = 0
		l.limit *= 2
	case fateData:
		l.limit = max(n/2, 1)
	default:
		l.failures++
	}
}

// pause is how long to wait before the next transaction, given how long the
// last one took: one that waited for a lock has waited enough.
func (l *line) pause(elapsed time.Duration) time.Duration {
	if l.failures == 0 || elapsed >= maxPause {
		return 0
	}
	return min(minPause<<min(l.failures-1, 10), maxPause)
}

// settleLocked answers the items of a transaction of l as far as it decided
// them and returns the others, in order: those that were busy or rolled back
// through no fault of theirs, and those of unknown outcome that may be sent again.
func (c *committer) settleLocked(settled *answers, l *line, taken []*item, results []result, f fate, err error) (again []*item) {
	l.learn(f, len(taken))
	for i, it := range taken {
		switch {
		case it.state == itemAnswered:
			c.answerLocked(settled, it, backlog.Outcome{}, nil)
		case f == fateCommitted && it.call != nil:
			c.answerLocked(settled, it, backlog.Outcome{}, err)
		case f == fateCommitted && results[i].status != statusBusy:
			outcome, err := results[i].outcome()
			c.answerLocked(settled, it, outcome, err)
		case f == fateCommitted, f == fateLocked, f == fateData && len(taken) > 1:
			it.waited = f == fateLocked
			again = append(again, it)
		case f == fateUnknown && it.repeatable():
			c.unresolveLocked(it)
			again = append(again, it)
		case f == fateUnknown:
			c.answerLocked(settled, it, backlog.Outcome{}, backlog.ErrOutcomeUnknown)
		case it.unresolved && f != fateData:
			again = append(again, it)
		default:
			c.answerLocked(settled, it, backlog.Outcome{}, it.certain(err))
		}
	}
	if f == fateNotSent {
		c.failWaitingLocked(settled, l, err, false)
	}
	return again
}

// unresolveLocked marks an item that may have been stored.
func (c *committer) unresolveLocked(it *item) {
	it.unresolved = true
	if it.deadline.IsZero() {
		it.deadline = time.Now().Add(c.cfg.RetryTimeout)
	}
}

// takeUnderDeadlines takes from a line that must expect to wait for locks, and
// returns how long it may.
func (c *committer) takeUnderDeadlines(l *line) ([]*item, time.Duration) {
	var settled answers
	now := time.Now()
	c.mu.Lock()
	c.expireLocked(&settled, l, now)
	taken := c.takeLocked(&settled, l)
	c.mu.Unlock()
	settled.deliver()
	return taken, lockTimeout(taken, now)
}

// takeLocked takes from a line, and answers what is withdrawn there.
func (c *committer) takeLocked(settled *answers, l *line) []*item {
	taken, left := l.take(c.cfg.MaxBatchFrames, c.cfg.MaxBatchBytes)
	for _, it := range left {
		c.answerLocked(settled, it, backlog.Outcome{}, it.certain(it.gone()))
	}
	if l == &c.batch {
		c.inFlight = taken
	}
	return taken
}

// expireLocked answers what has no time left for an attempt.
func (c *committer) expireLocked(settled *answers, l *line, now time.Time) {
	for it := l.waiting.front; it != nil; {
		next := it.next
		if it.outOfTime(now) {
			l.waiting.remove(it)
			c.answerLocked(settled, it, backlog.Outcome{}, it.certain(context.DeadlineExceeded))
		}
		it = next
	}
}
