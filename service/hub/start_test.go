package hub

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

var orders = backlog.StreamName{Channel: "orders", Scope: "1"}

func expect(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %d frames %.200v, want %d %.200v", len(got), got, len(want), want)
	}
}

// Every start, on a stream that is not resident and on one that is, begins at
// the same place.
func TestStarts(t *testing.T) {
	for _, resident := range []bool{false, true} {
		for _, tt := range []struct {
			name  string
			start func(head backlog.Position) Start
			first int
		}{
			{"oldest", func(backlog.Position) Start { return Oldest() }, 20},
			{"live", func(backlog.Position) Start { return Live() }, 100},
			{"last 7", func(backlog.Position) Start { return Last(7) }, 93},
			{"last of more than may be replayed", func(backlog.Position) Start { return Last(90) }, 20},
			{"last 0", func(backlog.Position) Start { return Last(0) }, 100},
			{"position", func(h backlog.Position) Start { return After(backlog.Position{Epoch: h.Epoch, Sequence: 50}) }, 50},
			{"base", func(h backlog.Position) Start { return After(backlog.Position{Epoch: h.Epoch, Sequence: 20}) }, 20},
			{"head", func(h backlog.Position) Start { return After(h) }, 100},
		} {
			t.Run(tt.name, func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, r *rig) {
					r.store.backlog = 80
					r.publishMany(orders, 0, 100)
					if resident {
						r.subscribe(orders, Oldest()).caughtUp()
					}
					loads, _ := r.store.reads()
					s := r.subscribe(orders, tt.start(r.store.head(orders)))
					if again, _ := r.store.reads(); resident && again != loads {
						t.Errorf("a start inside the tail was answered with a query")
					}
					got := s.subscribed
					if got.Head != r.store.head(orders) || got.Oldest != 21 || got.ResumeAfter.Sequence != uint64(tt.first) {
						t.Errorf("Subscribed %+v", got)
					}
					s.caughtUp()
					expect(t, s.payloads, numbers(tt.first, 100-tt.first))
					r.publishMany(orders, 100, 3)
					expect(t, s.frames(103-tt.first), numbers(tt.first, 103-tt.first))
					s.silent()
				})
			})
		}
	}
}

// S15: a position that was never given out is answered with a gap, not with
// silence, and the stream goes on.
func TestPositionsThatCannotBeResumed(t *testing.T) {
	for _, resident := range []bool{false, true} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 30)
			r.store.trim(orders, 20)
			if resident {
				r.subscribe(orders, Oldest()).caughtUp()
			}
			head := r.store.head(orders)
			for _, tt := range []struct {
				p      backlog.Position
				reason GapReason
			}{
				{backlog.Position{Epoch: head.Epoch, Sequence: 999}, GapAhead},
				{backlog.Position{Epoch: head.Epoch ^ 1, Sequence: 15}, GapEpochChanged},
				{backlog.Position{Epoch: head.Epoch, Sequence: 9}, GapTrimmed},
				{backlog.Position{}, GapTrimmed},
			} {
				s := r.subscribe(orders, After(tt.p))
				if got := s.subscribed; got.Resumed || got.ResumeAfter != tt.p || s.sub.Position() != tt.p {
					t.Errorf("Subscribed %+v", got)
				}
				g := s.gap(tt.reason)
				want := Gap{Reason: tt.reason, Requested: tt.p, Oldest: 11, Head: head, ResumeAfter: backlog.Position{Epoch: head.Epoch, Sequence: 10}}
				if g != want {
					t.Errorf("gap %+v, want %+v", g, want)
				}
				s.caughtUp()
				expect(t, s.payloads, numbers(10, 20))
			}
		})
	}
}

func TestRetentionAgeBoundsNewSubscriptionsOnly(t *testing.T) {
	bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		r.store.age = time.Minute
		r.publishMany(orders, 0, 10)
		slow := r.subscribe(orders, Oldest())
		advance(t, 45*time.Second)
		r.publishMany(orders, 10, 5)
		advance(t, 30*time.Second)
		// From the tail, without a query.
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		expect(t, s.payloads, numbers(10, 5))
		late := r.subscribe(orders, After(slow.position))
		late.gap(GapTrimmed)
		expect(t, slow.frames(15), numbers(0, 15))
		advance(t, time.Minute)
		r.subscribe(orders, Oldest()).caughtUp()
	})
}

