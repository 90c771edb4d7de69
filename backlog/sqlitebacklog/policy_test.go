package sqlitebacklog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func pointerTo[T any](v T) *T { return &v }

// TestPolicySetResolves: the index of a set gives what the contract's resolution
// does.
func TestPolicySetResolves(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	name := func(most int) string {
		b := make([]byte, random.IntN(most+1))
		for i := range b {
			b[i] = "ab/é"[random.IntN(5)]
		}
		return string(b)
	}
	for range 200 {
		var all []backlog.Policy
		for range random.IntN(12) {
			p := backlog.Policy{Channel: name(4), Prefix: random.IntN(2) == 0}
			if random.IntN(2) == 0 {
				p.Backlog = pointerTo(random.Uint64N(100))
			}
			if random.IntN(2) == 0 {
				p.RetentionAge = pointerTo(time.Duration(random.Int64N(100)) * time.Microsecond)
			}
			if random.IntN(2) == 0 {
				p.StreamRetention = pointerTo(time.Duration(1+random.Int64N(100)) * time.Microsecond)
			}
			unique := true
			for _, other := range all {
				unique = unique && backlog.ComparePolicies(p, other) != 0
			}
			if unique {
				all = append(all, p)
			}
		}
		set := newPolicySet(all)
		for range 50 {
			channel := name(6)
			if got, want := set.bounds(channel), backlog.BoundsOf(all, channel, false); got != want {
				t.Fatalf("bounds of %q are %v, want %v of %v", channel, got, want, all)
			}
		}
	}
}

// TestPoliciesLast: policies are in the file.
func TestPoliciesLast(t *testing.T) {
	s := openRunning(t, newFile(t))
	want := []backlog.Policy{
		{Prefix: true, Backlog: pointerTo(uint64(7))},
		{Channel: "a", Backlog: pointerTo(uint64(backlog.MaxPositionValue)), RetentionAge: pointerTo(time.Duration(0)), StreamRetention: pointerTo(backlog.MaxPolicyAge)},
		{Channel: "a", Prefix: true, RetentionAge: pointerTo(time.Microsecond)},
	}
	for _, p := range want {
		if err := s.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		got, err := s.Policies(t.Context())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("policies are %v, %v; want %v", got, err, want)
		}
		if got, want := s.bounds("a"), (backlog.Bounds{Backlog: backlog.MaxPositionValue, StreamRetention: backlog.MaxPolicyAge}); got != want {
			t.Errorf("bounds are %v, want %v", got, want)
		}
		s = s.reopen(t)
	}
	// What was returned is the caller's.
	got, err := s.Policies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	*got[0].Backlog = 99
	if b := s.bounds("b").Backlog; b != 7 {
		t.Errorf("the backlog is %d after a caller changed its copy", b)
	}
}

