package hub

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Symptom: of a burst of 900 that began a stream those who waited for it got some,
// and a gap. Cause: what comes before a stream's read has been taken in was held
// within bounds of its own, far below those of a tail.
func TestFirstBurst(t *testing.T) {
	for _, n := range []int{900, 4000} {
		for what, when := range map[string]func(r *rig, burst func()){
			"into a waiting stream": func(r *rig, burst func()) {
				r.bus.hold()
				burst()
				r.bus.release(false)
			},
			"during its read": func(r *rig, burst func()) {
				r.store.setBefore(func(string) {
					r.store.setBefore(nil)
					burst()
				})
				r.bus.publishEphemeral(orders, "first")
			},
		} {
			t.Run(fmt.Sprint(n, what), func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, r *rig) {
					s := r.subscribe(orders, Live())
					s.caughtUp()
					s.silent()
					when(r, func() { r.ephemeralMany(orders, 0, n) })
					synctest.Wait()
					r.publishMany(orders, 0, 1)
					s.frames(1)
					want := append(ephemeralNumbers(0, n), "0")
					expect(t, s.all[max(0, len(s.all)-len(want)):], want)
					if len(s.notices) != 1 {
						t.Errorf("notices %v", s.notices)
					}
					s.silent()
				})
			})
		}
	}
}

// More of them during a load than a tail holds: those who wait for it are told, and
// nobody else.
func TestEphemeralFloodDuringTheLoad(t *testing.T) {
	for what, flood := range map[string]func(r *rig){
		"frames": func(r *rig) { r.ephemeralMany(orders, 0, 201) },
		"bytes": func(r *rig) {
			for range 5 {
				r.bus.publishEphemeral(orders, strings.Repeat("x", 60<<10))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, Config{TailFrames: 200, TailBytes: 256 << 10}, func(t *testing.T, r *rig) {
				r.publishMany(orders, 0, 3)
				r.store.after = func(string) {
					r.store.after = nil
					flood(r)
					if n := r.hub.Stats().TailBytes; n > 256<<10 {
						t.Errorf("%d bytes are held", n)
					}
				}
				s := r.subscribe(orders, Live())
				s.caughtUp()
				s.gap(GapEphemeralMaybeMissed)
				expect(t, s.all, nil)
				s.ephemerals(1)
				s.silent()
				later := r.subscribe(orders, Live())
				later.caughtUp()
				later.silent()
			})
		})
	}
	// Durable announcements, whose room is another, are not told of.
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.store.after = func(string) {
			r.store.after = nil
			r.ephemeralMany(orders, 0, 1)
			r.publishMany(orders, 0, 3*maxHeld)
			r.ephemeralMany(orders, 1, 1)
		}
		s := r.subscribe(orders, Live())
		expect(t, s.ephemerals(2), ephemeralNumbers(0, 2))
		s.caughtUpOrSilent()
	})
}

// What is held counts in the total of all tails. Where that is too large it is given
// up, like what is in tails: those who waited for it are told.
func TestHeldEphemeralFramesCountInTheTotal(t *testing.T) {
	const bound, streams = 256 << 10, 40
	bubble(t, Config{MaxTailBytes: bound}, func(t *testing.T, r *rig) {
		var all []*reader
		for i := range streams {
			s := r.subscribe(streamName(i), Live())
			s.caughtUp()
			all = append(all, s)
		}
		r.store.setBefore(func(string) { <-time.After(time.Second) })
		payload := strings.Repeat("x", 1000)
		for i := range streams {
			for n := range 20 {
				r.bus.publishEphemeral(streamName(i), fmt.Sprint(n, payload))
			}
			synctest.Wait()
			if got := r.hub.Stats().TailBytes; got > bound {
				t.Fatalf("%d bytes are held", got)
			}
			advance(t, time.Millisecond) // so that one stream is colder than another
		}
		told := 0
		for i, s := range all {
			s.until("the frames, or a gap", func() bool { return len(s.ephemeral) == 20 || s.gaps() == 1 })
			told += s.gaps()
			r.bus.publishEphemeral(streamName(i), "marker")
			s.until("the marker", func() bool { return slices.Contains(s.ephemeral, "marker") })
			if n := len(s.ephemeral); n != 21 && (n != 1 || s.gaps() != 1) {
				t.Errorf("stream %d: %d frames, %d gaps", i, n, s.gaps())
			}
		}
		if told == 0 || told == streams {
			t.Errorf("%d of %d were told", told, streams)
		}
	})
}

// What is held for a stream that nobody waits for any more goes with it.
func TestHeldEphemeralFramesGoWithTheStream(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.store.setBefore(func(string) { <-time.After(time.Second) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, _, err := subscribe(ctx, r.hub, orders, Live()); err == nil {
			t.Fatal("subscribed without a load")
		}
		r.ephemeralMany(orders, 0, 100)
		if n := r.hub.Stats().TailBytes; n < 100*entryOverhead {
			t.Errorf("%d bytes for what is held", n)
		}
		advance(t, 11*time.Second)
		if n := r.hub.Stats(); n.TailBytes != 0 || n.Streams != 0 {
			t.Errorf("%+v are left", n)
		}
	})
}
