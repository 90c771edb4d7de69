package listener

import (
	"strings"
	"time"
)

const (
	// maxSplitBytes bounds an entry that is put together of parts. It is more than
	// a frame with the largest payload takes as base64.
	maxSplitBytes = 8 << 20
	// partPatience is how long the next part of an entry is awaited. PostgreSQL
	// sends what a transaction notified at once, and a connection that stalls for as
	// long is given up, so that only an entry whose rest was never notified waits.
	partPatience = 10 * time.Second
)

// assembler puts entries together that are split over envelopes. It holds the
// parts of one entry at a time: those of a transaction arrive with nothing between
// them, since PostgreSQL queues all that a transaction notifies under one lock. It
// is given nothing but authentic envelopes, so that others neither begin an entry
// nor interrupt one. It is for one goroutine.
type assembler struct {
	patience time.Duration

	// key is of the entry that is being put together, or of the last one. Its
	// remaining parts say nothing new if it was broken.
	key  splitKey
	of   uint32
	next uint32 // 0 if no entry is being put together
	text strings.Builder
	last time.Time // when the last part came
}

// splitKey names a split entry.
type splitKey struct {
	pid             uint32
	transaction, id uint64
}

func newAssembler() *assembler { return &assembler{patience: partPatience} }

// join replaces the parts in an envelope by what they complete, in its place, and
// reports how many entries are lost because parts are missing, or are not of an
// entry.
func (a *assembler) join(e *Envelope, now time.Time) (broken int) {
	parts, whole := e.Parts, e.Announcements
	e.Parts = nil
	if len(parts) == 0 {
		return a.interrupt()
	}
	e.Announcements = nil
	passed := 0
	pass := func(place int) {
		if place > passed {
			broken += a.interrupt()
			e.Announcements = append(e.Announcements, whole[passed:place]...)
			passed = place
		}
	}
	for _, p := range parts {
		pass(p.Place)
		text, lost := a.add(splitKey{e.PID, e.Transaction, p.ID}, p, now)
		broken += lost
		if text != "" && (kindOf(text) == "S" || e.read(text) != nil) {
			broken++
		}
	}
	pass(len(whole))
	return broken
}

// add takes in a part, and returns the text of the entry if it is complete.
func (a *assembler) add(key splitKey, p Part, now time.Time) (text string, broken int) {
	if a.next != 0 && (key != a.key || p.Number != a.next || p.Of != a.of) {
		broken = a.interrupt()
	}
	switch {
	case a.next != 0:
	case p.Number == 1:
		a.key, a.of, a.next = key, p.Of, 1
	case key == a.key:
		return "", broken // of the entry that is lost already
	default:
		a.key = key
		return "", broken + 1
	}
	if a.text.Len()+len(p.Chunk) > maxSplitBytes {
		return "", broken + a.interrupt()
	}
	a.text.WriteString(p.Chunk)
	a.last = now
	if a.next < a.of {
		a.next++
		return "", broken
	}
	text = a.text.String()
	a.clear()
	if text == "" {
		broken++
	}
	return text, broken
}

// interrupt gives up an entry that is not complete, and reports how many that
// are: 0 or 1.
func (a *assembler) interrupt() (broken int) {
	if a.next == 0 {
		return 0
	}
	a.clear()
	return 1
}

// clear lets go of the text.
func (a *assembler) clear() {
	a.next = 0
	a.text.Reset()
}

// wait returns how long the next part is still awaited, not positive if it is
// overdue; waiting is false if none is.
func (a *assembler) wait(now time.Time) (left time.Duration, waiting bool) {
	return a.last.Add(a.patience).Sub(now), a.next != 0
}
