package sqlitebacklog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// model is what a store should hold, kept the simple way. Times are the time that
// has passed by the test's clock.
type model struct {
	streams map[backlog.StreamName]*modelStream
	retired []*modelNumbering
	keys    map[string]*modelKey
	policy  map[string]backlog.Policy // by channel; "" is the default
}

type modelStream struct {
	*modelNumbering
	everClosed bool
	previous   uint64 // own epoch
	touched    time.Duration
}

// modelNumbering is one numbering of a stream.
type modelNumbering struct {
	name     backlog.StreamName
	ownEpoch uint64
	frames   []modelFrame // all that were ever published
	closed   bool
	closedAt time.Duration
	retired  time.Duration
	// deletable is the largest sequence up to which the store may ever have
	// deleted, floor that up to which it has.
	deletable, floor uint64
}

type modelFrame struct {
	position backlog.Position
	payload  string
	at       time.Duration
}

type modelKey struct {
	position backlog.Position
	payload  string
	at       time.Duration
}

const (
	modelGrace  = 30 * time.Second
	modelWindow = 24 * time.Hour
)

func (n *modelNumbering) head() uint64 { return uint64(len(n.frames)) }

func (m *model) bounds(channel string) backlog.Bounds {
	var all []backlog.Policy
	for _, p := range m.policy {
		all = append(all, p)
	}
	return backlog.BoundsOf(all, channel, false)
}

// base is the sequence before the oldest frame that may be replayed.
func (m *model) base(n *modelNumbering, now time.Duration) uint64 {
	b := m.bounds(n.name.Channel)
	base := n.floor
	for _, f := range n.frames {
		tooMany := f.position.Sequence+b.Backlog <= n.head()
		if tooMany || b.RetentionAge > 0 && now-f.at > b.RetentionAge {
			base = max(base, f.position.Sequence)
		}
	}
	return base
}

// mayDelete is the sequence up to which the store may delete now.
func (m *model) mayDelete(n *modelNumbering, now time.Duration) uint64 {
	limit := m.base(n, now)
	if n.closed && now-n.closedAt > modelGrace {
		limit = n.head()
	}
	for limit > 0 && now-n.frames[limit-1].at <= modelGrace {
		limit--
	}
	return limit
}

// modelRun is a store beside its model.
type modelRun struct {
	*testing.T
	model
	store  *runningStore
	clock  *handClock
	random *rand.Rand
	count  int
}

// TestModel runs random operations on a store and compares what can be read with a
// naive model after each.
func TestModel(t *testing.T) {
	for _, tt := range []struct {
		cfg   Config
		seeds []uint64
		steps int
	}{
		{Config{Path: MemoryPath}, []uint64{1, 2, 3, 4}, 150}, {newFile(t), []uint64{5}, 100},
	} {
		for _, seed := range tt.seeds {
			t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				hand := newHandClock()
				r := &modelRun{
					T:     t,
					model: model{streams: map[backlog.StreamName]*modelStream{}, keys: map[string]*modelKey{}, policy: map[string]backlog.Policy{}},
					store: openRunningAt(t, tt.cfg, &hand.clock), clock: hand, random: rand.New(rand.NewPCG(seed, seed)),
				}
				for range tt.steps {
					r.step()
				}
			})
		}
	}
}

func (r *modelRun) step() {
	r.Helper()
	// Twice: what time alone has made old, and what the operation has.
	r.age()
	switch n := r.random.IntN(100); {
	case n < 40:
		r.publish()
	case n < 50:
		r.publishMany()
	case n < 60:
		r.publishKeyed()
	case n < 68:
		r.close()
	case n < 76:
		r.setPolicy()
	case n < 86:
		r.sweep()
	case n < 88:
		r.store = r.store.reopen(r.T)
	case n < 90:
		r.clock.step(time.Duration(r.random.IntN(10)) * time.Hour)
		r.clock.now()
	case n < 98:
		r.clock.pass(time.Duration(r.random.IntN(40)) * time.Second)
	default:
		r.clock.pass(time.Duration(r.random.IntN(30)) * time.Hour)
	}
	r.age()
	r.compare()
}

