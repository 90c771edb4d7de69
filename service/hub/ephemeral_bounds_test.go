package hub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// The tail is bounded for both kinds together. Who has not taken what had to be
// dropped is ended, with its position; others notice nothing.
func TestSlowSubscriberIsEnded(t *testing.T) {
	for what, cfg := range map[string]Config{
		"frames": {TailFrames: 50},
		"bytes":  {TailBytes: 50 * (entryOverhead + 40)},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, cfg, func(t *testing.T, r *rig) {
				r.publishMany(orders, 0, 5)
				fast, slow, durable := r.subscribe(orders, Oldest()), r.subscribe(orders, Oldest()), r.subscribe(streamName(7), Live())
				slow.frames(5)
				r.publishMany(streamName(7), 0, 500)
				want := numbers(0, 5)
				for i := range 50 {
					want = append(want, r.mixedMany(orders, 5+10*i, 10)...)
					fast.until("all", func() bool { return len(fast.all) == len(want) })
				}
				expect(t, fast.all, want)
				if n := r.hub.Stats().TailBytes; n > 2*50*(entryOverhead+40) { // of two streams
					t.Errorf("a tail of %d bytes", n)
				}
				if d, ok := slow.notice().(CaughtUp); !ok {
					t.Errorf("notice %+v", d)
				}
				for range 2 {
					if _, _, err := slow.sub.TryNext(messageBytes); !errors.Is(err, ErrSlowSubscriber) {
						t.Fatalf("slow subscription: %v", err)
					}
				}
				again := r.subscribe(orders, After(slow.sub.Position()))
				if !again.subscribed.Resumed {
					t.Errorf("not resumed after %s", slow.sub.Position())
				}
				again.caughtUp()
				expect(t, again.payloads, durableOf(want)[5:])
				// One of a stream without ephemeral frames pages.
				expect(t, durable.frames(500), numbers(0, 500))
				if n := r.hub.Stats().Slow; n != 1 {
					t.Errorf("%d slow subscriptions", n)
				}
			})
		})
	}
}

// Symptom: a subscription was ended as too slow that had been sent everything, for want of
// room for ephemeral frames that came late and were committed before it began. Cause:
// whoever had not had what was dropped was ended, whether or not it was for them.
func TestDroppedFramesOfOthersEndNobody(t *testing.T) {
	bubble(t, Config{TailFrames: 4}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		earlier := r.subscribe(orders, Live())
		earlier.caughtUp()
		r.bus.hold()
		r.ephemeralMany(orders, 0, 8)
		r.publishMany(orders, 3, 2)
		r.bus.sinkHint()
		earlier.frames(2) // they are read although the announcements are late
		resting, reading, untold := r.subscribe(orders, Live()), r.subscribe(orders, Live()), r.subscribe(orders, Live())
		for _, s := range []*reader{resting, reading, untold} {
			s.caughtUp()
		}
		r.publishMany(orders, 5, 1)
		r.bus.sinkHint()
		reading.until("an outage", func() bool { return reading.gaps() == 1 })
		if d, ok, err := resting.sub.TryNotice(); !ok || err != nil || resting.take(d) != nil || resting.gaps() != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		if d, ok, err := resting.sub.TryNotice(); ok || err != nil {
			t.Fatalf("it does not rest before a frame: %+v, %v", d, err)
		}
		r.bus.release(false)
		if d, ok, err := resting.sub.TryNotice(); ok || err != nil {
			t.Errorf("the one that rests: %+v, %v", d, err)
		}
		for _, s := range []*reader{resting, reading} {
			expect(t, s.frames(1), numbers(5, 1))
			s.silent()
		}
		if _, _, err := earlier.sub.TryNext(messageBytes); !errors.Is(err, ErrSlowSubscriber) {
			t.Errorf("the one that they were for: %v", err)
		}
		// The outage was for this one, and went with them.
		if _, _, err := untold.sub.TryNext(messageBytes); !errors.Is(err, ErrSlowSubscriber) {
			t.Errorf("the one that had not been told of the outage: %v", err)
		}
		// Those that follow are for all who are left.
		if d, ok, err := resting.sub.TryNotice(); ok || err != nil {
			t.Fatalf("%+v, %v", d, err)
		}
		r.ephemeralMany(orders, 8, 8)
		for _, s := range []*reader{resting, reading} {
			if _, _, err := s.sub.TryNotice(); !errors.Is(err, ErrSlowSubscriber) {
				t.Errorf("one that did not take what was for it: %v", err)
			}
		}
	})
}

