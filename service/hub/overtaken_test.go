package hub

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// overtakingReads are reads that show what is not announced yet. Each returns what
// has to be called before the test ends.
var overtakingReads = map[string]func(r *rig, name backlog.StreamName) (after func()){
	"a hint": func(r *rig, _ backlog.StreamName) func() {
		r.bus.sinkHint()
		return func() {}
	},
	"the re-read": func(*rig, backlog.StreamName) func() {
		<-time.After(10 * time.Second)
		return func() {}
	},
	"a load for a new subscription": func(r *rig, name backlog.StreamName) func() {
		done := make(chan *reader, 1)
		go func() {
			defer close(done)
			done <- r.subscribe(name, After(backlog.Position{Epoch: 1, Sequence: 7777}))
		}()
		return func() {
			for s := range done {
				s.notice()
			}
		}
	},
}

// Symptom: a subscription got a durable frame before an ephemeral one that its
// publisher had sent first. Cause: the durable one was read before either of them
// was announced. Whatever has the stream read, a running stream and one that begins,
// with what follows announced in one piece or bit by bit, carried or by pointers:
// the order is that of the commits, and nobody waits longer than for the bus.
func TestReadOvertakesAnnouncements(t *testing.T) {
	for what, read := range overtakingReads {
		for _, begun := range []bool{true, false} {
			for _, pieces := range []bool{false, true} {
				for _, closed := range []bool{false, true} {
					t.Run(fmt.Sprint(what, begun, pieces, closed), func(t *testing.T) {
						bubble(t, Config{ReReadInterval: 10 * time.Second}, func(t *testing.T, r *rig) {
							if begun {
								r.publishMany(orders, 1000, 3)
								r.ephemeralMany(orders, 1000, 1)
							}
							s := r.subscribe(orders, Live())
							s.caughtUp()
							s.silent()
							r.bus.hold()
							r.ephemeralMany(orders, 1, 1)
							want := append([]string{"e1"}, r.mixedMany(orders, 0, 25)...)
							if closed {
								r.bus.close(orders)
							}
							after := read(r, orders)
							synctest.Wait()
							s.silent()
							began := time.Now()
							for i := 0; pieces && i < 20; i++ {
								r.bus.releaseFirst(1)
								synctest.Wait()
							}
							r.bus.release(false)
							s.until("all", func() bool { return len(s.all) == len(want) })
							expect(t, s.all, want)
							if closed {
								s.closed()
							} else {
								s.silent()
							}
							if d := time.Since(began); d > 0 {
								t.Errorf("it took %s", d)
							}
							after()
						})
					})
				}
			}
		}
	}
}

// An announcement may really be lost. What was read is then delivered after the
// grace, which needs no other read to come, and after a gap, because ephemeral
// frames may have been lost with it. A stream that carries none waits for nothing.
func TestReadOvertakesLostAnnouncements(t *testing.T) {
	for _, marked := range []bool{true, false} {
		for _, begun := range []bool{true, false} {
			t.Run(fmt.Sprint(marked, begun), func(t *testing.T) {
				bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
					if begun {
						r.publishMany(orders, 0, 1)
						if marked {
							r.ephemeralMany(orders, 0, 1)
						}
					}
					s := r.subscribe(orders, Live())
					s.caughtUp()
					from := len(r.store.rows(orders))
					r.bus.lose(true)
					if marked {
						r.ephemeralMany(orders, 1, 1)
					}
					r.publishMany(orders, from, 5)
					r.bus.lose(false)
					before, _ := r.store.reads()
					began := time.Now()
					r.bus.sinkHint()
					synctest.Wait()
					reads := 1
					if marked {
						s.silent()
						s.gap(GapEphemeralMaybeMissed)
						reads = 2
					}
					expect(t, s.frames(5), numbers(from, 5))
					if d := time.Since(began); marked != (d >= announceGrace) || d > announceGrace+2*leftOutStep {
						t.Errorf("it took %s", d)
					}
					r.mixedMany(orders, 10, 10)
					s.until("what is announced", func() bool { return len(s.all) == 15 })
					advance(t, time.Minute)
					s.silent()
					if after, _ := r.store.reads(); after-before > reads+2 { // of the pointers, too
						t.Errorf("%d reads", after-before)
					}
				})
			})
		}
	}
}

