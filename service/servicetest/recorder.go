package servicetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Recorder records a run. Its methods may be called concurrently.
type Recorder struct {
	begun time.Time
	tick  atomic.Uint64

	mu        sync.Mutex // guards what follows
	publishes []*Publish
	followers []*Follower
	samples   []ListenerSample
	windows   []Window
	memory    []MemorySample
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder { return &Recorder{begun: time.Now()} }

// Moment is how long the run has been going on.
func (r *Recorder) Moment() Moment { return time.Since(r.begun) }

func (r *Recorder) now() Tick { return Tick(r.tick.Add(1)) }

// Attempt is a publish that has been recorded as begun. One of its methods is
// called with its result; until then it is Unknown.
type Attempt struct {
	recorder *Recorder
	publish  *Publish
}

// Publishing records that a publisher is about to send a frame.
func (r *Recorder) Publishing(publisher string, f *fanfarev1.NewFrame) *Attempt {
	p := &Publish{
		Publisher: publisher,
		Stream:    backlog.StreamName{Channel: f.GetChannel(), Scope: f.GetScope()},
		Ephemeral: f.GetEphemeral(),
		Content:   ContentOf(f),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Began, p.BeganAt = r.now(), r.Moment()
	r.publishes = append(r.publishes, p)
	return &Attempt{recorder: r, publish: p}
}

// Confirmed records that the frame was stored; an ephemeral one, which has no
// position, that it was announced.
func (a *Attempt) Confirmed(p backlog.Position, duplicate bool) {
	a.end(Confirmed, p, duplicate)
}

// Refused records that nothing was stored.
func (a *Attempt) Refused() { a.end(Refused, backlog.Position{}, false) }

// RolledBack records that the publishing transaction was rolled back.
func (a *Attempt) RolledBack() { a.end(RolledBack, backlog.Position{}, false) }

func (a *Attempt) end(result Result, p backlog.Position, duplicate bool) {
	a.recorder.mu.Lock()
	defer a.recorder.mu.Unlock()
	a.publish.Ended, a.publish.EndedAt = a.recorder.now(), a.recorder.Moment()
	a.publish.Result, a.publish.Position, a.publish.Duplicate = result, p, duplicate
}

// Sample records how many listener connections a replica has.
func (r *Recorder) Sample(replica string, connections int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, ListenerSample{Replica: replica, Connections: connections})
}

// SampleMemory records how much memory a replica uses, and the most that it may.
func (r *Recorder) SampleMemory(replica string, bytes, bound int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory = append(r.memory, MemorySample{Replica: replica, Bytes: bytes, Bound: bound})
}

// Window records a window that is over.
func (r *Recorder) Window(w Window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.windows = append(r.windows, w)
}

// Run returns what has been recorded. Nothing may be recorded meanwhile.
func (r *Recorder) Run() Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := Run{Samples: r.samples, Windows: r.windows, Memory: r.memory}
	for _, p := range r.publishes {
		run.Publishes = append(run.Publishes, *p)
	}
	for _, f := range r.followers {
		run.Subscribers = append(run.Subscribers, f.subscriber())
	}
	return run
}
