package hub

import (
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
)

const (
	ownEpoch    = 7 << 32
	firstOrigin = 1
	laterOrigin = 2
)

func pos(origin, sequence uint64) backlog.Position {
	return backlog.Position{Epoch: ownEpoch ^ origin, Sequence: sequence}
}

// judged is a stream of 20 frames: 1 to 10 of one origin, 11 to 20 of another.
// Frames up to 3 are gone, up to 5 may not be replayed.
func judged(change func(*backlog.StreamState), verify ...uint64) backlog.Loaded {
	l := backlog.Loaded{State: backlog.StreamState{
		Exists: true, OwnEpoch: ownEpoch, Head: pos(laterOrigin, 20), Base: pos(firstOrigin, 5), Floor: 3, Backlog: 15,
	}}
	if change != nil {
		change(&l.State)
	}
	l.Before = l.State.Head
	for _, sequence := range verify {
		p := backlog.Position{Sequence: sequence}
		switch {
		case sequence >= 3 && sequence <= 10:
			p = pos(firstOrigin, sequence)
		case sequence > 10 && sequence <= 20:
			p = pos(laterOrigin, sequence)
		}
		l.Verified = append(l.Verified, p)
	}
	return l
}

func TestJudge(t *testing.T) {
	closed := func(s *backlog.StreamState) { s.Closed, s.EverClosed = true, true }
	reopened := func(s *backlog.StreamState) { s.EverClosed = true }
	missing := func(s *backlog.StreamState) { *s = backlog.StreamState{} }
	untrimmed := func(s *backlog.StreamState) { s.Base, s.Floor = pos(firstOrigin, 0), 0 }
	none := func(s *backlog.StreamState) { s.Base = s.Head }
	other := func(sequence uint64) backlog.Position { return backlog.Position{Epoch: 99, Sequence: sequence} }
	zero := backlog.Position{}

	tests := []struct {
		name   string
		state  func(*backlog.StreamState)
		start  Start
		after  backlog.Position
		gap    GapReason
		resume bool
		waits  bool
		lacks  uint64
	}{
		{name: "oldest", start: Oldest(), after: pos(firstOrigin, 5)},
		{name: "zero start is oldest", start: Start{}, after: pos(firstOrigin, 5)},
		{name: "oldest, nothing to replay", state: none, start: Oldest(), after: pos(laterOrigin, 20)},
		{name: "oldest, missing", state: missing, start: Oldest(), waits: true},
		{name: "oldest, closed", state: closed, start: Oldest(), waits: true},
		{name: "live", start: Live(), after: pos(laterOrigin, 20)},
		{name: "live, missing", state: missing, start: Live(), waits: true},
		{name: "last 0 is live", start: Last(0), after: pos(laterOrigin, 20)},
		{name: "last, not in the load", start: Last(4), lacks: 16},
		{name: "last, more than may be replayed", start: Last(100), after: pos(firstOrigin, 5)},
		{name: "last, exactly what may be replayed", start: Last(15), after: pos(firstOrigin, 5)},
		{name: "last, closed", state: closed, start: Last(3), waits: true},
		{name: "behind, verified", start: behind(16), after: pos(laterOrigin, 16)},
		{name: "behind, gone since", start: behind(2), after: pos(firstOrigin, 5)},
		{name: "head", start: After(pos(laterOrigin, 20)), after: pos(laterOrigin, 20), resume: true},
		{name: "inside, older origin", start: After(pos(firstOrigin, 10)), after: pos(firstOrigin, 10), resume: true},
		{name: "inside, wrong origin", start: After(pos(laterOrigin, 10)), gap: GapEpochChanged},
		{name: "base", start: After(pos(firstOrigin, 5)), after: pos(firstOrigin, 5), resume: true},
		{name: "below base, row still there", start: After(pos(firstOrigin, 4)), gap: GapTrimmed},
		{name: "below base, wrong epoch", start: After(pos(laterOrigin, 4)), gap: GapEpochChanged},
		{name: "row gone", start: After(pos(firstOrigin, 1)), gap: GapTrimmed},
		{name: "zero sequence of an epoch, trimmed", start: After(pos(firstOrigin, 0)), gap: GapTrimmed},
		{name: "zero sequence of an epoch", state: untrimmed, start: After(pos(firstOrigin, 0)), after: pos(firstOrigin, 0), resume: true},
		{name: "zero sequence of another epoch", state: untrimmed, start: After(other(0)), gap: GapEpochChanged},
		{name: "ahead", start: After(pos(laterOrigin, 21)), gap: GapAhead},
		{name: "ahead, unknown epoch", start: After(other(21)), gap: GapAhead},
		{name: "largest position", start: After(backlog.Position{Epoch: backlog.MaxPositionValue, Sequence: backlog.MaxPositionValue}), gap: GapAhead},
		{name: "0-0, trimmed", start: After(zero), gap: GapTrimmed},
		{name: "0-0, whole", state: untrimmed, start: After(zero), after: pos(firstOrigin, 0), resume: true},
		{name: "0-0, missing", state: missing, start: After(zero), waits: true, resume: true},
		{name: "0-0, reopened", state: reopened, start: After(zero), gap: GapEpochChanged},
		{name: "0-0, closed", state: closed, start: After(zero), gap: GapEpochChanged, waits: true},
		{name: "missing", state: missing, start: After(other(4)), gap: GapAhead, waits: true},
		{name: "missing, zero sequence", state: missing, start: After(other(0)), gap: GapEpochChanged, waits: true},
		{name: "closed, inside", state: closed, start: After(pos(laterOrigin, 18)), after: pos(laterOrigin, 18), resume: true},
		{name: "closed, head", state: closed, start: After(pos(laterOrigin, 20)), after: pos(laterOrigin, 20), resume: true},
		{name: "closed, below base", state: closed, start: After(pos(firstOrigin, 4)), gap: GapTrimmed},
		{name: "closed, other numbering", state: closed, start: After(other(8)), gap: GapEpochChanged},
		{name: "reopened, other numbering", state: reopened, start: After(other(8)), gap: GapEpochChanged},
		{name: "reopened, other numbering above the head", state: reopened, start: After(other(30)), gap: GapEpochChanged},
		{name: "reopened, other numbering below the floor", state: reopened, start: After(other(1)), gap: GapEpochChanged},
		{name: "reopened, own numbering above the head", state: reopened, start: After(pos(laterOrigin, 30)), gap: GapAhead},
		{name: "reopened, own numbering below the floor", state: reopened, start: After(pos(firstOrigin, 1)), gap: GapTrimmed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var verify []uint64
			if sequence, ok := tt.start.verify(); ok {
				verify = append(verify, sequence)
			}
			l := judged(tt.state, verify...)
			if !l.State.Exists {
				l.Verified = nil
			}
			v := Judge(tt.start, l)
			after := tt.after
			if tt.gap != 0 && !tt.waits {
				after = l.State.Base
			}
			if v.After != after || v.Resumed != tt.resume || v.Waits != tt.waits || v.Lacks != tt.lacks {
				t.Errorf("got %+v, want after %s", v, after)
			}
			checkGap(t, v, tt.gap, tt.start, l.State)
		})
	}
}

