package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// recordingSink writes down what a bus tells it.
type recordingSink struct {
	mu   sync.Mutex
	seen []string
	// hold, if not nil, is received from before each Announce returns.
	hold chan struct{}
}

func (s *recordingSink) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

// take returns what has been noted since the last call.
func (s *recordingSink) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := strings.Join(s.seen, " ")
	s.seen = nil
	return seen
}

func (s *recordingSink) Listening(l backlog.Listening) { s.note("listening-%d-%d", l.Number, l.Origin) }
func (s *recordingSink) Lost(err error)                { s.note("lost") }
func (s *recordingSink) Hint()                         { s.note("hint") }
func (s *recordingSink) Announce(announcements []backlog.Announcement) {
	for _, a := range announcements {
		s.note("%s%d", a.Stream.Channel, a.Frame.Position.Sequence)
	}
	if s.hold != nil {
		<-s.hold
	}
}

// announced makes announcements of frames first to last of a stream, with payloads
// of some bytes.
func announced(channel string, first, last, bytes int) []backlog.Announcement {
	var list []backlog.Announcement
	for n := first; n <= last; n++ {
		list = append(list, backlog.Announcement{
			Kind: backlog.AnnounceFrame, Stream: backlog.StreamName{Channel: channel},
			Frame: backlog.Frame{Position: backlog.Position{Sequence: uint64(n)}, Payload: make([]byte, bytes)},
		})
	}
	return list
}

// runBus runs a bus until the returned function is called.
func runBus(t *testing.T, b *Bus, sink Sink) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx, sink) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func expectSeen(t *testing.T, what string, sink *recordingSink, want string) {
	t.Helper()
	synctest.Wait()
	if got := sink.take(); got != want {
		t.Errorf("%s: the sink was told %q, want %q", what, got, want)
	}
}

func TestBusOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sink := newBus(7, 1<<20), &recordingSink{}
		stop := runBus(t, b, sink)
		expectSeen(t, "run", sink, "listening-1-7")
		b.announce(t.Context(), announced("a", 1, 2, 10))
		b.announce(t.Context(), announced("b", 1, 1, 10))
		b.announce(t.Context(), nil)
		b.announce(t.Context(), announced("a", 3, 3, 10))
		expectSeen(t, "announcements", sink, "a1 a2 b1 a3")
		stop()
		expectSeen(t, "end", sink, "lost")
	})
}

// TestBusChunks: many announcements reach the sink in parts, in order and whole.
func TestBusChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sink := newBus(7, 1<<30), &recordingSink{hold: make(chan struct{})}
		defer runBus(t, b, sink)()
		synctest.Wait()
		b.announce(t.Context(), announced("a", 1, 1, 0))
		synctest.Wait()
		b.announce(t.Context(), announced("a", 2, 3*maxPassed, 0))
		close(sink.hold)
		synctest.Wait()
		seen := strings.Fields(sink.take())[1:]
		for i, s := range seen {
			if s != fmt.Sprintf("a%d", i+1) {
				t.Fatalf("announcement %d is %s", i+1, s)
			}
		}
		if len(seen) != 3*maxPassed {
			t.Errorf("%d announcements, want %d", len(seen), 3*maxPassed)
		}
		if b.bytes != 0 || b.queue != nil {
			t.Errorf("%d bytes and %d announcements are left", b.bytes, len(b.queue))
		}
	})
}

// TestBusBound: who commits waits while the sink is behind by more than the bound,
// and goes on when it is not.
func TestBusBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		size := announcementBytes(&announced("a", 1, 1, 100)[0])
		b, sink := newBus(7, 3*size), &recordingSink{hold: make(chan struct{})}
		stop := runBus(t, b, sink)
		synctest.Wait()
		b.announce(t.Context(), announced("a", 1, 1, 100))
		synctest.Wait()
		committed := 1
		go func() {
			for n := 2; n <= 6; n++ {
				b.announce(context.Background(), announced("a", n, n, 100))
				committed = n
			}
		}()
		synctest.Wait()
		if committed != 3 {
			t.Errorf("%d announcements were taken while the sink holds the first, want 3", committed)
		}
		sink.hold <- struct{}{} // a1; what followed goes on together
		synctest.Wait()
		if committed != 4 {
			t.Errorf("%d announcements were taken when the sink has one, want 4", committed)
		}
		close(sink.hold)
		expectSeen(t, "all", sink, "listening-1-7 a1 a2 a3 a4 a5 a6")
		// What is larger than the bound passes alone.
		b.announce(t.Context(), announced("b", 1, 9, 100))
		expectSeen(t, "a large transaction", sink, "b1 b2 b3 b4 b5 b6 b7 b8 b9")
		stop()
	})
}

// TestBusFullAtTheEnd: a commit that waits for room is let go when its context
// ends, with its announcements queued, and when the sink leaves.
func TestBusFullAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sink := newBus(7, 1), &recordingSink{hold: make(chan struct{})}
		stop := runBus(t, b, sink)
		synctest.Wait()
		b.announce(t.Context(), announced("a", 1, 1, 0))
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		waiting.Go(func() { b.announce(ctx, announced("a", 2, 2, 0)) })
		synctest.Wait()
		cancel()
		waiting.Wait()
		waiting.Go(func() { b.announce(context.Background(), announced("a", 3, 3, 0)) })
		synctest.Wait()
		sink.hold <- struct{}{}
		expectSeen(t, "the queue", sink, "listening-1-7 a1 a2")
		ended := make(chan struct{})
		go func() { stop(); close(ended) }()
		synctest.Wait()
		sink.hold <- struct{}{} // the sink is in Announce; then it is told no more
		<-ended
		waiting.Wait()
		expectSeen(t, "end", sink, "lost")
		if b.bytes != 0 || b.queue != nil {
			t.Errorf("%d bytes and %d announcements are left", b.bytes, len(b.queue))
		}
	})
}

