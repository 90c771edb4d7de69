// Package backlogtest is the conformance suite of backlog.Store: every promise
// of the contract as a test against a real store. A store's own tests call Run
// and add what concerns only them.
package backlogtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Hooks reach what the contract leaves to configuration, time and operators. All
// are required. They get the store that open returned.
type Hooks struct {
	// Sweep lets the grace of everything stored so far pass and has deleted what
	// the bounds no longer keep when it returns.
	Sweep func(t *testing.T, s backlog.Store)
	// Age makes a stream, its frames and its idempotency keys older by d.
	Age func(t *testing.T, s backlog.Store, stream backlog.StreamName, d time.Duration)
	// SetHead makes an existing stream's head sequence without its earlier frames:
	// as if the stream had been trimmed up to it.
	SetHead func(t *testing.T, s backlog.Store, stream backlog.StreamName, sequence uint64)
	// Reopen ends the store and opens another one on the same data.
	Reopen func(t *testing.T, s backlog.Store) backlog.Store
}

// IdempotencyWindow is how long a key is remembered at least and, after a sweep,
// at most.
const IdempotencyWindow = 24 * time.Hour

// patience bounds every single call of the suite.
const patience = 30 * time.Second

// Run runs the suite. open returns a new, empty store that runs; it ends the
// store when the test ends. It is called once by each of the suite's tests.
func Run(t *testing.T, open func(t *testing.T) backlog.Store, hooks Hooks) {
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"Numbering", numberingTests}, {"Content", contentTests}, {"Limits", limitTests},
		{"Idempotency", idempotencyTests}, {"Expectations", expectationTests}, {"Batches", batchTests},
		{"Closing", closingTests}, {"Bounds", boundTests}, {"Policies", policyTests}, {"Loads", loadTests}, {"Changes", changedTests},
		{"Pages", pageTests}, {"Lists", listTests}, {"Deadlines", deadlineTests},
	} {
		runGroup(t, group.name, group.tests, open, hooks)
	}
}

// RunEphemeral runs the suite's tests of ephemeral frames: what the contract lets
// see of them without a bus. Its parameters are those of Run.
func RunEphemeral(t *testing.T, open func(t *testing.T) backlog.Store, hooks Hooks) {
	runGroup(t, "Ephemeral", ephemeralTests, open, hooks)
}

func runGroup(t *testing.T, name string, tests []test, open func(t *testing.T) backlog.Store, hooks Hooks) {
	t.Run(name, func(t *testing.T) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.run(&harness{T: t, Store: open(t), hooks: hooks})
			})
		}
	})
}

type test struct {
	name string
	run  func(h *harness)
}

// harness is a store under test with short forms of its methods that fail the
// test on an error.
type harness struct {
	*testing.T
	backlog.Store
	hooks Hooks
}

// Run hides both embedded methods of that name, which tests must not call.
func (h *harness) Run() {}

// name makes a stream's name of a channel and an empty or given scope.
func name(channel string, scope ...string) backlog.StreamName {
	n := backlog.StreamName{Channel: channel}
	if len(scope) > 0 {
		n.Scope = scope[0]
	}
	return n
}

func text(stream backlog.StreamName, payload string) backlog.Publication {
	return backlog.Publication{Stream: stream, Payload: []byte(payload)}
}

func keyed(stream backlog.StreamName, key, payload string) backlog.Publication {
	p := text(stream, payload)
	p.IdempotencyKey = key
	return p
}

func expecting(p backlog.Publication, sequence uint64, epoch ...uint64) backlog.Publication {
	p.Expected = &backlog.Expectation{Sequence: sequence}
	if len(epoch) > 0 {
		p.Expected.Epoch = &epoch[0]
	}
	return p
}

func (h *harness) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.Cleanup(cancel)
	return ctx
}

func (h *harness) tryPublish(p backlog.Publication) (backlog.Outcome, error) {
	return backlog.Publish(h.context(), h.Store, p)
}

func (h *harness) publish(p backlog.Publication) backlog.Position {
	h.Helper()
	o, err := h.tryPublish(p)
	if err != nil {
		h.Fatalf("publish to %q: %v", p.Stream, err)
	}
	if o.Duplicate {
		h.Fatalf("publish to %q: duplicate of %s, want a new frame", p.Stream, o.Position)
	}
	return o.Position
}

