package hub

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// spoil has something happen to a stream that is not announced.
func (r *rig) spoil(change func()) {
	r.bus.setFilter(func() int { return 0 })
	change()
	r.bus.setFilter(nil)
}

// inStore changes the store's rows.
func (r *rig) inStore(change func(s *fakeStream, n *numbering)) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	s := r.store.streams[orders]
	change(s, s.current)
}

func (r *rig) loads() int {
	n, _ := r.store.reads()
	return n
}

// Whatever happens to a stream without being announced, the re-read finds it within
// its interval, and the stream is read, once: then it is known as it is.
func TestReReadFindsWhatWasNotAnnounced(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"a frame":           func(r *rig) { r.publishMany(orders, 5, 1) },
		"an ephemeral mark": func(r *rig) { r.bus.publishEphemeral(orders, "e") },
		"a close":           func(r *rig) { r.bus.close(orders) },
		"a close and a reopening": func(r *rig) {
			r.bus.close(orders)
			r.publishMany(orders, 5, 5)
		},
		"a removal":    func(r *rig) { r.store.remove(orders) },
		"another head": func(r *rig) { r.inStore(func(_ *fakeStream, n *numbering) { n.headOrigin ^= 1 }) },
		"lost frames": func(r *rig) {
			r.inStore(func(_ *fakeStream, n *numbering) { n.head, n.rows = n.head-1, n.rows[:len(n.rows)-1] })
		},
		"a foreign deletion": func(r *rig) { r.store.trim(orders, 2) },
		"a smaller backlog": func(r *rig) {
			r.store.mu.Lock()
			defer r.store.mu.Unlock()
			r.store.backlog = 3
		},
		"an age": func(r *rig) {
			r.store.mu.Lock()
			defer r.store.mu.Unlock()
			r.store.age = time.Hour
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.publishMany(orders, 0, 5)
				r.subscribe(orders, Oldest()).caughtUp()
				r.spoil(func() { change(r) })
				before := r.loads()
				advance(t, 31*time.Second)
				if r.loads() == before {
					t.Fatal("it was not read")
				}
				known := r.loads()
				advance(t, 2*time.Minute)
				if n := r.loads() - known; n > 1 { // a mark has the rest awaited
					t.Errorf("it was read %d times more", n)
				}
				late, _, err := subscribe(t.Context(), r.hub, orders, Live())
				if err != nil {
					t.Fatal(err)
				}
				defer late.Close()
				if want := r.store.head(orders); late.Position() != want && name != "a close" && name != "a removal" {
					t.Errorf("the head is %s, want %s", late.Position(), want)
				}
			})
		})
	}
}

// A stream that is as it is known is not read, however it came to be so.
func TestReReadLeavesAloneWhatIsKnown(t *testing.T) {
	for name, happen := range map[string]func(r *rig){
		"nothing": func(*rig) {},
		"the first of all": func(r *rig) {
			r.store.remove(orders)
			advance(r.t.(*testing.T), time.Minute)
			r.publishMany(orders, 0, 1)
		},
		"frames":               func(r *rig) { r.publishMany(orders, 2, 20) },
		"more than the bounds": func(r *rig) { r.publishMany(orders, 2, 20); r.store.trim(orders, 10) },
		"an ephemeral frame":   func(r *rig) { r.bus.publishEphemeral(orders, "e") },
		"a close": func(r *rig) {
			r.publishMany(orders, 2, 3)
			r.bus.close(orders)
		},
		"a reopening": func(r *rig) {
			r.bus.close(orders)
			r.publishMany(orders, 2, 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.store.backlog = 10
				r.publishMany(orders, 0, 2)
				r.subscribe(orders, Live()).caughtUp()
				happen(r)
				advance(t, 5*time.Second)
				loads, checks := r.loads(), r.hub.Stats().Checks
				advance(t, 2*time.Minute)
				if n := r.loads() - loads; n != 0 {
					t.Errorf("it was read %d times", n)
				}
				if n := r.hub.Stats().Checks - checks; n != 4 {
					t.Errorf("the store was asked %d times in four intervals", n)
				}
			})
		})
	}
}

// What is too old is told by the store's clock, which is asked again and again: two
// clocks drift apart.
func TestReReadKeepsToTheStoresClock(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.store.age = time.Hour
		r.publishMany(orders, 0, 1)
		r.subscribe(orders, Oldest()).caughtUp()
		before := r.loads()
		advance(t, clockTrust)
		if n := r.loads() - before; n != 0 {
			t.Errorf("it was read %d times within the trust", n)
		}
		for i := range 3 {
			before = r.loads()
			advance(t, clockTrust+time.Minute)
			if n := r.loads() - before; n < 1 || n > 2 {
				t.Errorf("it was read %d times in period %d", n, i)
			}
		}
	})
}

// A store that fails to answer, or does not, holds up no repair: the streams are
// refreshed as soon as that is possible.
func TestReReadWhenTheStoreDoesNotAnswer(t *testing.T) {
	t.Run("fails", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			r.spoil(func() { r.publishMany(orders, 0, 3) })
			setFail := func(err error) {
				r.store.mu.Lock()
				defer r.store.mu.Unlock()
				r.store.fail = err
			}
			setFail(backlog.ErrUnavailable)
			advance(t, 40*time.Second)
			setFail(nil)
			began := time.Now()
			expect(t, s.frames(3), numbers(0, 3))
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("repaired after %s", d)
			}
		})
	})
	t.Run("hangs", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			answer := make(chan struct{})
			defer close(answer)
			r.store.setBefore(func(what string) {
				if what == "check" {
					<-answer
				}
			})
			advance(t, 31*time.Second)
			r.spoil(func() { r.publishMany(orders, 0, 3) })
			began := time.Now()
			expect(t, s.frames(3), numbers(0, 3))
			if d := time.Since(began); d > 2*30*time.Second {
				t.Errorf("repaired after %s", d)
			}
		})
	})
}

// Symptom: a store that did not answer in time whether streams had changed was not told of
// in the log. Cause: the end of that wait was taken for the end of the hub.
func TestCheckThatTakesTooLongIsLogged(t *testing.T) {
	var log syncBuffer
	cfg := Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), ReadTimeout: time.Second}
	bubble(t, cfg, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1)
		r.subscribe(orders, Live()).caughtUp()
		r.store.setBefore(func(what string) {
			if what == "check" {
				<-time.After(2 * time.Second)
			}
		})
		advance(t, 40*time.Second)
	})
	if n := strings.Count(log.String(), "refresh failed"); n != 1 {
		t.Errorf("it was told of %d times:\n%s", n, log.String())
	}
}
