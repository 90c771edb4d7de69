package hub

import "github.com/fanfare-io/fanfare/backlog"

// Start says where a subscription begins. The zero value is [Oldest].
type Start struct {
	kind startKind
	// position is that of startAfter.
	position backlog.Position
	// number is how many frames (startLast) or a sequence (startBehind).
	number uint64
}

type startKind uint8

const (
	startOldest startKind = iota
	startLive
	startAfter
	startLast
	// startBehind is a startLast whose sequence is known and whose epoch a
	// second load looks up.
	startBehind
)

// Oldest starts with everything that the backlog may replay.
func Oldest() Start { return Start{kind: startOldest} }

// Live starts with what commits from now on.
func Live() Start { return Start{kind: startLive} }

// After starts with the frame after p, or with a Gap if that is not possible.
func After(p backlog.Position) Start { return Start{kind: startAfter, position: p} }

// Last starts with the newest n frames, or with as many of them as the backlog
// may replay. Last(0) is Live.
func Last(n uint64) Start {
	if n == 0 {
		return Live()
	}
	return Start{kind: startLast, number: n}
}

// behind starts after a sequence of the current numbering, or with the oldest
// frame if that row is gone.
func behind(sequence uint64) Start { return Start{kind: startBehind, number: sequence} }

// verify returns the sequence whose position a load must look up for s.
func (s Start) verify() (uint64, bool) {
	switch s.kind {
	case startAfter:
		return s.position.Sequence, true
	case startBehind:
		return s.number, true
	default:
		return 0, false
	}
}
