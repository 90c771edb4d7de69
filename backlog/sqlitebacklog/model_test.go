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
	ephemeral  bool
	previous   uint64 // own epoch
	touched    time.Duration
}

// modelNumbering is one numbering of a stream.
type modelNumbering struct {
	name     backlog.StreamName
	ownEpoch uint64
	start    backlog.Position // the one before the first frame
	frames   []modelFrame     // all that were ever stored
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

// position is the one with a sequence.
func (n *modelNumbering) position(sequence uint64) backlog.Position {
	if sequence == 0 {
		return n.start
	}
	return n.frames[sequence-1].position
}

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
	case n < 30:
		r.publish()
	case n < 40:
		r.pass()
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
		expected.Epoch = pointerTo(s.position(s.head()).Epoch)
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
	s := r.numbered(p.Stream, position.Epoch^r.store.origin)
	s.touched = r.clock.passed
	s.frames = append(s.frames, modelFrame{position, string(p.Payload), r.clock.passed})
}

// numbered returns a stream whose own epoch is own since something was published.
func (r *modelRun) numbered(name backlog.StreamName, own uint64) *modelStream {
	now := r.clock.passed
	begun := &modelNumbering{name: name, ownEpoch: own, start: backlog.Position{Epoch: own ^ r.store.origin}}
	s := r.streams[name]
	switch {
	case s == nil:
		s = &modelStream{modelNumbering: begun, touched: now}
		r.streams[name] = s
	case s.closed:
		old := s.modelNumbering
		old.retired = now
		r.retired = append(r.retired, old)
		s.previous = old.ownEpoch
		s.modelNumbering, s.touched = begun, now
	}
	if s.ownEpoch != own {
		r.Fatalf("the own epoch went from %d to %d", s.ownEpoch, own)
	}
	return s
}

// pass publishes an ephemeral frame.
func (r *modelRun) pass() {
	p := r.publication(r.name())
	p.Ephemeral = true
	if o, err := backlog.Publish(r.Context(), r.store, p); err != nil || o != (backlog.Outcome{}) {
		r.Fatalf("publish an ephemeral frame: %v, %v", o, err)
	}
	r.passed(p.Stream)
}

// passed marks a stream that has carried an ephemeral frame.
func (r *modelRun) passed(name backlog.StreamName) {
	own := r.state(name).OwnEpoch
	if old := r.streams[name]; old != nil && old.closed && old.ownEpoch == own {
		r.Fatalf("%v was reopened with its old epoch", name)
	}
	s := r.numbered(name, own)
	if !s.ephemeral {
		s.ephemeral, s.touched = true, r.clock.passed
	}
}

func (r *modelRun) publishMany() {
	var batch []backlog.Publication
	for range 1 + r.random.IntN(30) {
		p := r.publication(r.name())
		p.Ephemeral = r.random.IntN(4) == 0
		batch = append(batch, p)
	}
	outcomes, err := r.store.PublishBatch(r.Context(), batch)
	if err != nil {
		r.Fatal(err)
	}
	for i, o := range outcomes {
		if batch[i].Ephemeral {
			r.passed(batch[i].Stream)
		} else {
			r.published(batch[i], o.Position)
		}
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
		want.Last = s.position(s.head())
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
