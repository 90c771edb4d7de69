package servicetest

import (
	"sync"
	"sync/atomic"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// Recorder records a run. Its methods may be called concurrently.
type Recorder struct {
	tick atomic.Uint64

	mu        sync.Mutex // guards what follows
	publishes []*Publish
	followers []*Follower
	samples   []ListenerSample
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder { return &Recorder{} }

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
	p.Began = r.now()
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
	a.publish.Ended = a.recorder.now()
	a.publish.Result, a.publish.Position, a.publish.Duplicate = result, p, duplicate
}

// Sample records how many listener connections a replica has.
func (r *Recorder) Sample(replica string, connections int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, ListenerSample{Replica: replica, Connections: connections})
}

// Run returns what has been recorded. Nothing may be recorded meanwhile.
func (r *Recorder) Run() Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := Run{Samples: r.samples}
	for _, p := range r.publishes {
		run.Publishes = append(run.Publishes, *p)
	}
	for _, f := range r.followers {
		run.Subscribers = append(run.Subscribers, f.subscriber())
	}
	return run
}
