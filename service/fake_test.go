package service

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// fakeStore numbers publications in memory. Tests of what a store does use a
// real one; this one fails and waits on command.
type fakeStore struct {
	backlog.Store // panics where a test calls what it does not expect

	mu    sync.Mutex
	heads map[backlog.StreamName]uint64
	// submitted is every publication in the order of Submit.
	submitted []backlog.Publication
	// answer, if not nil, decides the outcome of a publication and when done is
	// called.
	answer func(ctx context.Context, p backlog.Publication, done func(backlog.Outcome, error))
	// err, if not nil, is what reads, lists, pings and batches return.
	err     error
	streams []backlog.StreamState
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heads == nil {
		s.heads = map[backlog.StreamName]uint64{}
	}
	s.heads[p.Stream]++
	return backlog.Outcome{Position: backlog.Position{Epoch: 1, Sequence: s.heads[p.Stream]}}
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

func (s *fakeStore) Load(_ context.Context, _ uint64, requests []backlog.LoadRequest) (backlog.LoadResult, error) {
	if s.err != nil {
		return backlog.LoadResult{}, s.err
	}
	loaded := make([]backlog.Loaded, len(requests))
	for i, r := range requests {
		loaded[i].State.Stream = r.Stream
	}
	return backlog.LoadResult{Streams: loaded}, nil
}

func (s *fakeStore) ListStreams(_ context.Context, channel string, after backlog.StreamName, limit int) ([]backlog.StreamState, error) {
	if s.err != nil {
		return nil, s.err
	}
	var out []backlog.StreamState
	for _, state := range s.streams {
		n := state.Stream
		behind := n.Channel > after.Channel || n.Channel == after.Channel && n.Scope > after.Scope
		if behind && (channel == "" || n.Channel == channel) && len(out) < limit {
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

// fakeBus listens or not, as told.
type fakeBus struct {
	mu        sync.Mutex
	listening backlog.Listening
}

func (b *fakeBus) Ensure(context.Context) (backlog.Listening, error) { return b.Current(), nil }

func (b *fakeBus) Current() backlog.Listening {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listening
}

func (b *fakeBus) set(number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listening = backlog.Listening{Number: number}
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
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true within 10 s that %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