func checkGap(t *testing.T, v Verdict, reason GapReason, start Start, state backlog.StreamState) {
	t.Helper()
	if reason == 0 {
		if v.Gap != nil {
			t.Errorf("unexpected gap: %+v", *v.Gap)
		}
		return
	}
	if v.Gap == nil {
		t.Fatalf("no gap, want %s", reason)
	}
	want := Gap{Reason: reason, Requested: start.position, Oldest: state.Base.Sequence + 1, Head: state.Head, ResumeAfter: v.After}
	if v.Waits {
		want.Oldest = state.Head.Sequence + 1
	}
	if *v.Gap != want {
		t.Errorf("gap %+v, want %+v", *v.Gap, want)
	}
}

func TestJudgeLastFindsThePositionInTheLoad(t *testing.T) {
	l := judged(nil)
	l.Before = pos(laterOrigin, 16)
	for sequence := uint64(17); sequence <= 20; sequence++ {
		l.Frames = append(l.Frames, backlog.Frame{Position: pos(laterOrigin, sequence)})
	}
	for n, want := range map[uint64]uint64{1: 19, 3: 17, 4: 16} {
		if v := Judge(Last(n), l); v.After != pos(laterOrigin, want) || v.Lacks != 0 {
			t.Errorf("Last(%d): %+v, want after %d", n, v, want)
		}
	}
}
