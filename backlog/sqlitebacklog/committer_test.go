package sqlitebacklog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// heldStore is a store whose committer does not get its turn until release.
type heldStore struct {
	*runningStore
	conn *sql.Conn
}

func openHeld(t *testing.T, cfg Config) *heldStore {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "fanfare.db")
	}
	s := &heldStore{runningStore: openRunning(t, cfg)}
	s.hold(t)
	return s
}

func (s *heldStore) hold(t *testing.T) {
	t.Helper()
	var err error
	if s.conn, err = s.writer.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.release)
}

// release lets the committer go on. It may be called twice.
func (s *heldStore) release() { _ = s.conn.Close() }

// queuedFrames is what counts as queued.
func (s *Store) queuedFrames() int {
	s.committer.mu.Lock()
	defer s.committer.mu.Unlock()
	return s.committer.queued.frames
}

// result is what a caller was told.
type result struct {
	outcome backlog.Outcome
	err     error
}

// submit submits a publication and returns where its result comes.
func submit(ctx context.Context, s backlog.Store, p backlog.Publication) <-chan result {
	results := make(chan result, 2) // a second one would be a fault, and must show
	s.Submit(ctx, p, func(o backlog.Outcome, err error) { results <- result{o, err} })
	return results
}

// within returns what comes.
func within(t *testing.T, what string, results <-chan result) result {
	t.Helper()
	select {
	case r := <-results:
		return r
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: no answer", what)
		return result{}
	}
}

func isError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestWithdrawn: who leaves before the transaction begins is told so at once and
// leaves nothing.
func TestWithdrawn(t *testing.T) {
	s := openHeld(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	single := submit(ctx, s, frame("a", "withdrawn"))
	stays := submit(t.Context(), s, frame("a", "stays"))
	others := make(chan error, 2)
	go func() {
		_, err := s.PublishBatch(ctx, []backlog.Publication{frame("a", "1"), frame("a", "2")})
		others <- err
	}()
	go func() {
		_, err := s.CloseStream(ctx, backlog.StreamName{Channel: "a"}, nil)
		others <- err
	}()
	eventually(t, "all are queued", func() bool { return s.queuedFrames() == 5 })
	cancel()
	isError(t, "publish", within(t, "publish", single).err, context.Canceled)
	isError(t, "batch or close", <-others, context.Canceled)
	isError(t, "batch or close", <-others, context.Canceled)
	if n := s.queuedFrames(); n != 1 {
		t.Errorf("%d frames are queued, want 1", n)
	}
	s.release()
	if r := within(t, "publish", stays); r.err != nil || r.outcome.Position.Sequence != 1 {
		t.Errorf("who stayed got %+v", r)
	}
	if got := payloads(t, s, "a"); !slices.Equal(got, []string{"stays"}) {
		t.Errorf("frames are %q", got)
	}
}

// openStuck opens a store with a full bus: transactions commit and do not end
// until take is called.
func openStuck(t *testing.T, cfg Config) (s *runningStore, take func()) {
	t.Helper()
	cfg.Path = filepath.Join(t.TempDir(), "fanfare.db")
	cfg.MaxAnnouncedBytes = 1
	s = openRunning(t, cfg)
	sink := &recordingSink{hold: make(chan struct{})}
	take = sync.OnceFunc(func() { close(sink.hold) })
	runBus(t, s.Bus(), sink)
	t.Cleanup(take)
	if _, err := s.Bus().Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, s, "fill", "x")
	return s, take
}

// TestLate: who leaves when the transaction has begun does not know what became of
// it, and is told so at once; what it published is stored. Its place in the queue
// is free when the transaction ends.
func TestLate(t *testing.T) {
	s, take := openStuck(t, Config{MaxQueuedFrames: 3})
	ctx, cancel := context.WithCancel(t.Context())
	late := submit(ctx, s, frame("a", "late"))
	// Committed, and on its way to a bus that is full.
	eventually(t, "it is committed", func() bool { return len(payloads(t, s, "a")) == 1 })
	waits := []<-chan result{submit(t.Context(), s, frame("a", "1")), submit(t.Context(), s, frame("a", "2"))}
	cancel()
	isError(t, "late caller", within(t, "late caller", late).err, backlog.ErrOutcomeUnknown)
	isError(t, "publish beyond the bound", within(t, "bound", submit(t.Context(), s, frame("a", "3"))).err, backlog.ErrPublishQueueFull)
	take()
	for i, w := range waits {
		if r := within(t, "publish", w); r.err != nil || r.outcome.Position.Sequence != uint64(i+2) {
			t.Errorf("publication %d got %+v", i, r)
		}
	}
	if got := payloads(t, s, "a"); !slices.Equal(got, []string{"late", "1", "2"}) {
		t.Errorf("frames are %q", got)
	}
	select {
	case r := <-late:
		t.Errorf("a second answer: %+v", r)
	default:
	}
	eventually(t, "nothing is queued", func() bool { return s.queuedFrames() == 0 })
}

