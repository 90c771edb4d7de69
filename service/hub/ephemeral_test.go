package hub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func (r *rig) ephemeralMany(name backlog.StreamName, from, n int) {
	for i := range n {
		r.bus.publishEphemeral(name, fmt.Sprint("e", from+i))
	}
}

// ephemeralNumbers is what ephemeralMany published.
func ephemeralNumbers(from, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint("e", from+i)
	}
	return list
}

// ephemerals reads until there are n ephemeral frames in all.
func (r *reader) ephemerals(n int) []string {
	r.t.Helper()
	r.until(fmt.Sprintf("%d ephemeral frames", n), func() bool { return len(r.ephemeral) >= n })
	return r.ephemeral
}

// Symptom: a client that had never had an ephemeral frame lost its connection, missed the
// first ones, and nobody said so. Whoever subscribes is told that the stream has carried
// any, whether the hub knows it from the store or from an announcement.
func TestSubscribersAreToldOfEphemeralFrames(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		first := r.subscribe(orders, Oldest())
		first.caughtUp()
		if first.subscribed.Ephemeral {
			t.Error("a stream that has carried none is said to have")
		}
		r.ephemeralMany(orders, 0, 1)
		first.ephemerals(1)
		for _, start := range []Start{Live(), After(first.position)} {
			later := r.subscribe(orders, start)
			later.caughtUp()
			if !later.subscribed.Ephemeral {
				t.Errorf("%+v: nothing is said of the ephemeral frame", start)
			}
		}
	})
}

// An ephemeral frame is for who is subscribed when it commits, and moves nobody.
func TestEphemeralFrames(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		r.ephemeralMany(orders, 0, 1)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		s.silent()
		r.ephemeralMany(orders, 1, 2)
		expect(t, s.ephemerals(2), ephemeralNumbers(1, 2))
		if got := s.sub.Position(); got != r.store.head(orders) {
			t.Errorf("position %s, want the head %s", got, r.store.head(orders))
		}
		live := r.subscribe(orders, Live())
		live.caughtUp()
		live.silent()
		resumed := r.subscribe(orders, After(s.position))
		resumed.caughtUp()
		resumed.silent()
		r.publishMany(orders, 3, 1)
		for _, s := range []*reader{s, live, resumed} {
			s.until("the frame", func() bool { return len(s.payloads) > 0 && s.payloads[len(s.payloads)-1] == "3" })
			s.silent()
		}
	})
}

// Two frames that are equal in everything both arrive: nothing filters them.
func TestEqualEphemeralFrames(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Live())
		for range 5 {
			r.bus.publishEphemeral(orders, "same")
		}
		expect(t, s.ephemerals(5), []string{"same", "same", "same", "same", "same"})
		s.caughtUpOrSilent()
	})
}

// mixedMany publishes n frames of both kinds, in an order that depends on n alone,
// some as pointers, and returns their payloads.
func (r *rig) mixedMany(name backlog.StreamName, from, n int) []string {
	var all []string
	for i := from; i < from+n; i++ {
		payload := fmt.Sprint(i)
		switch i % 5 {
		case 0, 3:
			r.bus.publish(name, payload)
		case 1:
			r.bus.publishPointer(name, payload)
		default:
			payload = "e" + payload
			r.bus.publishEphemeral(name, payload)
		}
		all = append(all, payload)
	}
	return all
}

// The order of a publisher's frames is that of delivery, whatever their kind and
// however the durable ones are announced.
func TestEphemeralFramesKeepTheirPlace(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		var want []string
		for i := range 40 {
			want = append(want, r.mixedMany(orders, 25*i, 25)...)
			if i%2 == 0 {
				s.until("all", func() bool { return len(s.all) == len(want) })
			}
		}
		s.until("all", func() bool { return len(s.all) == len(want) })
		expect(t, s.all, want)
		s.silent()
	})
}

// What is published during a replay is held back until the replay has reached its
// place, whether the replay comes from the window, from pages or from both.
func TestEphemeralFramesWaitForTheReplay(t *testing.T) {
	for what, cfg := range map[string]Config{
		"window":         {},
		"pages":          {PageFrames: 64, TailFrames: 400},
		"smaller frames": {PageFrames: 7, TailFrames: 400},
	} {
		for _, maxBytes := range []int{1, 300, messageBytes} {
			t.Run(fmt.Sprint(what, maxBytes), func(t *testing.T) {
				bubble(t, cfg, func(t *testing.T, r *rig) {
					r.store.backlog = 10000
					r.publishMany(orders, 0, 1000)
					r.store.trim(orders, 900)
					s := r.subscribe(orders, Oldest())
					want := append(numbers(100, 900), r.mixedMany(orders, 1000, 300)...)
					for len(s.all) < len(want) {
						d, err := s.sub.Next(t.Context(), maxBytes)
						if err != nil {
							t.Fatal(err)
						}
						if err := s.take(d); err != nil {
							t.Fatal(err)
						}
					}
					expect(t, s.all, want)
					if _, ok := s.notices[0].(CaughtUp); !ok || len(s.notices) != 1 {
						t.Errorf("notices %+v", s.notices)
					}
					s.silent()
				})
			})
		}
	}
}