func (r *modelRun) age() {
	for _, s := range r.streams {
		s.deletable = max(s.deletable, r.mayDelete(s.modelNumbering, r.clock.passed))
	}
}

func (r *modelRun) name() backlog.StreamName {
	return backlog.StreamName{Channel: []string{"a", "b"}[r.random.IntN(2)], Scope: fmt.Sprint(r.random.IntN(2))}
}

func (r *modelRun) publication(name backlog.StreamName) backlog.Publication {
	r.count++
	return backlog.Publication{Stream: name, Payload: []byte(fmt.Sprint(r.count))}
}

func (r *modelRun) publish() {
	p := r.publication(r.name())
	s := r.streams[p.Stream]
	expected := backlog.Expectation{}
	if s != nil && !s.closed {
		expected.Sequence = s.head()
	}
	if r.random.IntN(2) == 0 {
		p.Expected = &expected
	}
	o, err := backlog.Publish(r.Context(), r.store, p)
	if err != nil || o.Duplicate {
		r.Fatalf("publish: %v, %v", o, err)
	}
	r.published(p, o.Position)
	expected.Sequence++
	if o.Position.Sequence != expected.Sequence {
		r.Fatalf("published as %v, want sequence %d", o.Position, expected.Sequence)
	}
	p.Expected = &backlog.Expectation{Sequence: expected.Sequence + 1}
	if _, err := backlog.Publish(r.Context(), r.store, p); !errors.As(err, new(*backlog.ExpectationError)) {
		r.Fatalf("publish with a wrong expectation: %v", err)
	}
}

// published adds a frame to the model.
func (r *modelRun) published(p backlog.Publication, position backlog.Position) {
	now := r.clock.passed
	own := position.Epoch ^ r.store.origin
	s := r.streams[p.Stream]
	switch {
	case s == nil:
		s = &modelStream{modelNumbering: &modelNumbering{name: p.Stream, ownEpoch: own}}
		r.streams[p.Stream] = s
	case s.closed:
		old := s.modelNumbering
		old.retired = now
		r.retired = append(r.retired, old)
		s.previous = old.ownEpoch
		s.modelNumbering = &modelNumbering{name: p.Stream, ownEpoch: own}
	}
	if s.ownEpoch != own {
		r.Fatalf("the own epoch went from %d to %d", s.ownEpoch, own)
	}
	s.touched = now
	s.frames = append(s.frames, modelFrame{position, string(p.Payload), now})
}

func (r *modelRun) publishMany() {
	var batch []backlog.Publication
	for range 1 + r.random.IntN(30) {
		batch = append(batch, r.publication(r.name()))
	}
	outcomes, err := r.store.PublishBatch(r.Context(), batch)
	if err != nil {
		r.Fatal(err)
	}
	for i, o := range outcomes {
		r.published(batch[i], o.Position)
	}
}

func (r *modelRun) publishKeyed() {
	p := r.publication(r.name())
	p.IdempotencyKey = fmt.Sprint(r.random.IntN(10))
	id := fmt.Sprint(p.Stream, p.IdempotencyKey)
	known := r.keys[id]
	if known != nil {
		p.Payload = []byte(known.payload)
	}
	o, err := backlog.Publish(r.Context(), r.store, p)
	switch {
	case err != nil:
		r.Fatal(err)
	case known == nil && o.Duplicate:
		r.Fatalf("a new key is known at %v", o.Position)
	case known != nil && o.Duplicate && o.Position != known.position:
		r.Fatalf("the duplicate is at %v, want %v", o.Position, known.position)
	case known != nil && !o.Duplicate && r.clock.passed-known.at <= modelWindow:
		r.Fatalf("a key of %v ago was forgotten", r.clock.passed-known.at)
	case !o.Duplicate:
		r.published(p, o.Position)
		r.keys[id] = &modelKey{o.Position, string(p.Payload), r.clock.passed}
	}
}