func TestQueueBounds(t *testing.T) {
	for what, cfg := range map[string]Config{
		"frames": {MaxQueuedFrames: 5}, "bytes": {MaxQueuedBytes: 5 * 1001},
	} {
		t.Run(what, func(t *testing.T) {
			s := openHeld(t, cfg)
			p := frame("a", strings.Repeat("x", 1000)) // 1,001 bytes with the name
			ctx, cancel := context.WithCancel(t.Context())
			first := submit(ctx, s, p)
			var accepted []<-chan result
			for range 4 {
				accepted = append(accepted, submit(t.Context(), s, p))
			}
			isError(t, "the sixth", within(t, "the sixth", submit(t.Context(), s, p)).err, backlog.ErrPublishQueueFull)
			_, err := s.PublishBatch(t.Context(), []backlog.Publication{p})
			isError(t, "a batch", err, backlog.ErrPublishQueueFull)
			cancel()
			isError(t, "the first", within(t, "the first", first).err, context.Canceled)
			_, err = s.PublishBatch(t.Context(), []backlog.Publication{p, p})
			isError(t, "a batch of two where one fits", err, backlog.ErrPublishQueueFull)
			accepted = append(accepted, submit(t.Context(), s, p))
			s.release()
			for i, a := range accepted {
				if r := within(t, "accepted", a); r.err != nil || r.outcome.Position.Sequence != uint64(i+1) {
					t.Errorf("publication %d got %+v", i, r)
				}
			}
			// What is larger than the bound is taken when nothing else is there.
			eventually(t, "nothing is queued", func() bool { return s.queuedFrames() == 0 })
			if _, err := s.PublishBatch(t.Context(), slices.Repeat([]backlog.Publication{p}, 8)); err != nil {
				t.Errorf("a batch of eight alone: %v", err)
			}
		})
	}
}

// kindsSink writes down what kinds of announcements there are.
type kindsSink struct{ recordingSink }

func (s *kindsSink) Listening(backlog.Listening) {}
func (s *kindsSink) Announce(announcements []backlog.Announcement) {
	for _, a := range announcements {
		s.note("%s%d", map[backlog.AnnouncementKind]string{
			backlog.AnnounceFrame: "frame", backlog.AnnounceClosed: "closed",
		}[a.Kind], a.Frame.Position.Sequence)
	}
}

// TestOneQueue: whatever is done to a stream is done in the order in which it was
// asked for, also within one transaction, and is announced in that order.
func TestOneQueue(t *testing.T) {
	s := openHeld(t, Config{})
	sink := &kindsSink{}
	runBus(t, s.Bus(), sink)
	if _, err := s.Bus().Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	stream := backlog.StreamName{Channel: "a"}
	queued := 0
	then := func(frames int, ask func()) {
		t.Helper()
		go ask()
		queued += frames
		eventually(t, "it is queued", func() bool { return s.queuedFrames() == queued })
	}
	var asked sync.WaitGroup
	asked.Add(4)
	var closed backlog.CloseOutcome
	publish := func(payload string) func() {
		return func() {
			defer asked.Done()
			if _, err := publishText(s.Store, stream, payload); err != nil {
				t.Error(err)
			}
		}
	}
	then(1, publish("1"))
	then(2, func() {
		defer asked.Done()
		if _, err := s.PublishBatch(t.Context(), []backlog.Publication{frame("a", "2"), frame("a", "3")}); err != nil {
			t.Error(err)
		}
	})
	then(1, func() {
		defer asked.Done()
		var err error
		if closed, err = s.CloseStream(t.Context(), stream, nil); err != nil {
			t.Error(err)
		}
	})
	then(1, publish("4"))
	s.release()
	asked.Wait()
	if closed.AlreadyClosed || closed.Last.Sequence != 3 {
		t.Errorf("the close is %+v", closed)
	}
	if got := payloads(t, s, "a"); !slices.Equal(got, []string{"4"}) {
		t.Errorf("frames after the close are %q", got)
	}
	if n := query[int](t, s.runningStore, "select count(distinct created) from channel_frames"); n != 1 {
		t.Errorf("%d transactions, want 1", n)
	}
	const want = " frame1 frame2 frame3 closed3 frame1"
	var got string
	eventually(t, "all is announced", func() bool {
		got += strings.TrimRight(" "+sink.take(), " ")
		return len(got) >= len(want)
	})
	if got != want {
		t.Errorf("announced are%s, want%s", got, want)
	}
}

// TestAnswersMaySubmit: an answer is given outside of all locks.
func TestAnswersMaySubmit(t *testing.T) {
	s := openRunning(t, Config{Path: MemoryPath})
	const frames = 50
	all := make(chan error, frames)
	var next func(i int)
	next = func(i int) {
		s.Submit(t.Context(), frame("a", fmt.Sprint(i)), func(_ backlog.Outcome, err error) {
			all <- err
			if i < frames {
				next(i + 1)
			}
		})
	}
	next(1)
	for range frames {
		if err := <-all; err != nil {
			t.Fatal(err)
		}
	}
	if n := len(payloads(t, s, "a")); n != frames {
		t.Errorf("%d frames, want %d", n, frames)
	}
}

