package sqlitebacklog

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	"github.com/fanfare-io/fanfare/service/hub"
)

// passing makes an ephemeral publication.
func passing(channel, payload string) backlog.Publication {
	p := frame(channel, payload)
	p.Ephemeral = true
	return p
}

// pass publishes an ephemeral frame.
func pass(tb testing.TB, s backlog.Store, channel, payload string) {
	tb.Helper()
	if o, err := backlog.Publish(tb.Context(), s, passing(channel, payload)); err != nil || o != (backlog.Outcome{}) {
		tb.Fatalf("publish an ephemeral frame to %q: %v, %v", channel, o, err)
	}
}

// collectingSink keeps what is announced.
type collectingSink struct {
	recordingSink
	list []backlog.Announcement
	// marked has a token when the marker of drain has come.
	marked chan struct{}
}

const markerChannel = "marker"

func newCollectingSink() *collectingSink { return &collectingSink{marked: make(chan struct{}, 1)} }

func (s *collectingSink) Announce(announcements []backlog.Announcement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range announcements {
		if a.Stream.Channel == markerChannel {
			s.marked <- struct{}{}
			continue
		}
		s.list = append(s.list, a)
	}
}

// drain publishes a marker and returns what was announced before it and since the
// last call.
func (s *collectingSink) drain(ctx context.Context, store backlog.Store) ([]backlog.Announcement, error) {
	if _, err := backlog.Publish(ctx, store, passing(markerChannel, "")); err != nil {
		return nil, err
	}
	select {
	case <-s.marked:
	case <-time.After(10 * time.Second):
		return nil, errors.New("the marker is not announced")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	s.list = nil
	return list, nil
}

// collect begins to keep what a store announces. The result drains it.
func collect(t *testing.T, s *Store) (drain func() []backlog.Announcement) {
	t.Helper()
	sink := newCollectingSink()
	t.Cleanup(runBus(t, s.bus, sink))
	if _, err := s.bus.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return func() []backlog.Announcement {
		t.Helper()
		list, err := sink.drain(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
}

// lines are announcements without what is random, and a line that says so for a
// position whose epoch is not that of its numbering.
func lines(announcements []backlog.Announcement) []string {
	list := make([]string, len(announcements))
	for i, a := range announcements {
		kind := map[backlog.AnnouncementKind]string{
			backlog.AnnounceFrame: "durable", backlog.AnnounceEphemeral: "ephemeral", backlog.AnnounceClosed: "closed",
		}[a.Kind]
		if a.Frame.Position.Epoch != a.OwnEpoch^a.Origin || a.Frame.Ephemeral != (a.Kind == backlog.AnnounceEphemeral) {
			kind = fmt.Sprintf("wrong %+v", a)
		}
		list[i] = strings.TrimSpace(fmt.Sprintf("%s %s%d %s", kind, a.Stream.Channel, a.Frame.Position.Sequence, a.Frame.Payload))
	}
	return list
}

// TestEphemeralOrder: ephemeral frames are announced in their place among durable
// ones and closes, equal ones each, whether or not they share a transaction.
func TestEphemeralOrder(t *testing.T) {
	steps := []func(ctx context.Context, s *Store) error{
		publishing(passing("a", "x")), publishing(passing("a", "x")), publishing(frame("a", "1")), publishing(passing("a", "x")),
		publishing(passing("b", "x"), frame("b", "1"), passing("a", "x"), passing("a", "x"), frame("a", "2"), passing("b", "x")),
		publishing(frame("a", "3")), publishing(passing("a", "")), closingStream("a"), publishing(passing("a", "x")), publishing(frame("a", "1")),
		publishing(passing("b", "y"), passing("b", "y")), closingStream("b"), publishing(passing("b", "z"), frame("b", "1"), passing("b", "z")),
	}
	want := []string{
		"ephemeral a0 x", "ephemeral a0 x", "durable a1 1", "ephemeral a1 x",
		"ephemeral b0 x", "durable b1 1", "ephemeral a1 x", "ephemeral a1 x", "durable a2 2", "ephemeral b1 x",
		"durable a3 3", "ephemeral a3", "closed a3", "ephemeral a0 x", "durable a1 1",
		"ephemeral b1 y", "ephemeral b1 y", "closed b1", "ephemeral b0 z", "durable b1 1", "ephemeral b1 z",
	}
	t.Run("apart", func(t *testing.T) {
		s := openRunning(t, newFile(t))
		drain := collect(t, s.Store)
		for _, step := range steps {
			if err := step(t.Context(), s.Store); err != nil {
				t.Fatal(err)
			}
		}
		if got := lines(drain()); !slices.Equal(got, want) {
			t.Errorf("announced are\n%q, want\n%q", got, want)
		}
	})
	t.Run("together", func(t *testing.T) {
		s := openHeld(t, Config{})
		drain := collect(t, s.Store)
		var asked sync.WaitGroup
		for i, step := range steps {
			asked.Go(func() {
				if err := step(t.Context(), s.Store); err != nil {
					t.Errorf("step %d: %v", i, err)
				}
			})
			eventually(t, "it is queued", func() bool { return s.queuedItems() == i+1 })
		}
		s.release()
		asked.Wait()
		if n := query[int](t, s.runningStore, "select count(distinct created) from channel_frames"); n != 1 {
			t.Errorf("%d transactions, want 1", n)
		}
		if got := lines(drain()); !slices.Equal(got, want) {
			t.Errorf("announced are\n%q, want\n%q", got, want)
		}
	})
}

// publishing publishes one frame, or several as an atomic batch.
func publishing(batch ...backlog.Publication) func(ctx context.Context, s *Store) error {
	return func(ctx context.Context, s *Store) error {
		if len(batch) == 1 {
			_, err := backlog.Publish(ctx, s, batch[0])
			return err
		}
		_, err := s.PublishBatch(ctx, batch)
		return err
	}
}

func closingStream(channel string) func(ctx context.Context, s *Store) error {
	return func(ctx context.Context, s *Store) error {
		_, err := s.CloseStream(ctx, backlog.StreamName{Channel: channel}, nil)
		return err
	}
}

// queuedItems is how many items wait.
func (s *Store) queuedItems() int {
	s.committer.mu.Lock()
	defer s.committer.mu.Unlock()
	return s.committer.waiting.Len()
}

// TestRefusedBatchesAnnounceNothing: nor do those that are duplicates.
func TestRefusedBatchesAnnounceNothing(t *testing.T) {
	s := openRunning(t, newFile(t))
	drain := collect(t, s.Store)
	known, late := frame("a", "known"), frame("a", "late")
	known.IdempotencyKey = "key"
	late.Expected = &backlog.Expectation{Sequence: 7}
	batch := func(last ...backlog.Publication) error {
		_, err := s.PublishBatch(t.Context(), append([]backlog.Publication{passing("a", "x"), passing("b", "x")}, last...))
		return err
	}
	if err := batch(known); err != nil {
		t.Fatal(err)
	}
	if got, want := lines(drain()), []string{"ephemeral a0 x", "ephemeral b0 x", "durable a1 known"}; !slices.Equal(got, want) {
		t.Errorf("announced are %q, want %q", got, want)
	}
	if err := batch(frame("b", "1"), late); !errors.As(err, new(*backlog.ExpectationError)) {
		t.Errorf("a wrong expectation: %v", err)
	}
	isError(t, "partly duplicate", batch(known, frame("b", "1")), backlog.ErrPartlyDuplicate)
	isError(t, "duplicate", batch(known), nil)
	if got := lines(drain()); len(got) != 0 {
		t.Errorf("announced are %q", got)
	}
}

// TestEphemeralContent: a frame is announced whole, whatever its size, as it was
// when it was published, at the head that it follows, also if another process
// numbered that.
func TestEphemeralContent(t *testing.T) {
	s := openRunning(t, newFile(t))
	stream := backlog.StreamName{Channel: "c", Scope: "s"}
	if _, err := publishText(s.Store, stream, "1"); err != nil {
		t.Fatal(err)
	}
	s = s.reopen(t)
	drain := collect(t, s.Store)
	large := make([]byte, backlog.DefaultMaxFrameBytes)
	for i := range large {
		large[i] = byte(i)
	}
	before := time.Now().Truncate(time.Microsecond)
	for _, p := range []backlog.Publication{
		{Payload: large, ContentType: "t", EventType: "e", Headers: map[string]string{"a": "1", "b": ""}},
		{Payload: []byte("\x00\xff\ufeff")}, {Headers: map[string]string{}}, {},
	} {
		p.Stream, p.Ephemeral = stream, true
		want := backlog.Frame{Ephemeral: true, ContentType: p.ContentType, EventType: p.EventType, Payload: slices.Clone(p.Payload)}
		if want.Payload == nil {
			want.Payload = []byte{}
		}
		if len(p.Headers) > 0 {
			want.Headers = map[string]string{"a": "1", "b": ""}
		}
		if _, err := backlog.Publish(t.Context(), s, p); err != nil {
			t.Fatal(err)
		}
		clear(p.Payload) // the caller's again
		clear(p.Headers)
		state := s.loadOne(t, backlog.LoadRequest{Stream: stream}).State
		want.Position = state.Head
		got := drain()
		if len(got) != 1 {
			t.Fatalf("%d announcements, want 1", len(got))
		}
		created := got[0].Frame.Created
		if created.Before(before) || created.After(time.Now()) || created.Location() != time.UTC {
			t.Errorf("created at %v", created)
		}
		got[0].Frame.Created = time.Time{}
		if a := (backlog.Announcement{
			Kind: backlog.AnnounceEphemeral, Stream: stream, OwnEpoch: state.OwnEpoch, Origin: s.origin, Frame: want,
		}); !reflect.DeepEqual(got[0], a) {
			t.Errorf("announced %.300q, want %.300q", fmt.Sprintf("%+v", got[0]), fmt.Sprintf("%+v", a))
		}
		if want.Position.Sequence != 1 || want.Position.Epoch == state.OwnEpoch^s.origin {
			t.Errorf("the head is %v, which should be the other process's", want.Position)
		}
	}
}

// TestEphemeralTimes: times within a stream do not descend when the clock is set
// back.
func TestEphemeralTimes(t *testing.T) {
	hand := newHandClock()
	s := openRunningAt(t, newFile(t), &hand.clock)
	drain := collect(t, s.Store)
	pass(t, s, "a", "x")
	hand.pass(time.Minute)
	put(t, s, "a", "1")
	stored := s.loadOne(t, everything(backlog.StreamName{Channel: "a"})).Frames[0].Created
	hand.step(-time.Hour)
	pass(t, s, "a", "x")
	hand.step(2 * time.Hour)
	pass(t, s, "a", "x")
	var got []time.Duration
	for _, a := range drain() {
		got = append(got, a.Frame.Created.Sub(stored))
	}
	if want := []time.Duration{-time.Minute, 0, 0, time.Hour}; !slices.Equal(got, want) {
		t.Errorf("created %v after the stored frame, want %v", got, want)
	}
}

// TestEphemeralWritesNothing: but for the first of a stream.
func TestEphemeralWritesNothing(t *testing.T) {
	s := openRunning(t, newFile(t))
	pass(t, s, "a", "first")
	put(t, s, "b", "x")
	pass(t, s, "b", "first")
	// Every page that is written makes the log longer.
	before, rows := s.logBytes(t), contents(t, s)
	for i := range 50 {
		pass(t, s, "a", strings.Repeat("x", 10_000))
		pass(t, s, "b", fmt.Sprint(i))
	}
	if got := s.logBytes(t); got != before {
		t.Errorf("the log grew from %d bytes to %d", before, got)
	}
	if got := contents(t, s); !slices.Equal(got, rows) {
		t.Errorf("rows are %q, were %q", got, rows)
	}
}

// TestEphemeralUnderTheHub: a subscription gets ephemeral frames in their place,
// and a replay does not have them.
func TestEphemeralUnderTheHub(t *testing.T) {
	s := openRunning(t, newFile(t))
	h := runHub(t, s.Store)
	sub := h.Subscribe(backlog.StreamName{Channel: "a"}, hub.Oldest())
	defer sub.Close()
	if _, err := sub.Next(t.Context(), 1); err != nil { // Subscribed
		t.Fatal(err)
	}
	pass(t, s, "a", "x")
	pass(t, s, "a", "x")
	put(t, s, "a", "1")
	if _, err := s.PublishBatch(t.Context(), []backlog.Publication{passing("a", "y"), frame("a", "2"), passing("a", "z"), passing("a", "z")}); err != nil {
		t.Fatal(err)
	}
	put(t, s, "a", "3")
	var got []string
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for want := []string{"x", "x", "1", "y", "2", "z", "z", "3"}; len(got) < len(want); {
		d, err := sub.Next(ctx, 1<<20)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		for _, f := range d.Frames {
			got = append(got, string(f))
		}
		if !slices.Equal(got, want[:min(len(got), len(want))]) {
			t.Fatalf("delivered are %q, want %q", got, want)
		}
	}
	expectReplay(t, h, "a", 3)
}
