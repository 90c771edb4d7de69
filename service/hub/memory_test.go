package hub

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestLinger(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 5)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		loads, _ := r.store.reads()
		s.sub.Close()
		advance(t, 9*time.Second)
		r.bus.publish(orders, "5")
		again := r.subscribe(orders, Oldest())
		again.caughtUp()
		expect(t, again.payloads, numbers(0, 6))
		if n, _ := r.store.reads(); n != loads {
			t.Errorf("the lingering tail was loaded again")
		}
		advance(t, 9*time.Second)
		again.sub.Close()
		advance(t, 9*time.Second)
		if n := r.hub.Stats(); n.Streams != 1 || n.TailBytes == 0 {
			t.Errorf("%+v before the linger is over", n)
		}
		advance(t, 2*time.Second)
		if n := r.hub.Stats(); n.Streams != 0 || n.TailBytes != 0 || n.Subscribers != 0 {
			t.Errorf("%+v after the linger", n)
		}
	})
}

func TestTailIsBounded(t *testing.T) {
	bubble(t, Config{TailBytes: 100 << 10}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Live())
		s.caughtUp()
		big := strings.Repeat("x", 30<<10)
		for range 20 {
			r.bus.publish(orders, big)
		}
		if n := r.hub.Stats().TailBytes; n > 100<<10 {
			t.Errorf("a tail of %d bytes", n)
		}
		s.frames(20)
		r.bus.publish(orders, strings.Repeat("y", 300<<10))
		s.silentAfter(21)
		_, pages := r.store.reads()
		if n := r.hub.Stats().TailBytes; n < 300<<10 || n > 310<<10 {
			t.Errorf("a tail of %d bytes does not hold the one frame", n)
		}
		again := r.subscribe(orders, Last(1))
		again.frames(1)
		if _, after := r.store.reads(); after != pages {
			t.Errorf("the newest frame was not in the tail")
		}
	})
}

func (r *reader) silentAfter(n int) {
	r.t.Helper()
	r.frames(n)
	r.silent()
}

// All tails together stay within their bound, and nobody misses anything: who
// finds its tail emptied reads pages.
func TestAllTailsAreBounded(t *testing.T) {
	const bound = 1 << 20
	r := newRig(t, Config{MaxTailBytes: bound, MaxPageBytes: 128 << 10, PageBytes: 32 << 10})
	var all []*reader
	for i := range 50 {
		s := r.subscribe(streamName(i), Live())
		all = append(all, s)
	}
	payload := strings.Repeat("x", 1000)
	for n := range 100 {
		for i := range 50 {
			r.bus.publish(streamName(i), fmt.Sprint(n, payload))
		}
		// An eighth of what is published in a round may come before the sweeper.
		eventually(t, "the tails shrink", func() bool { return r.hub.Stats().TailBytes <= bound })
	}
	// The first frames are read, not appended, and that may take a while.
	eventually(t, "a tail is emptied", func() bool { return r.hub.Stats().Shrunk > 0 })
	for _, s := range all {
		s.frames(100)
		if n := r.hub.Stats().PageBytes; n > 128<<10 {
			t.Errorf("%d bytes of pages", n)
		}
	}
}

// Stalled subscriptions do not keep their pages.
func TestPagesOfStalledSubscriptionsAreEvicted(t *testing.T) {
	bubble(t, Config{TailFrames: 10, PageFrames: 64, PageBytes: 32 << 10, MaxPageBytes: 64 << 10}, func(t *testing.T, r *rig) {
		payload := strings.Repeat("x", 1000)
		for range 900 {
			r.bus.publish(orders, payload)
		}
		var all []*reader
		for i := range 20 {
			s := r.subscribe(orders, Last(uint64(100+40*i)))
			for range 2 {
				// The first asks for the page, the second takes one frame of it.
				if d, ok, err := s.sub.TryNext(1); err != nil {
					t.Fatal(err)
				} else if ok {
					if err := s.take(d); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
			}
			all = append(all, s)
		}
		if n := r.hub.Stats().PageBytes; n > 64<<10 {
			t.Errorf("%d bytes of pages", n)
		}
		for i, s := range all {
			s.frames(100 + 40*i)
		}
		if n := r.hub.Stats().PageBytes; n != 0 {
			t.Errorf("%d bytes of pages are left", n)
		}
	})
}

// Rounds get smaller where frames are large, and larger again.
func TestRoundSizeAdapts(t *testing.T) {
	h := New(nil, nil, nil, Config{RoundBytes: 1000})
	size := h.newRoundSize()
	round := func(bytes int) {
		size.adapt([]backlog.Loaded{{Frames: []backlog.Frame{{Payload: make([]byte, bytes)}}}})
	}
	for range 20 {
		round(2000)
	}
	if size.streams != minRoundStreams {
		t.Errorf("%d streams", size.streams)
	}
	round(500)
	if size.streams != minRoundStreams {
		t.Errorf("%d streams", size.streams)
	}
	for range 20 {
		round(10)
	}
	if size.streams != backlog.MaxLoadRequests {
		t.Errorf("%d streams", size.streams)
	}
}