// TestEndOfRun: what waits fails, what is in flight is finished, and what comes
// later is refused.
func TestEndOfRun(t *testing.T) {
	s := openHeld(t, Config{})
	waits := submit(t.Context(), s, frame("a", "waits"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.stop()
	}()
	isError(t, "who waits", within(t, "who waits", waits).err, backlog.ErrUnavailable)
	isError(t, "who comes later", within(t, "later", submit(t.Context(), s, frame("a", "later"))).err, backlog.ErrUnavailable)
	s.release()
	<-ended

	stuck, _ := openStuck(t, Config{})
	inFlight := submit(t.Context(), stuck, frame("a", "in flight"))
	eventually(t, "it is committed", func() bool { return len(payloads(t, stuck, "a")) == 1 })
	waits = submit(t.Context(), stuck, frame("a", "waits"))
	go stuck.stop()
	isError(t, "who waits", within(t, "who waits", waits).err, backlog.ErrUnavailable)
	if r := within(t, "in flight", inFlight); r.err != nil || r.outcome.Position.Sequence != 1 {
		t.Errorf("in flight: %+v", r)
	}
}

// TestCallersMemory: what a caller does to its memory once it has been answered,
// or has left, is no concern of the store.
func TestCallersMemory(t *testing.T) {
	s := openHeld(t, Config{})
	p := frame("a", "payload")
	p.Headers = map[string]string{"name": "value"}
	first := uint64(0) // of a stream that does not exist
	p.Expected = &backlog.Expectation{Sequence: 0, Epoch: &first}
	answer := submit(t.Context(), s, p)
	clear(p.Payload)
	p.Headers["name"] = "other"
	first = 7
	*p.Expected = backlog.Expectation{Sequence: 7}
	s.release()
	if r := within(t, "publish", answer); r.err != nil {
		t.Fatal(r.err)
	}
	result, err := s.Load(t.Context(), 0, []backlog.LoadRequest{{Stream: p.Stream, MaxFrames: 1, MaxBytes: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if f := result.Streams[0].Frames[0]; string(f.Payload) != "payload" || f.Headers["name"] != "value" {
		t.Errorf("stored is %q with %v", f.Payload, f.Headers)
	}
}

// TestBrokenStream: a stream whose rows contradict each other, as a damaged or
// edited file's may, fails alone.
func TestBrokenStream(t *testing.T) {
	s := openHeld(t, Config{})
	s.release()
	put(t, s, "broken", "1")
	s.execute(t, `insert into channel_frames (stream_id, sequence, size, origin, created, content_type, event_type, payload)
		select stream_id, 2, 0, 0, 0, '', '', x'' from streams`)
	s.hold(t)
	var broken, good []<-chan result
	for i := range 40 {
		good = append(good, submit(t.Context(), s, frame(fmt.Sprint("good ", i%3), "x")))
		if i%10 == 5 {
			broken = append(broken, submit(t.Context(), s, frame("broken", "2")))
		}
	}
	s.release()
	for _, b := range broken {
		isError(t, "publish to the broken stream", within(t, "broken", b).err, backlog.ErrUnavailable)
	}
	for i, g := range good {
		if r := within(t, "good", g); r.err != nil || r.outcome.Position.Sequence != uint64(i/3+1) {
			t.Errorf("publication %d got %+v", i, r)
		}
	}
}

// TestForeignLock: another program that writes to the file is waited for, and then
// nothing was stored.
func TestForeignLock(t *testing.T) {
	s := openRunning(t, Config{Path: filepath.Join(t.TempDir(), "fanfare.db")})
	put(t, s, "a", "1")
	other, err := sql.Open("sqlite", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	conn, err := other.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "begin immediate"); err != nil {
		t.Fatal(err)
	}
	mine, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.setBusyTimeout(t.Context(), mine, 50*time.Millisecond)
	_ = mine.Close()
	_, err = publishText(s.Store, backlog.StreamName{Channel: "a"}, "x")
	isError(t, "publish while another one writes", err, backlog.ErrUnavailable)
	if _, err := conn.ExecContext(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	if got := put(t, s, "a", "2").Sequence; got != 2 {
		t.Errorf("the sequence is %d, want 2", got)
	}
}

// TestNewConnection: statements belong to a connection, and are made anew with it.
func TestNewConnection(t *testing.T) {
	s := openRunning(t, Config{Path: filepath.Join(t.TempDir(), "fanfare.db")})
	for i := range 3 {
		if got := put(t, s, "a", "x").Sequence; got != uint64(i+1) {
			t.Errorf("the sequence is %d, want %d", got, i+1)
		}
		conn, err := s.writer.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.committer.closeStatements(conn)
		if err := conn.Raw(func(any) error { return driver.ErrBadConn }); !errors.Is(err, driver.ErrBadConn) {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}
