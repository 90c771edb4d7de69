package service

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// fakeEpoch is the epoch of every stream of a fakeStore.
const fakeEpoch = 1

// fakeStore numbers publications in memory. Tests of what a store does use a
// real one; this one fails and waits on command.
type fakeStore struct {
	backlog.Store // panics where a test calls what it does not expect

	mu    sync.Mutex // guards what follows, but what tests set before anything is called
	heads map[backlog.StreamName]uint64
	// submitted is every publication in the order of Submit.
	submitted []backlog.Publication
	// answer, if not nil, decides the outcome of a publication and when done is
	// called.
	answer func(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error))
	// err, if not nil, is what everything but Submit returns.
	err error
	// streams are listed, in their order.
	streams  []backlog.StreamState
	policies []backlog.Policy
	// policySet, if not nil, is called when a policy has been set.
	policySet func()
}

func (s *fakeStore) Submit(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error)) {
	s.mu.Lock()
	s.submitted = append(s.submitted, p)
	answer := s.answer
	s.mu.Unlock()
	if answer == nil {
		done(s.number(p), nil)
		return
	}
	answer(ctx, p, done)
}

func (s *fakeStore) number(p backlog.Publication) backlog.Outcome {
	if p.Ephemeral {
		return backlog.Outcome{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heads == nil {
		s.heads = map[backlog.StreamName]uint64{}
	}
	s.heads[p.Stream]++
	return backlog.Outcome{Position: backlog.Position{Epoch: fakeEpoch, Sequence: s.heads[p.Stream]}}
}

func (s *fakeStore) submissions() []backlog.Publication {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]backlog.Publication(nil), s.submitted...)
}

func (s *fakeStore) PublishBatch(_ context.Context, batch []backlog.Publication) ([]backlog.Outcome, error) {
	if s.err != nil {
		return nil, s.err
	}
	out := make([]backlog.Outcome, len(batch))
	for i, p := range batch {
		out[i] = s.number(p)
	}
	return out, nil
}

func (s *fakeStore) CloseStream(context.Context, backlog.StreamName, *uint64) (backlog.CloseOutcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return backlog.CloseOutcome{AlreadyClosed: true}, s.err
}

// Load knows the heads, and the bounds that the policies set.
func (s *fakeStore) Load(_ context.Context, _ uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return backlog.LoadResult{}, s.err
	}
	loaded := make([]backlog.Loaded, len(requests))
	for i, r := range requests {
		loaded[i] = s.loadLocked(r)
	}
	return backlog.LoadResult{Streams: loaded}, nil
}

func (s *fakeStore) Changed(_ context.Context, _ uint64, known []backlog.StreamState) (changed []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range known {
		if state := s.stateLocked(known[i].Stream); state.ChangedFrom(&known[i]) {
			changed = append(changed, i)
		}
	}
	return changed, s.err
}

func (s *fakeStore) loadLocked(r backlog.LoadRequest) backlog.Loaded {
	l := backlog.Loaded{State: s.stateLocked(r.Stream)}
	head := l.State.Head.Sequence
	first := max(r.After, head-min(head, uint64(r.MaxFrames)))
	l.Before, l.Frames = s.positionLocked(r.Stream, first), s.framesLocked(r.Stream, first, head)
	for _, sequence := range r.Verify {
		l.Verified = append(l.Verified, s.positionLocked(r.Stream, sequence))
	}
	return l
}

func (s *fakeStore) ReadPage(_ context.Context, _ uint64, r backlog.PageRequest) (backlog.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return backlog.Page{}, s.err
	}
	last := min(s.heads[r.Stream], r.After.Sequence+uint64(r.MaxFrames))
	return backlog.Page{State: s.stateLocked(r.Stream), Frames: s.framesLocked(r.Stream, r.After.Sequence, last)}, nil
}

func (s *fakeStore) stateLocked(stream backlog.StreamName) backlog.StreamState {
	head, exists := s.heads[stream]
	if !exists {
		return backlog.StreamState{Stream: stream}
	}
	bounds := backlog.BoundsOf(s.policies, stream.Channel, false)
	return backlog.StreamState{
		Stream:       stream,
		Exists:       true,
		OwnEpoch:     fakeEpoch,
		Head:         s.positionLocked(stream, head),
		Base:         s.positionLocked(stream, head-min(head, bounds.Backlog)),
		Backlog:      bounds.Backlog,
		RetentionAge: bounds.RetentionAge,
	}
}

