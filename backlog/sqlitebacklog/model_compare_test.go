package sqlitebacklog

import (
	"errors"

	"github.com/fanfare-io/fanfare/backlog"
)

func (r *modelRun) state(name backlog.StreamName) backlog.StreamState {
	return r.store.loadOne(r.T, backlog.LoadRequest{Stream: name}).State
}

func (r *modelRun) page(n *modelNumbering, after backlog.Position) (backlog.Page, error) {
	return r.store.ReadPage(r.Context(), 0, backlog.PageRequest{
		Stream: n.name, OwnEpoch: n.ownEpoch, After: after, Running: true, MaxFrames: 1 + r.random.IntN(100), MaxBytes: 1 + r.random.IntN(200),
	})
}

// compare reads everything.
func (r *modelRun) compare() {
	r.Helper()
	states, err := r.store.ListStreams(r.Context(), "", backlog.StreamName{}, 100)
	if err != nil || len(states) != len(r.streams) {
		r.Fatalf("%d streams are listed, %v; want %d", len(states), err, len(r.streams))
	}
	for _, state := range states {
		s := r.streams[state.Stream]
		if s == nil {
			r.Fatalf("%v exists", state.Stream)
		}
		r.compareStream(s, state)
	}
	for _, n := range r.retired {
		r.comparePage(n)
	}
}

func (r *modelRun) compareStream(s *modelStream, listed backlog.StreamState) {
	r.Helper()
	verify := uint64(r.random.IntN(len(s.frames) + 1))
	l := r.store.loadOne(r.T, backlog.LoadRequest{Stream: s.name, MaxFrames: 1 << 20, MaxBytes: 1 << 30, Verify: []uint64{verify}})
	state := l.State
	if state != listed {
		r.Fatalf("the state is %v, listed is %v", state, listed)
	}
	if state.Floor < s.floor || state.Floor > s.deletable {
		r.Fatalf("the floor of %v is %d; it was %d, and up to %d may be deleted", s.name, state.Floor, s.floor, s.deletable)
	}
	s.floor = state.Floor
	want := backlog.StreamState{
		Stream: s.name, Exists: true, OwnEpoch: s.ownEpoch, Head: s.position(s.head()), Floor: s.floor,
		Closed: s.closed, EverClosed: s.everClosed, Ephemeral: s.ephemeral, PreviousOwnEpoch: s.previous, Backlog: r.bounds(s.name.Channel).Backlog,
		RetentionAge: r.bounds(s.name.Channel).RetentionAge, Created: state.Created, Updated: state.Updated, Base: state.Base,
	}
	base := r.base(s.modelNumbering, r.clock.passed)
	if state != want || state.Base.Sequence != base {
		r.Fatalf("the state is %+v, want %+v with base %d", state, want, base)
	}
	if base >= s.floor && state.Base != s.position(base) {
		r.Fatalf("the base is %v, want %v", state.Base, s.position(base))
	}
	r.compareFrames("loaded", l.Frames, s.frames[s.floor:])
	known := backlog.Position{Sequence: verify}
	if verify >= s.floor {
		known = s.position(verify)
	}
	if l.Verified[0] != known {
		r.Fatalf("verified %v, want %v", l.Verified[0], known)
	}
	r.comparePage(s.modelNumbering)
}

func (r *modelRun) compareFrames(what string, got []backlog.Frame, want []modelFrame) {
	r.Helper()
	if len(got) != len(want) {
		r.Fatalf("%s %d frames, want %d", what, len(got), len(want))
	}
	for i, f := range got {
		if f.Position != want[i].position || string(f.Payload) != want[i].payload || i > 0 && f.Created.Before(got[i-1].Created) {
			r.Fatalf("%s %v %q of %v, want %v", what, f.Position, f.Payload, f.Created, want[i])
		}
	}
}

// comparePage reads from a random position of a numbering.
func (r *modelRun) comparePage(n *modelNumbering) {
	r.Helper()
	var after backlog.Position
	if at := r.random.IntN(len(n.frames) + 1); at > 0 {
		after = n.frames[at-1].position
	}
	page, err := r.page(n, after)
	if after.Sequence < n.floor {
		if !errors.Is(err, backlog.ErrTrimmed) {
			r.Fatalf("page after %v, below the floor %d: %v", after, n.floor, err)
		}
		return
	}
	if err != nil {
		r.Fatalf("page after %v of %d: %v", after, n.head(), err)
	}
	if len(page.Frames) == 0 && after.Sequence < n.head() {
		r.Fatalf("an empty page after %v", after)
	}
	r.compareFrames("page has", page.Frames, n.frames[after.Sequence:][:len(page.Frames)])
}