// TestBusWithoutSink: nothing is kept for a sink that is not there; one that comes
// later begins a new listening and gets what is committed from then on.
func TestBusWithoutSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(7, 1)
		for n := range 10 {
			b.announce(t.Context(), announced("a", n, n, 100))
			b.hint()
		}
		if b.bytes != 0 || b.queue != nil || b.hintDue {
			t.Errorf("%d bytes are kept for nobody", b.bytes)
		}
		for run := 1; run <= 3; run++ {
			sink := &recordingSink{}
			stop := runBus(t, b, sink)
			expectSeen(t, "run", sink, fmt.Sprintf("listening-%d-7", run))
			if err := b.Run(t.Context(), sink); !errors.Is(err, errBusRuns) {
				t.Errorf("a second Run: %v", err)
			}
			b.announce(t.Context(), announced("b", run, run, 0))
			expectSeen(t, "announcement", sink, fmt.Sprintf("b%d", run))
			stop()
			expectSeen(t, "end", sink, "lost")
			b.announce(t.Context(), announced("c", run, run, 0))
			expectSeen(t, "after the end", sink, "")
		}
	})
}

func TestBusEnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sink := newBus(7, 1), &recordingSink{}
		if l := b.Current(); l != (backlog.Listening{}) {
			t.Errorf("current listening before Run: %v", l)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := b.Ensure(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("Ensure without Run: %v after %v", err, time.Since(began))
		}
		listening := make(chan backlog.Listening)
		go func() {
			l, err := b.Ensure(t.Context())
			if err != nil {
				t.Error(err)
			}
			listening <- l
		}()
		synctest.Wait()
		stop := runBus(t, b, sink)
		want := backlog.Listening{Number: 1, Origin: 7}
		if l := <-listening; l != want {
			t.Errorf("Ensure: %v, want %v", l, want)
		}
		if l := b.Current(); l != want {
			t.Errorf("current listening: %v, want %v", l, want)
		}
		// What is committed after Ensure reaches the sink, which has been told.
		b.announce(t.Context(), announced("a", 1, 1, 0))
		expectSeen(t, "after Ensure", sink, "listening-1-7 a1")
		stop()
		if l := b.Current(); l != (backlog.Listening{}) {
			t.Errorf("current listening after Run: %v", l)
		}
		if _, err := b.Ensure(ctx); err == nil {
			t.Error("Ensure succeeds after Run has ended")
		}
	})
}

// TestBusHints: hints are given at once, after what was committed before them,
// and those that come while the sink is busy are one.
func TestBusHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, sink := newBus(7, 1<<20), &recordingSink{}
		stop := runBus(t, b, sink)
		expectSeen(t, "run", sink, "listening-1-7")
		b.hint()
		expectSeen(t, "a hint", sink, "hint")
		b.announce(t.Context(), announced("a", 1, 1, 0))
		b.hint()
		expectSeen(t, "with an announcement", sink, "a1 hint")
		sink.hold = make(chan struct{})
		b.announce(t.Context(), announced("a", 2, 2, 0))
		synctest.Wait()
		for range 10 {
			b.hint()
		}
		close(sink.hold)
		expectSeen(t, "while the sink is busy", sink, "a2 hint")
		stop()
	})
}

// TestBusTellsWhatTheListenerTells: the store announces whole frames, and a close
// as the listener does.
func TestBusTellsWhatTheListenerTells(t *testing.T) {
	s := openRunning(t, Config{Path: MemoryPath})
	told := &tellingSink{announced: make(chan backlog.Announcement, 10)}
	stop := runBus(t, s.bus, told)
	defer stop()
	l, err := s.bus.Ensure(t.Context())
	if err != nil || l != (backlog.Listening{Number: 1, Origin: s.origin}) {
		t.Fatalf("listening %v, %v", l, err)
	}
	stream := backlog.StreamName{Channel: "c", Scope: "s"}
	p := backlog.Publication{Stream: stream, Payload: make([]byte, 100<<10), ContentType: "t", EventType: "e", Headers: map[string]string{"a": "1"}}
	outcome, err := backlog.Publish(t.Context(), s, p)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := s.CloseStream(t.Context(), stream, nil)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: stream, MaxFrames: 1, MaxBytes: 1}})
	if err != nil {
		t.Fatal(err)
	}
	state := loaded.Streams[0].State
	frame := <-told.announced
	want := backlog.Announcement{
		Kind: backlog.AnnounceFrame, Stream: stream, OwnEpoch: state.OwnEpoch, Origin: s.origin, Frame: loaded.Streams[0].Frames[0],
	}
	if frame.Frame.Position != outcome.Position || !reflect.DeepEqual(frame, want) {
		t.Errorf("announced %+v, want %+v", frame, want)
	}
	if got := <-told.announced; !reflect.DeepEqual(got, backlog.Announcement{
		Kind: backlog.AnnounceClosed, Stream: stream, OwnEpoch: state.OwnEpoch, Origin: s.origin, Frame: backlog.Frame{Position: closed.Last},
	}) {
		t.Errorf("announced the close as %+v", got)
	}
}

// tellingSink passes announcements on.
type tellingSink struct {
	recordingSink
	announced chan backlog.Announcement
}

func (s *tellingSink) Announce(announcements []backlog.Announcement) {
	for _, a := range announcements {
		s.announced <- a
	}
}