// What is too old is the store's word, and goes on with the time that passes: a
// step of its clock makes nothing older.
func TestAgesOutliveAStepOfTheClock(t *testing.T) {
	bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		r.store.age, r.store.clockAhead = time.Minute, -3*time.Hour
		r.publishMany(orders, 0, 10)
		r.subscribe(orders, Oldest()).caughtUp()
		advance(t, 30*time.Second)
		r.store.clockAhead += 2 * time.Hour
		r.publishMany(orders, 10, 5)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		expect(t, s.payloads, numbers(0, 15))
		advance(t, 31*time.Second)
		s = r.subscribe(orders, Oldest())
		s.caughtUp()
		expect(t, s.payloads, numbers(10, 5))
	})
}

// advance lets the bubble's clock run.
func advance(t *testing.T, d time.Duration) {
	t.Helper()
	<-time.After(d)
}

func TestWaitingForAStream(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		var all []*reader
		for _, start := range []Start{Oldest(), Live(), Last(3), After(backlog.Position{})} {
			s := r.subscribe(orders, start)
			if got := s.subscribed; got.Head != (backlog.Position{}) || got.Oldest != 1 || got.ResumeAfter != (backlog.Position{}) {
				t.Errorf("Subscribed %+v", got)
			}
			s.caughtUp()
			s.silent()
			all = append(all, s)
		}
		r.publishMany(orders, 0, 5)
		for _, s := range all {
			expect(t, s.frames(5), numbers(0, 5))
		}
	})
}

func TestSubscribeFails(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		broken := errors.New("broken")
		r.store.setFail(broken)
		if _, _, err := subscribe(t.Context(), r.hub, orders, Oldest()); !errors.Is(err, broken) {
			t.Errorf("store broken: %v", err)
		}
		r.store.setFail(backlog.ErrOtherServer)
		began := time.Now()
		if _, _, err := subscribe(t.Context(), r.hub, orders, Oldest()); !errors.Is(err, backlog.ErrOtherServer) || time.Since(began) < 5*time.Second {
			t.Errorf("other server: %v after %s", err, time.Since(began))
		}
		r.store.setFail(nil)
		r.bus.kill()
		began = time.Now()
		if _, _, err := subscribe(t.Context(), r.hub, orders, Oldest()); !errors.Is(err, ErrNotListening) || time.Since(began) != 5*time.Second {
			t.Errorf("not listening: %v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := subscribe(ctx, r.hub, orders, Oldest()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("caller gone: %v", err)
		}
		if n := r.hub.Subscribers(orders); n != 0 {
			t.Errorf("%d subscribers are left", n)
		}
		r.bus.listen()
		r.subscribe(orders, Oldest()).caughtUp()
	})
}

func TestOtherServerIsRetried(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		r.store.setFail(backlog.ErrOtherServer)
		time.AfterFunc(time.Second, func() { r.store.setFail(nil) })
		expect(t, r.subscribe(orders, Oldest()).frames(3), numbers(0, 3))
	})
}

// A store that does not answer fails the subscription after a time, with an
// error that is not the caller's deadline.
func TestLoadThatHangs(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.store.setBefore(func(string) { <-time.After(20 * time.Second) })
		_, _, err := subscribe(t.Context(), r.hub, orders, Oldest())
		if !errors.Is(err, backlog.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCallerLeavesWhileLoading(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		gate := make(chan struct{})
		r.store.setBefore(func(string) { <-gate })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, _, err := subscribe(ctx, r.hub, orders, Oldest()); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		close(gate)
		r.bus.publish(orders, "0")
		expect(t, r.subscribe(orders, Oldest()).frames(1), numbers(0, 1))
		if n := r.hub.Subscribers(orders); n != 1 {
			t.Errorf("%d subscribers", n)
		}
	})
}

func TestEndOfSubscriptionAndHub(t *testing.T) {
	store := newFakeStore()
	bus := newFakeBus(store)
	h := New(bus, store, encodeForTest, Config{})
	bus.sink = h
	bus.listen()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	sub, _, err := subscribe(t.Context(), h, orders, Live())
	if err != nil {
		t.Fatal(err)
	}
	closed, _, err := subscribe(t.Context(), h, orders, Live())
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	closed.Close()
	if _, err := closed.Next(t.Context(), 1); !errors.Is(err, ErrSubscriptionClosed) {
		t.Errorf("closed subscription: %v", err)
	}
	if _, err := sub.Next(t.Context(), 1); err != nil {
		t.Errorf("CaughtUp: %v", err)
	}
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := sub.Next(t.Context(), 1); !errors.Is(err, ErrStopped) {
		t.Errorf("stopped hub: %v", err)
	}
	sub.Close()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, _, err := subscribe(t.Context(), h, streamName(9), Live()); !errors.Is(err, ErrStopped) {
		t.Errorf("Subscribe at a stopped hub: %v", err)
	}
}