// TestDefaultBacklog: what is configured at start replaces the default's backlog
// and nothing else of it, lasts, and is logged when it changes something.
func TestDefaultBacklog(t *testing.T) {
	var log logRecorder
	cfg := newFile(t)
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for _, tt := range []struct {
		backlog *int64
		want    uint64
		logged  bool
	}{
		{nil, 1000, false},
		{pointerTo(int64(1000)), 1000, true}, // what was the program's default is stored
		{pointerTo(int64(50)), 50, true},
		{pointerTo(int64(50)), 50, false},
		{nil, 50, false},
		{pointerTo(int64(0)), 0, true},
	} {
		cfg.Backlog = tt.backlog
		log.take()
		s := openRunning(t, cfg)
		if b := s.bounds("any").Backlog; b != tt.want {
			t.Errorf("the backlog is %d, want %d", b, tt.want)
		}
		if logged := strings.Contains(log.take(), "default backlog"); logged != tt.logged {
			t.Errorf("backlog %d: logged is %v, want %v", tt.want, logged, tt.logged)
		}
		if tt.want == 50 && tt.logged {
			p := backlog.Policy{Prefix: true, Backlog: pointerTo(uint64(50)), RetentionAge: pointerTo(time.Hour)}
			if err := s.SetPolicy(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		if tt.want == 0 && s.bounds("any").RetentionAge != time.Hour {
			t.Error("the default's retention age is gone")
		}
		s.stop()
	}
}

// TestDefaultBacklogWithoutRoom: a file that has as many policies as it may, and
// no default, says what to do when a default backlog is configured.
func TestDefaultBacklogWithoutRoom(t *testing.T) {
	cfg := newFile(t)
	s := openRunning(t, cfg)
	s.execute(t, `with recursive n(i) as (select 1 union all select i + 1 from n where i < ?1)
		insert into policies (channel, prefix, backlog) select 'channel ' || i, 0, 5 from n`, backlog.MaxPolicies)
	s.stop()
	cfg.Backlog = pointerTo(int64(50))
	_, err := Open(t.Context(), cfg)
	isError(t, "open", err, backlog.ErrTooManyPolicies)
	says(t, err.Error(), strconv.Quote(cfg.Path), "remove one, or start without a default backlog")
	cfg.Backlog = nil
	if b := openRunning(t, cfg).bounds("channel 7").Backlog; b != 5 {
		t.Errorf("without a default, the backlog is %d, want 5", b)
	}
}

type logRecorder struct {
	mu      sync.Mutex
	written strings.Builder
}

func (l *logRecorder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written.Write(p)
}

// take returns what was logged since the last call.
func (l *logRecorder) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.written.Reset()
	return l.written.String()
}

// TestPoliciesThatRace: whatever order callers get back in, what applies is what
// was committed last.
func TestPoliciesThatRace(t *testing.T) {
	s := openRunning(t, newFile(t))
	for range 10 {
		var setters sync.WaitGroup
		for n := range uint64(8) {
			setters.Go(func() {
				if err := s.SetPolicy(t.Context(), backlog.Policy{Channel: "c", Backlog: &n}); err != nil {
					t.Error(err)
				}
			})
		}
		setters.Wait()
		if got, want := s.bounds("c").Backlog, query[uint64](t, s, "select backlog from policies where channel = 'c'"); got != want {
			t.Fatalf("the backlog is %d, in the file it is %d", got, want)
		}
	}
}

// TestPolicyThatFails: a policy that was not committed does not apply, and does not
// stand in the way of the next.
func TestPolicyThatFails(t *testing.T) {
	s := openRunning(t, newFile(t))
	s.execute(t, "alter table policies rename to hidden")
	p := backlog.Policy{Channel: "c", Backlog: pointerTo(uint64(1))}
	if err := s.SetPolicy(t.Context(), p); !errors.Is(err, backlog.ErrUnavailable) {
		t.Errorf("without a table: %v, want ErrUnavailable", err)
	}
	s.execute(t, "alter table hidden rename to policies")
	if b := s.bounds("c").Backlog; b != backlog.DefaultBounds.Backlog {
		t.Errorf("the backlog is %d", b)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.SetPolicy(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if _, err := s.Policies(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("policies with a context that has ended: %v", err)
	}
	s.setPolicy(t, p)
	if b := s.bounds("c").Backlog; b != 1 {
		t.Errorf("the backlog is %d, want 1", b)
	}
}

// TestPolicyWaitsForItsTurn: a caller that waits for another one's policy to be
// written leaves with its context.
func TestPolicyWaitsForItsTurn(t *testing.T) {
	s := openRunning(t, newFile(t))
	err := s.exclusively(t.Context(), func(context.Context, *sql.Conn) error {
		var others sync.WaitGroup
		for n := range uint64(3) {
			others.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				err := s.SetPolicy(ctx, backlog.Policy{Channel: "c", Backlog: &n})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v, want the context's error", err)
				}
			})
		}
		others.Wait()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.setPolicy(t, backlog.Policy{Channel: "c", Backlog: pointerTo(uint64(5))})
	if b := s.bounds("c").Backlog; b != 5 {
		t.Errorf("the backlog is %d, want 5", b)
	}
}

// TestPolicyHints: the hub is told to read its streams again.
func TestPolicyHints(t *testing.T) {
	s := openRunning(t, newFile(t))
	sink := &hintedSink{hinted: make(chan struct{}, 10)}
	defer runBus(t, s.bus, sink)()
	if _, err := s.bus.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.SetPolicy(t.Context(), backlog.Policy{Prefix: true, Backlog: pointerTo(uint64(1))}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sink.hinted:
	case <-time.After(30 * time.Second):
		t.Error("no hint")
	}
}

type hintedSink struct {
	recordingSink
	hinted chan struct{}
}

func (s *hintedSink) Hint() { s.hinted <- struct{}{} }

// BenchmarkBounds resolves what applies to a channel among as many policies as
// there may be.
func BenchmarkBounds(b *testing.B) {
	all := []backlog.Policy{{Prefix: true, Backlog: pointerTo(uint64(1))}}
	for i := range backlog.MaxPolicies - 1 {
		all = append(all, backlog.Policy{Channel: fmt.Sprintf("channel/%d", i), Prefix: i%2 == 0, Backlog: pointerTo(uint64(i))})
	}
	set := newPolicySet(all)
	for b.Loop() {
		set.bounds("channel/998/events")
	}
}
