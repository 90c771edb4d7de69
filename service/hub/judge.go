package hub

import (
	"sort"

	"github.com/fanfare-io/fanfare/backlog"
)

// Verdict says where delivery begins for a start.
type Verdict struct {
	// After is the position after which delivery begins.
	After backlog.Position
	// Gap is not nil if delivery cannot begin where it was asked to.
	Gap *Gap
	// Resumed is true if the start was a position and delivery continues from it.
	Resumed bool
	// Waits is true if there is nothing to deliver until the stream is published
	// to for the first time, or again: it does not exist, or is closed and the
	// start is no position of what was closed. After is then 0-0.
	Waits bool
	// Lacks, if not 0, is a sequence whose position the load did not tell: load
	// again and have it verified. Only starts of the kind Last lack.
	Lacks uint64
}

// Judge decides where delivery begins for a start, given a load that had the
// start's position verified. A verdict with a Gap is right only if that load
// was begun after the subscriber asked.
//
// A position is valid if the row at its sequence carries its epoch. Its own
// numbering cannot be told from its epoch alone, so where there is no such row
// the reason of the gap is the likeliest: ahead if its sequence is above the
// head, trimmed if below what may be replayed; but in a stream that was ever
// closed a position whose epoch is neither the head's nor the base's is taken
// for one of an earlier numbering.
func Judge(start Start, loaded backlog.Loaded) Verdict {
	if start.kind == startAfter {
		return judgePosition(start.position, loaded)
	}
	state := loaded.State
	if !state.Exists || state.Closed {
		return Verdict{Waits: true}
	}
	switch start.kind {
	case startLive:
		return Verdict{After: state.Head}
	case startLast:
		return judgeLast(start.number, loaded)
	case startBehind:
		if p := positionIn(loaded, start.number); p.Epoch != 0 && p.Sequence > state.Base.Sequence {
			return Verdict{After: p}
		}
		return Verdict{After: state.Base}
	default:
		return Verdict{After: state.Base}
	}
}

func judgeLast(n uint64, loaded backlog.Loaded) Verdict {
	state := loaded.State
	sequence := minus(state.Head.Sequence, n)
	if sequence <= state.Base.Sequence {
		return Verdict{After: state.Base}
	}
	if p := positionIn(loaded, sequence); p.Epoch != 0 {
		return Verdict{After: p}
	}
	return Verdict{Lacks: sequence}
}

func judgePosition(p backlog.Position, loaded backlog.Loaded) Verdict {
	state := loaded.State
	if p.IsZero() {
		return judgeBeginning(state)
	}
	if reason, ok := mismatch(p, loaded); ok {
		return gapVerdict(reason, p, state, !state.Exists)
	}
	return Verdict{After: p, Resumed: true}
}

// judgeBeginning judges 0-0, which is a position only of a stream that has
// never been closed.
func judgeBeginning(state backlog.StreamState) Verdict {
	switch {
	case !state.Exists:
		return Verdict{Waits: true, Resumed: true}
	case state.EverClosed || state.Closed:
		return gapVerdict(GapEpochChanged, backlog.Position{}, state, state.Closed)
	case state.Base.Sequence > 0:
		return gapVerdict(GapTrimmed, backlog.Position{}, state, false)
	default:
		return Verdict{After: state.Base, Resumed: true}
	}
}

// mismatch says why delivery cannot continue after p.
func mismatch(p backlog.Position, loaded backlog.Loaded) (GapReason, bool) {
	state := loaded.State
	// An epoch that nothing vouches for, in a stream that had other numberings.
	foreign := state.EverClosed && p.Epoch != state.Head.Epoch && p.Epoch != state.Base.Epoch
	below := p.Sequence < state.Base.Sequence
	at := positionIn(loaded, p.Sequence)
	switch {
	case p.Sequence > state.Head.Sequence && foreign:
		return GapEpochChanged, true
	case p.Sequence > state.Head.Sequence:
		return GapAhead, true
	case at.Epoch == 0 && below && !foreign:
		return GapTrimmed, true
	case at.Epoch == 0 || at.Epoch != p.Epoch:
		return GapEpochChanged, true
	case below:
		return GapTrimmed, true
	default:
		return 0, false
	}
}

// gapVerdict goes on after the base, or waits for the next numbering.
func gapVerdict(reason GapReason, requested backlog.Position, state backlog.StreamState, waits bool) Verdict {
	v := Verdict{Waits: waits}
	if !waits {
		v.After = state.Base
	}
	v.Gap = &Gap{
		Reason:      reason,
		Requested:   requested,
		Oldest:      oldest(state, waits),
		Head:        state.Head,
		ResumeAfter: v.After,
	}
	return v
}

// oldest is the sequence of the oldest frame that a subscription may replay,
// which is none of a closed numbering if it waits for the next.
func oldest(state backlog.StreamState, waits bool) uint64 {
	if waits {
		return state.Head.Sequence + 1
	}
	return state.Base.Sequence + 1
}

// positionIn returns what a load tells of the position at a sequence; its epoch
// is 0 if that is nothing.
func positionIn(loaded backlog.Loaded, sequence uint64) backlog.Position {
	for _, p := range [...]backlog.Position{loaded.State.Head, loaded.State.Base, loaded.Before} {
		if p.Sequence == sequence && p.Epoch != 0 {
			return p
		}
	}
	first := loaded.Before.Sequence + 1
	if n := uint64(len(loaded.Frames)); sequence >= first && sequence-first < n {
		return loaded.Frames[sequence-first].Position
	}
	v := loaded.Verified
	// Verified is in the order of the request, which the hub sorts; others may
	// not.
	if i := sort.Search(len(v), func(i int) bool { return v[i].Sequence >= sequence }); i < len(v) && v[i].Sequence == sequence {
		return v[i]
	}
	for _, p := range v {
		if p.Sequence == sequence {
			return p
		}
	}
	return backlog.Position{Sequence: sequence}
}

// minus returns a-b, or 0 if that is negative.
func minus(a, b uint64) uint64 {
	if b >= a {
		return 0
	}
	return a - b
}