// CaughtUp waits for no ephemeral frame, and stands before those that came after
// the subscription began.
func TestCaughtUpBeforeEphemeralFrames(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 10)
		s := r.subscribe(orders, Oldest())
		r.ephemeralMany(orders, 0, 1)
		s.caughtUp()
		expect(t, s.all, numbers(0, 10))
		expect(t, s.ephemerals(1), ephemeralNumbers(0, 1))
	})
}

// One ephemeral frame at a random moment of a subscribe, then nothing more. If it
// was published after the ack it comes, once.
func TestEphemeralSeamUnderSilence(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 200
	}
	r := newRig(t, Config{Linger: time.Millisecond})
	for i := range rounds {
		name := streamName(i % 50)
		start := []Start{Oldest(), Live(), Last(1)}[i%3]
		delay := time.Duration(rand.IntN(200)) * time.Microsecond
		payload := fmt.Sprint("round ", i)
		acked, published := make(chan struct{}), make(chan bool)
		go func() {
			<-time.After(delay)
			select {
			case <-acked:
				r.bus.publishEphemeral(name, payload)
				published <- true
			default:
				r.bus.publishEphemeral(name, payload)
				published <- false
			}
		}()
		s := r.subscribe(name, start)
		close(acked)
		if after := <-published; after {
			s.until("the frame", func() bool { return len(s.ephemeral) > 0 })
		}
		r.bus.publishEphemeral(name, "marker")
		s.until("the marker", func() bool { return slices.Contains(s.ephemeral, "marker") })
		if n := len(s.ephemeral); n > 2 || (n == 2 && s.ephemeral[0] != payload) {
			t.Fatalf("got %v", s.ephemeral)
		}
		s.sub.Close()
	}
}

// While a stream is being loaded its ephemeral frames are held. What follows less
// than the load found was committed before it; what may be later is delivered.
func TestEphemeralFramesDuringTheLoad(t *testing.T) {
	for _, stored := range []int{0, 5} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, stored)
			r.store.setBefore(func(string) {
				r.store.setBefore(nil)
				r.ephemeralMany(orders, 0, 1) // followed by a frame that the load finds
				r.publishMany(orders, stored, 1)
				r.ephemeralMany(orders, 1, 1)
			})
			r.store.after = func(string) {
				r.store.after = nil
				r.ephemeralMany(orders, 2, 1)
				r.publishMany(orders, stored+1, 1)
				r.ephemeralMany(orders, 3, 1)
			}
			s := r.subscribe(orders, Live())
			if got := s.subscribed.Head.Sequence; got != uint64(stored)+1 {
				t.Fatalf("acked with head %d", got)
			}
			s.ephemerals(3)
			expect(t, s.all, []string{"e1", "e2", fmt.Sprint(stored + 1), "e3"})
			s.silent()
		})
	}
}

// An ephemeral frame that a read has overtaken, by more than the grace, is delivered
// at once to who is past its place, and not to who began past it.
func TestEphemeralFrameBehind(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.hold()
		r.ephemeralMany(orders, 0, 1)
		r.publishMany(orders, 3, 2)
		r.ephemeralMany(orders, 1, 1)
		r.bus.sinkHint()
		expect(t, s.frames(5), numbers(0, 5))
		later := r.subscribe(orders, Live())
		r.bus.release(false)
		expect(t, s.ephemerals(2), ephemeralNumbers(0, 2))
		expect(t, later.ephemerals(1), ephemeralNumbers(1, 1))
		s.silent()
		later.caughtUpOrSilent()
	})
}

// An ephemeral frame tells of the durable ones that it follows, if their own
// announcements were lost.
func TestEphemeralFrameAhead(t *testing.T) {
	bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.lose(true)
		r.publishMany(orders, 3, 2)
		r.bus.lose(false)
		began := time.Now()
		r.ephemeralMany(orders, 0, 1)
		s.ephemerals(1)
		expect(t, s.all, append(numbers(0, 5), "e0"))
		if d := time.Since(began); d > 0 {
			t.Errorf("it came after %s", d)
		}
	})
}

// What an ephemeral frame follows may be nowhere. It is not lost for that, does
// not hold up what comes after it, and does not have the stream read for ever.
func TestEphemeralFrameThatFollowsNothing(t *testing.T) {
	bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		s.loose = true
		before, _ := r.store.reads()
		a := r.store.publishEphemeral(orders, "e0")
		a.Frame.Position.Sequence = 77
		r.bus.forge(a)
		r.ephemeralMany(orders, 1, 1)
		expect(t, s.ephemerals(2), ephemeralNumbers(0, 2))
		r.mixedMany(orders, 3, 20)
		s.until("all", func() bool { return len(s.all) == 3+2+20 })
		if after, _ := r.store.reads(); after-before > 8 {
			t.Errorf("%d reads", after-before)
		}
	})
}