func (r *modelRun) close() {
	name := r.name()
	s := r.streams[name]
	o, err := r.store.CloseStream(r.Context(), name, nil)
	if err != nil {
		r.Fatal(err)
	}
	want := backlog.CloseOutcome{AlreadyClosed: s == nil || s.closed}
	if s != nil {
		want.Last = s.frames[s.head()-1].position
	}
	if o != want {
		r.Fatalf("closed as %v, want %v", o, want)
	}
	if !want.AlreadyClosed {
		s.closed, s.everClosed, s.closedAt, s.touched = true, true, r.clock.passed, r.clock.passed
	}
}

func (r *modelRun) setPolicy() {
	p := backlog.Policy{Channel: []string{"", "a", "b"}[r.random.IntN(3)]}
	p.Prefix = p.Channel == ""
	if r.random.IntN(3) > 0 {
		p.Backlog = pointerTo(r.random.Uint64N(50))
	}
	if r.random.IntN(3) == 0 {
		p.RetentionAge = pointerTo(time.Duration(r.random.IntN(3)) * 20 * time.Minute)
	}
	if r.random.IntN(3) == 0 {
		p.StreamRetention = pointerTo(time.Duration(1+r.random.IntN(3)) * time.Hour)
	}
	r.store.setPolicy(r.T, p)
	r.policy[p.Channel] = p
}

// sweep sweeps twice: the second time removes streams that the first has emptied.
func (r *modelRun) sweep() {
	now := r.clock.passed
	r.store.sweep(r.T)
	r.store.sweep(r.T)
	for name, s := range r.streams {
		state := r.state(name)
		if want := max(s.floor, r.mayDelete(s.modelNumbering, now)); state.Exists && state.Floor != want {
			r.Fatalf("the floor of %v is %d after a sweep, want %d", name, state.Floor, want)
		}
		empty := r.mayDelete(s.modelNumbering, now) == s.head() || s.floor == s.head()
		old := now-s.touched > r.bounds(name.Channel).StreamRetention
		if state.Exists != !(empty && old) {
			r.Fatalf("%v exists: %v; empty: %v, past its retention: %v", name, state.Exists, empty, old)
		}
		if !state.Exists {
			delete(r.streams, name)
		}
	}
	for id, k := range r.keys {
		if now-k.at > modelWindow {
			delete(r.keys, id)
		}
	}
	r.retired = slices.DeleteFunc(r.retired, func(n *modelNumbering) bool {
		gone := now-n.retired > modelGrace
		if _, err := r.page(n, backlog.Position{}); gone && !errors.Is(err, backlog.ErrNumberingGone) {
			r.Fatalf("a numbering of %v ago: %v", now-n.retired, err)
		}
		return gone
	})
}

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
	verify := uint64(1 + r.random.IntN(len(s.frames)))
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
		Stream: s.name, Exists: true, OwnEpoch: s.ownEpoch, Head: s.frames[s.head()-1].position, Floor: s.floor,
		Closed: s.closed, EverClosed: s.everClosed, PreviousOwnEpoch: s.previous, Backlog: r.bounds(s.name.Channel).Backlog,
		RetentionAge: r.bounds(s.name.Channel).RetentionAge, Created: state.Created, Updated: state.Updated, Base: state.Base,
	}
	base := r.base(s.modelNumbering, r.clock.passed)
	if state != want || state.Base.Sequence != base {
		r.Fatalf("the state is %+v, want %+v with base %d", state, want, base)
	}
	if base > 0 && base >= s.floor && state.Base != s.frames[base-1].position {
		r.Fatalf("the base is %v, want %v", state.Base, s.frames[base-1].position)
	}
	r.compareFrames("loaded", l.Frames, s.frames[s.floor:])
	known := backlog.Position{Sequence: verify}
	if verify >= s.floor {
		known = s.frames[verify-1].position
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