func (f *fakeStore) rows(name backlog.StreamName) []backlog.Frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[name]; s != nil {
		return s.current.rows
	}
	return nil
}

// The announcement of a close that was read, but not of the frames before it, is
// awaited once, not once for each.
func TestLostCloseAfterLostFrames(t *testing.T) {
	bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		r.ephemeralMany(orders, 0, 1)
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.bus.hold()
		r.publishMany(orders, 0, 5)
		r.bus.close(orders)
		r.bus.sinkHint()
		synctest.Wait()
		began := time.Now()
		r.bus.releaseFirst(5)
		r.bus.queued = nil
		expect(t, s.frames(5), numbers(0, 5))
		s.silent()
		s.gap(GapEphemeralMaybeMissed)
		s.closed()
		if d := time.Since(began); d < announceGrace || d > announceGrace+2*leftOutStep {
			t.Errorf("closed after %s", d)
		}
	})
}

// Between reads, each of which shows more, none of the frames is left out for much
// longer than the grace, though the oldest of them is announced in time.
func TestEachIsLeftOutForTheGrace(t *testing.T) {
	bubble(t, Config{ReReadInterval: 50 * time.Millisecond}, func(t *testing.T, r *rig) {
		r.ephemeralMany(orders, 0, 1)
		s := r.subscribe(orders, Live())
		s.caughtUp()
		began := time.Now()
		published := make(map[string]time.Duration)
		next := 0
		r.bus.hold()
		for i := range 60 {
			published[fmt.Sprint(next)] = time.Since(began)
			r.publishMany(orders, next, 1)
			next++
			advance(t, 49*time.Millisecond)
			if i == 10 {
				r.bus.releaseFirst(10)
				r.bus.queued = nil // all others are lost
			}
			for {
				d, ok, err := s.sub.TryNext(1)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				if err := s.take(d); err != nil {
					t.Fatal(err)
				}
				if n := len(s.payloads); n > 0 && d.Notice == nil {
					if late := time.Since(began) - published[s.payloads[n-1]]; late > announceGrace+400*time.Millisecond {
						t.Fatalf("%s came after %s", s.payloads[n-1], late)
					}
				}
			}
		}
		if len(s.payloads) < 30 {
			t.Errorf("%d frames came", len(s.payloads))
		}
	})
}

// After a new listening everything that is read is delivered at once, after the gap.
func TestReadAfterANewListening(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.ephemeralMany(orders, 0, 1)
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.bus.kill()
		r.publishMany(orders, 0, 5)
		r.bus.listen()
		began := time.Now()
		s.gap(GapEphemeralMaybeMissed)
		expect(t, s.frames(5), numbers(0, 5))
		if d := time.Since(began); d > 0 {
			t.Errorf("it took %s", d)
		}
	})
}

// Symptom: a subscription was told that it may have missed ephemeral frames, and a
// second one of a pair came before the first, both published after that. Cause: what
// was announced first under the new listening had it told, before the read that
// overtook the pair had begun.
func TestReadAfterAGapThatWasToldEarly(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.ephemeralMany(orders, 0, 1)
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.store.setBefore(func(string) { <-time.After(100 * time.Millisecond) })
		r.bus.kill()
		r.bus.listen()
		r.ephemeralMany(orders, 1, 1)
		s.gap(GapEphemeralMaybeMissed)
		expect(t, s.ephemerals(1), ephemeralNumbers(1, 1))
		r.bus.hold()
		r.ephemeralMany(orders, 2, 1)
		r.publishMany(orders, 0, 1)
		began := time.Now()
		s.gap(GapEphemeralMaybeMissed)
		expect(t, s.frames(1), numbers(0, 1))
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("it took %s", d)
		}
		r.bus.release(false)
		expect(t, s.ephemerals(2), ephemeralNumbers(1, 2))
	})
}