// publishMany publishes frames with the payloads "1" to "n" and returns their
// positions.
func (h *harness) publishMany(stream backlog.StreamName, n int) []backlog.Position {
	h.Helper()
	batch := make([]backlog.Publication, n)
	for i := range batch {
		batch[i] = text(stream, fmt.Sprint(i+1))
	}
	return positions(h.publishBatch(batch))
}

func (h *harness) publishBatch(batch []backlog.Publication) []backlog.Outcome {
	h.Helper()
	outcomes, err := h.PublishBatch(h.context(), batch)
	if err != nil {
		h.Fatalf("publish a batch: %v", err)
	}
	if len(outcomes) != len(batch) {
		h.Fatalf("%d outcomes for %d frames", len(outcomes), len(batch))
	}
	return outcomes
}

func positions(outcomes []backlog.Outcome) []backlog.Position {
	p := make([]backlog.Position, len(outcomes))
	for i, o := range outcomes {
		p[i] = o.Position
	}
	return p
}

func (h *harness) close(stream backlog.StreamName) backlog.CloseOutcome {
	h.Helper()
	o, err := h.CloseStream(h.context(), stream, nil)
	if err != nil {
		h.Fatalf("close %q: %v", stream, err)
	}
	return o
}

func (h *harness) setPolicy(p backlog.Policy) {
	h.Helper()
	if err := h.SetPolicy(h.context(), p); err != nil {
		h.Fatalf("set the policy of %q: %v", p.Channel, err)
	}
}

// setBounds sets the bounds of all streams whose channels have no policy of
// their own. StreamRetention 0 means that of backlog.DefaultBounds.
func (h *harness) setBounds(b backlog.Bounds) {
	h.Helper()
	if b.StreamRetention == 0 {
		b.StreamRetention = backlog.DefaultBounds.StreamRetention
	}
	h.setPolicy(backlog.Policy{Prefix: true, Backlog: &b.Backlog, RetentionAge: &b.RetentionAge, StreamRetention: &b.StreamRetention})
}

// everything asks for all frames of a stream.
func everything(stream backlog.StreamName) backlog.LoadRequest {
	return backlog.LoadRequest{Stream: stream, MaxFrames: 1 << 20, MaxBytes: 1 << 30}
}

func (h *harness) load(request backlog.LoadRequest) backlog.Loaded {
	h.Helper()
	result, err := h.Load(h.context(), 0, []backlog.LoadRequest{request})
	if err != nil {
		h.Fatalf("load %q: %v", request.Stream, err)
	}
	if len(result.Streams) != 1 {
		h.Fatalf("load of 1 stream returned %d", len(result.Streams))
	}
	return result.Streams[0]
}

func (h *harness) state(stream backlog.StreamName) backlog.StreamState {
	h.Helper()
	return h.load(backlog.LoadRequest{Stream: stream}).State
}

func (h *harness) page(request backlog.PageRequest) backlog.Page {
	h.Helper()
	p, err := h.ReadPage(h.context(), 0, request)
	if err != nil {
		h.Fatalf("read a page of %q after %s: %v", request.Stream, request.After, err)
	}
	return p
}

// pageAfter asks for all that follows a position.
func pageAfter(stream backlog.StreamName, after backlog.Position) backlog.PageRequest {
	return backlog.PageRequest{Stream: stream, After: after, MaxFrames: 1 << 20, MaxBytes: 1 << 30}
}

// running makes a page request one of a subscription that has begun.
func running(r backlog.PageRequest, ownEpoch uint64) backlog.PageRequest {
	r.Running, r.OwnEpoch = true, ownEpoch
	return r
}

// origin is that of the server.
func (h *harness) origin() uint64 {
	h.Helper()
	result, err := h.Load(h.context(), 0, nil)
	if err != nil {
		h.Fatalf("load nothing: %v", err)
	}
	return result.Origin
}

func framePositions(frames []backlog.Frame) []backlog.Position {
	p := make([]backlog.Position, len(frames))
	for i, f := range frames {
		p[i] = f.Position
	}
	return p
}

func payloads(frames []backlog.Frame) []string {
	p := make([]string, len(frames))
	for i, f := range frames {
		p[i] = string(f.Payload)
	}
	return p
}

// before is the position that precedes the first frame of a numbering.
func (h *harness) before(stream backlog.StreamName) backlog.Position {
	h.Helper()
	l := h.load(everything(stream))
	if l.Before.Sequence != 0 || l.Before.Epoch == 0 {
		h.Fatalf("the position before the first frame of %q is %s", stream, l.Before)
	}
	return l.Before
}
