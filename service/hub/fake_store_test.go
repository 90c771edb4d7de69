package hub

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// fakeStore is the naive model of a store: every numbering of every stream, in
// memory, under one lock.
type fakeStore struct {
	mu      sync.Mutex
	origin  uint64
	backlog uint64
	age     time.Duration
	// clockAhead is by how much the clock that frames get their times from is ahead
	// of this process's.
	clockAhead time.Duration
	streams    map[backlog.StreamName]*fakeStream
	// truth has the payload of every frame that was ever committed.
	truth map[backlog.StreamName]map[backlog.Position]string

	loads, pages, loadedFrames int
	largestLoad                int
	fail                       error
	// before is called when a read has arrived, after when it has its result;
	// without the lock.
	before, after func(what string)
}

type fakeStream struct {
	name       backlog.StreamName
	current    *numbering
	retired    []*numbering
	everClosed bool
	ephemeral  bool
}

// numbering has rows[i] at sequence floor+1+i.
type numbering struct {
	own         uint64
	rows        []backlog.Frame
	head        uint64
	headOrigin  uint64
	floor       uint64
	floorOrigin uint64
	closed      bool
}

func newFakeStore() *fakeStore {
	return &fakeStore{
		origin:  newID(),
		backlog: 1000,
		streams: make(map[backlog.StreamName]*fakeStream),
		truth:   make(map[backlog.StreamName]map[backlog.Position]string),
	}
}

func newID() uint64 { return rand.Uint64()>>1 | 1 }

// openLocked returns the numbering that a publish goes to.
func (f *fakeStore) openLocked(name backlog.StreamName) (*fakeStream, *numbering) {
	s := f.streams[name]
	if s == nil {
		s = &fakeStream{name: name}
		f.streams[name] = s
		f.truth[name] = make(map[backlog.Position]string)
	}
	if n := s.current; n == nil || n.closed {
		if n != nil {
			s.retired = append(s.retired, n)
		}
		s.current = &numbering{own: newID(), floorOrigin: f.origin, headOrigin: f.origin}
	}
	return s, s.current
}

func (f *fakeStore) publish(name backlog.StreamName, payload string) backlog.Announcement {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, n := f.openLocked(name)
	n.head++
	n.headOrigin = f.origin
	frame := backlog.Frame{
		Position: backlog.Position{Epoch: n.own ^ f.origin, Sequence: n.head},
		Payload:  []byte(payload),
		Created:  time.Now().Add(f.clockAhead),
	}
	n.rows = append(n.rows, frame)
	f.truth[name][frame.Position] = payload
	return backlog.Announcement{Kind: backlog.AnnounceFrame, Stream: name, OwnEpoch: n.own, Origin: f.origin, Frame: frame}
}

// publishEphemeral stores nothing but that the stream is there and is marked.
func (f *fakeStore) publishEphemeral(name backlog.StreamName, payload string) backlog.Announcement {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, n := f.openLocked(name)
	s.ephemeral = true
	return backlog.Announcement{
		Kind: backlog.AnnounceEphemeral, Stream: name, OwnEpoch: n.own, Origin: f.origin,
		Frame: backlog.Frame{Position: n.headPosition(), Ephemeral: true, Payload: []byte(payload), Created: time.Now().Add(f.clockAhead)},
	}
}

func pointerTo(a backlog.Announcement) backlog.Announcement {
	a.Kind = backlog.AnnouncePointer
	a.RowID = "row-" + a.Frame.Position.String()
	a.Frame = backlog.Frame{Position: a.Frame.Position}
	return a
}

// close closes a stream; ok is false if there was nothing to close.
func (f *fakeStore) close(name backlog.StreamName) (a backlog.Announcement, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.streams[name]
	if s == nil || s.current == nil || s.current.closed {
		return a, false
	}
	n := s.current
	n.closed, s.everClosed = true, true
	return backlog.Announcement{
		Kind: backlog.AnnounceClosed, Stream: name, OwnEpoch: n.own, Origin: n.headOrigin,
		Frame: backlog.Frame{Position: n.headPosition()},
	}, true
}

// trim deletes all rows but the newest keep of the current numbering.
func (f *fakeStore) trim(name backlog.StreamName, keep int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[name]; s != nil && s.current != nil {
		s.current.trim(keep)
	}
}

func (n *numbering) trim(keep int) {
	if drop := len(n.rows) - keep; drop > 0 {
		last := n.rows[drop-1].Position
		n.floor, n.floorOrigin = last.Sequence, last.Epoch^n.own
		n.rows = slices.Clone(n.rows[drop:])
	}
}

// remove deletes a stream as if it had never been.
func (f *fakeStore) remove(name backlog.StreamName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, name)
}

// restart gives the server another origin.
func (f *fakeStore) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.origin = newID()
}

// lose drops the newest n frames of a stream, as a promotion of a standby that
// lagged does.
func (f *fakeStore) lose(name backlog.StreamName, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	current := f.streams[name].current
	current.rows = slices.Clone(current.rows[:len(current.rows)-n])
	current.head -= uint64(n)
	current.headOrigin = current.floorOrigin
	if k := len(current.rows); k > 0 {
		current.headOrigin = current.rows[k-1].Position.Epoch ^ current.own
	}
	f.origin = newID()
}

func (f *fakeStore) head(name backlog.StreamName) backlog.Position {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.streams[name]
	if s == nil {
		return backlog.Position{}
	}
	return s.current.headPosition()
}

func (f *fakeStore) wasPublished(name backlog.StreamName, p backlog.Position, payload string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	got, ok := f.truth[name][p]
	return ok && got == payload
}

func (n *numbering) headPosition() backlog.Position {
	return backlog.Position{Epoch: n.own ^ n.headOrigin, Sequence: n.head}
}