// framesLocked returns the frames after one sequence up to another.
func (s *fakeStore) framesLocked(stream backlog.StreamName, after, last uint64) []backlog.Frame {
	var frames []backlog.Frame
	for after < last {
		after++
		frames = append(frames, backlog.Frame{Position: s.positionLocked(stream, after), Created: time.Now()})
	}
	return frames
}

// positionLocked has epoch 0 beyond the head.
func (s *fakeStore) positionLocked(stream backlog.StreamName, sequence uint64) backlog.Position {
	if sequence > s.heads[stream] {
		return backlog.Position{Sequence: sequence}
	}
	return backlog.Position{Epoch: fakeEpoch, Sequence: sequence}
}

func (s *fakeStore) SetPolicy(_ context.Context, p backlog.Policy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.policies = slices.DeleteFunc(s.policies, func(old backlog.Policy) bool {
		return backlog.ComparePolicies(old, p) == 0
	})
	if p.Sets() {
		s.policies = append(s.policies, p)
	}
	if s.policySet != nil {
		s.policySet()
	}
	return nil
}

func (s *fakeStore) Policies(context.Context) ([]backlog.Policy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	return slices.SortedFunc(slices.Values(s.policies), backlog.ComparePolicies), nil
}

func (s *fakeStore) ListStreams(_ context.Context, channel string, after backlog.StreamName, limit int) ([]backlog.StreamState, error) {
	if s.err != nil {
		return nil, s.err
	}
	// By search: tests list very many.
	from := sort.Search(len(s.streams), func(i int) bool {
		n := s.streams[i].Stream
		return n.Channel > after.Channel || n.Channel == after.Channel && n.Scope > after.Scope
	})
	var out []backlog.StreamState
	for _, state := range s.streams[from:] {
		if len(out) == limit {
			break
		}
		if channel == "" || state.Stream.Channel == channel {
			out = append(out, state)
		}
	}
	return out, nil
}

func (s *fakeStore) Ping(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *fakeStore) setErr(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// hangingStore never answers a ping.
type hangingStore struct{ fakeStore }

func (*hangingStore) Ping(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("ping: %w", ctx.Err())
}

// fakeBus listens or not, as told.
type fakeBus struct {
	mu        sync.Mutex // guards what follows
	listening backlog.Listening
	changed   chan struct{} // closed by set; nil before anybody waits
}

func (b *fakeBus) Ensure(ctx context.Context) (backlog.Listening, error) {
	for {
		b.mu.Lock()
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		listening, changed := b.listening, b.changed
		b.mu.Unlock()
		if listening.Number != 0 {
			return listening, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return backlog.Listening{}, ctx.Err()
		}
	}
}

func (b *fakeBus) Current() backlog.Listening {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listening
}

func (b *fakeBus) set(number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listening = backlog.Listening{Number: number}
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// testServer returns a server whose hub does not run: for everything but
// subscriptions.
func testServer(t *testing.T, store backlog.Store) *Server {
	t.Helper()
	if store == nil {
		store = &fakeStore{}
	}
	bus := &fakeBus{}
	return New(store, hub.New(bus, store, EncodeFrame, hub.Config{}), bus, Config{
		Logger:     slog.New(slog.DiscardHandler),
		DrainDelay: -1,
		DrainGrace: 2 * time.Second,
	})
}

// serve serves s on loopback and returns a client, and the server to drain.
func serve(t *testing.T, s *Server) (fanfarev1.FanfareServiceClient, *grpc.ClientConn, *grpc.Server) {
	t.Helper()
	g := grpc.NewServer(s.ServerOptions()...)
	s.Register(g)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), insecureOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		<-served
		s.loops.Wait()
	})
	return fanfarev1.NewFanfareServiceClient(conn), conn, g
}

func insecureOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true within a minute that %s", what)
		}
		<-look.C
	}
}

// elapse lets the clock of a synctest bubble, which no test waits for, run on.
func elapse(d time.Duration) { <-time.After(d) }