// durableOf is what of the payloads of mixedMany is durable.
func durableOf(payloads []string) []string {
	return slices.DeleteFunc(slices.Clone(payloads), func(p string) bool { return strings.HasPrefix(p, "e") })
}

// A slow subscription of a stream without ephemeral frames pages, and an outage of
// its listening that it has not been told of yet does not end it.
func TestOutageIsNotDropped(t *testing.T) {
	bubble(t, Config{TailFrames: 10}, func(t *testing.T, r *rig) {
		r.ephemeralMany(orders, 0, 1)
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.bus.kill()
		r.bus.listen()
		synctest.Wait()
		r.publishMany(orders, 0, 500)
		r.hub.shrinkStream(orders)
		s.gap(GapEphemeralMaybeMissed)
		expect(t, s.frames(500), numbers(0, 500))
		s.silent()
	})
}

func (h *Hub) shrinkStream(name backlog.StreamName) { h.resident(name).shrink() }

// What every subscription has had is not kept, so that a stream of many ephemeral
// frames holds none and its durable ones stay in memory.
func TestEphemeralFramesThatAllHadAreNotKept(t *testing.T) {
	bubble(t, Config{TailFrames: 64}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 20)
		var all []*reader
		for range 3 {
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			all = append(all, s)
		}
		before := r.hub.Stats().TailBytes
		for i := range 1000 {
			r.ephemeralMany(orders, i, 1)
			for _, s := range all {
				s.ephemerals(i + 1)
				s.silent()
			}
		}
		if n := r.hub.Stats().TailBytes - before; n > 2*(entryOverhead+40) {
			t.Errorf("%d bytes are kept", n)
		}
		_, pages := r.store.reads()
		again := r.subscribe(orders, Oldest())
		again.caughtUp()
		expect(t, again.payloads, numbers(0, 20))
		if _, after := r.store.reads(); after != pages {
			t.Errorf("the durable frames were dropped for ephemeral ones")
		}
		// Nor is anything kept for a stream that lingers.
		for _, s := range append(all, again) {
			s.sub.Close()
		}
		before = r.hub.Stats().TailBytes
		r.ephemeralMany(orders, 0, 100)
		if n := r.hub.Stats().TailBytes; n != before {
			t.Errorf("%d bytes are kept for nobody", n-before)
		}
	})
}

// All tails together stay within their bound with ephemeral frames, too. Who reads
// in time misses nothing, and the stalled ones are ended.
func TestEphemeralFramesCountInTheTotal(t *testing.T) {
	const bound = 256 << 10
	bubble(t, Config{MaxTailBytes: bound}, func(t *testing.T, r *rig) {
		var stalled []*reader
		for i := range 20 {
			s := r.subscribe(streamName(100+i), Live())
			s.caughtUp()
			stalled = append(stalled, s)
		}
		fast := r.subscribe(orders, Live())
		payload := strings.Repeat("x", 1000)
		for n := range 100 {
			for i := range 20 {
				r.bus.publishEphemeral(streamName(100+i), fmt.Sprint(n, payload))
			}
			advance(t, time.Millisecond) // so that one stream is colder than another
			r.bus.publishEphemeral(orders, fmt.Sprint(n))
			fast.ephemerals(n + 1)
			synctest.Wait()
			if got := r.hub.Stats().TailBytes; got > bound {
				t.Fatalf("%d bytes in all tails", got)
			}
		}
		ends := 0
		for _, s := range stalled {
			for s.sub.err == nil {
				d, ok, err := s.sub.TryNext(messageBytes)
				switch {
				case errors.Is(err, ErrSlowSubscriber):
					ends++
				case !ok || err != nil:
					t.Fatalf("a stalled subscription went on without its frames: %v, %v", ok, err)
				default:
					if err := s.take(d); err != nil {
						t.Fatal(err)
					}
				}
				if len(s.ephemeral) == 100 {
					break
				}
			}
		}
		if ends < 15 {
			t.Errorf("%d of 20 stalled subscriptions were ended", ends)
		}
	})
}