// position returns the position at a sequence, with epoch 0 if it is not known.
func (n *numbering) position(sequence uint64) backlog.Position {
	switch {
	case sequence == n.head:
		return n.headPosition()
	case sequence == n.floor:
		return backlog.Position{Epoch: n.own ^ n.floorOrigin, Sequence: sequence}
	case sequence > n.floor && sequence < n.head:
		return n.rows[sequence-n.floor-1].Position
	default:
		return backlog.Position{Sequence: sequence}
	}
}

func (f *fakeStore) stateLocked(name backlog.StreamName) backlog.StreamState {
	s := f.streams[name]
	if s == nil {
		return backlog.StreamState{Stream: name}
	}
	n := s.current
	base := max(n.floor, minus(n.head, f.backlog))
	if f.age > 0 {
		for base < n.head && time.Until(n.rows[base-n.floor].Created)+f.age < f.clockAhead {
			base++
		}
	}
	return backlog.StreamState{
		Stream: name, Exists: true, OwnEpoch: n.own, Head: n.headPosition(), Base: n.position(base), Floor: n.floor,
		Closed: n.closed, EverClosed: s.everClosed, PreviousOwnEpoch: s.previousOwn(), Backlog: f.backlog, RetentionAge: f.age,
		Ephemeral: s.ephemeral,
	}
}

func (s *fakeStream) previousOwn() uint64 {
	if n := len(s.retired); n > 0 {
		return s.retired[n-1].own
	}
	return 0
}

// setBefore has do called before each read, from now on; nil: nothing.
func (f *fakeStore) setBefore(do func(what string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = do
}

func (f *fakeStore) begin(what string, origin uint64) (end func(), err error) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		before(what)
	}
	f.mu.Lock()
	end = func() {
		f.mu.Unlock()
		if f.after != nil {
			f.after(what)
		}
	}
	if f.fail != nil {
		return end, f.fail
	}
	if origin != 0 && origin != f.origin {
		return end, backlog.ErrOtherServer
	}
	return end, nil
}

func (f *fakeStore) Load(ctx context.Context, origin uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	end, err := f.begin("load", origin)
	defer end()
	f.loads++
	f.largestLoad = max(f.largestLoad, len(requests))
	if err != nil {
		return backlog.LoadResult{}, err
	}
	result := backlog.LoadResult{Origin: f.origin}
	for _, r := range requests {
		result.Streams = append(result.Streams, f.loadLocked(r))
	}
	return result, ctx.Err()
}

func (f *fakeStore) Changed(ctx context.Context, origin uint64, known []backlog.StreamState) ([]int, error) {
	end, err := f.begin("check", origin)
	defer end()
	f.largestLoad = max(f.largestLoad, len(known))
	if err != nil {
		return nil, err
	}
	var changed []int
	for i := range known {
		if state := f.stateLocked(known[i].Stream); state.ChangedFrom(&known[i]) {
			changed = append(changed, i)
		}
	}
	return changed, ctx.Err()
}

func (f *fakeStore) loadLocked(r backlog.LoadRequest) backlog.Loaded {
	l := backlog.Loaded{State: f.stateLocked(r.Stream)}
	var n *numbering
	if l.State.Exists {
		n = f.streams[r.Stream].current
	}
	for _, sequence := range r.Verify {
		p := backlog.Position{Sequence: sequence}
		if n != nil {
			p = n.position(sequence)
		}
		l.Verified = append(l.Verified, p)
	}
	if n == nil {
		return l
	}
	if f.age > 0 {
		l.NotBefore = time.Now().Add(f.clockAhead - f.age)
	}
	from, bytes := len(n.rows), 0
	for from > 0 && len(n.rows)-from < r.MaxFrames {
		row := n.rows[from-1]
		bytes += len(row.Payload)
		if row.Position.Sequence <= r.After || (bytes > r.MaxBytes && from < len(n.rows)) {
			break
		}
		from--
	}
	l.Frames = slices.Clone(n.rows[from:])
	f.loadedFrames += len(l.Frames)
	l.Before = n.position(n.floor + uint64(from))
	return l
}

func (f *fakeStore) ReadPage(ctx context.Context, origin uint64, r backlog.PageRequest) (backlog.Page, error) {
	end, err := f.begin("page", origin)
	defer end()
	f.pages++
	if err != nil {
		return backlog.Page{}, err
	}
	page := backlog.Page{State: f.stateLocked(r.Stream)}
	n := f.numberingLocked(r.Stream, r.OwnEpoch)
	switch {
	case n == nil:
		return page, backlog.ErrNumberingGone
	case r.After.Sequence < n.floor:
		return page, backlog.ErrTrimmed
	case n.position(r.After.Sequence) != r.After:
		return page, backlog.ErrNumberingGone
	}
	bytes := 0
	for _, row := range n.rows[r.After.Sequence-n.floor:] {
		bytes += len(row.Payload)
		if len(page.Frames) > 0 && (bytes > r.MaxBytes || len(page.Frames) == r.MaxFrames) {
			break
		}
		page.Frames = append(page.Frames, row)
	}
	return page, ctx.Err()
}

func (f *fakeStore) numberingLocked(name backlog.StreamName, own uint64) *numbering {
	s := f.streams[name]
	if s == nil {
		return nil
	}
	for _, n := range append(slices.Clone(s.retired), s.current) {
		if n.own == own {
			return n
		}
	}
	return nil
}

func (f *fakeStore) setFail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeStore) reads() (loads, pages int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loads, f.pages
}

func (f *fakeStore) largest() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.largestLoad
}

func streamName(i int) backlog.StreamName {
	return backlog.StreamName{Channel: "orders", Scope: fmt.Sprint(i)}
}