// A load brings the newest frames only, which may all be after those that are
// announced: then these are paged, in order all the same, from the beginning of a
// stream, too.
func TestLoadBeyondAnnouncements(t *testing.T) {
	for _, begun := range []bool{true, false} {
		bubble(t, Config{TailBytes: 16 << 10}, func(t *testing.T, r *rig) {
			if begun {
				r.ephemeralMany(orders, 0, 1)
			}
			s := r.subscribe(orders, Live())
			s.caughtUp()
			r.bus.hold()
			var want []string
			for i := range 40 {
				payload := fmt.Sprint(i, strings.Repeat("x", 3000))
				r.bus.publishEphemeral(orders, fmt.Sprint("e", i))
				r.bus.publishPointer(orders, payload)
				want = append(want, fmt.Sprint("e", i), payload)
			}
			before, _ := r.store.reads()
			r.bus.sinkHint()
			synctest.Wait()
			s.silent()
			for n := 4; n <= len(want); n += 4 {
				r.bus.releaseFirst(4)
				s.until("what is announced", func() bool { return len(s.all) >= n })
				expect(t, s.all, want[:n])
				s.silent()
			}
			if after, _ := r.store.reads(); after-before > 2*40 {
				t.Errorf("%d loads", after-before)
			}
			if s.gaps() != 0 {
				t.Errorf("%d gaps", s.gaps())
			}
		})
	}
}

// The same where what is announced came before the load, and nothing comes after it.
func TestFirstLoadBeyondAnnouncements(t *testing.T) {
	bubble(t, Config{TailBytes: 16 << 10, ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.bus.hold()
		r.ephemeralMany(orders, 0, 1)
		for i := range 40 {
			r.bus.publishPointer(orders, fmt.Sprint(i, strings.Repeat("x", 3000)))
		}
		began := time.Now()
		r.bus.releaseFirst(3)
		s.frames(2)
		s.silent()
		if d := time.Since(began); d > 0 {
			t.Errorf("it took %s", d)
		}
		r.bus.release(false)
		s.frames(40)
		if len(s.all) != 41 || s.all[0] != "e0" || s.gaps() != 0 {
			t.Errorf("%d frames, %d gaps", len(s.all), s.gaps())
		}
	})
}

// A busy stream of both kinds whose durable frames are announced by pointers: each
// read serves what was announced meanwhile, and what it shows beyond does not have
// the stream read again and again.
func TestBusyStreamOfPointers(t *testing.T) {
	for _, payloadBytes := range []int{10, 3000} {
		t.Run(fmt.Sprint(payloadBytes), func(t *testing.T) {
			bubble(t, Config{TailBytes: 64 << 10}, func(t *testing.T, r *rig) {
				r.ephemeralMany(orders, 0, 1)
				s := r.subscribe(orders, Live())
				s.caughtUp()
				var next atomic.Int64
				var want []string
				publish := func(n int) {
					for range n {
						i := next.Add(1)
						payload := fmt.Sprint(i, strings.Repeat("x", payloadBytes))
						r.bus.publishEphemeral(orders, fmt.Sprint("e", i))
						r.bus.publishPointer(orders, payload)
						want = append(want, fmt.Sprint("e", i), payload)
					}
				}
				// There is never a moment at which everything is announced.
				r.bus.hold()
				before, pagesBefore := r.store.reads()
				const rounds = 300
				for i := range rounds {
					publish(2)
					if i%20 == 0 {
						r.bus.sinkHint()
					}
					advance(t, 10*time.Millisecond)
					r.bus.releaseFirst(max(0, len(r.bus.queued)-10))
					synctest.Wait()
					for {
						d, ok, err := s.sub.TryNext(messageBytes)
						if err != nil {
							t.Fatal(err)
						}
						if !ok {
							break
						}
						if err := s.take(d); err != nil {
							t.Fatal(err)
						}
					}
				}
				if n := len(want) - len(s.all); n > 10 {
					t.Errorf("%d frames behind", n)
				}
				r.bus.release(false)
				s.until("all", func() bool { return len(s.all) == len(want) })
				expect(t, s.all, want)
				loads, pages := r.store.reads()
				if n := loads - before; n > 3*rounds {
					t.Errorf("%d loads for %d rounds", n, rounds)
				}
				if n := pages - pagesBefore; n > 0 {
					t.Errorf("%d pages", n)
				}
				if s.gaps() != 0 {
					t.Errorf("%d gaps", s.gaps())
				}
				advance(t, time.Second)
				synctest.Wait()
				quiet, _ := r.store.reads()
				advance(t, 5*time.Second)
				if after, _ := r.store.reads(); after != quiet {
					t.Errorf("%d reads of a quiet stream", after-quiet)
				}
			})
		})
	}
}
