package hub

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// setBounds changes what new subscriptions may replay of all streams, as a policy
// does, and lets the bus say so.
func (r *rig) setBounds(backlogFrames uint64, age time.Duration) {
	r.t.Helper()
	r.store.setBounds(backlogFrames, age)
	r.bus.sinkHint()
	<-time.After(hintPause) // in the bubble: hints a moment apart are taken together
	synctest.Wait()
}

func (f *fakeStore) setBounds(backlogFrames uint64, age time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backlog, f.age = backlogFrames, age
}

// Whatever of a stream is in memory, new subscriptions are bound by the policy
// that a hint told of, narrower or wider than before; those that are there go on.
func TestChangedBacklog(t *testing.T) {
	for what, cfg := range map[string]Config{
		"all in memory":      {},
		"a part in memory":   {TailFrames: 6},
		"the head in memory": {TailFrames: 1},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, cfg, func(t *testing.T, r *rig) {
				r.publishMany(orders, 0, 20)
				running := r.subscribe(orders, Oldest())
				running.caughtUp()
				published := 20
				for _, n := range []int{5, 20, 0, 12, 1000, 3, 4} {
					r.setBounds(uint64(n), 0)
					r.expectReplay(orders, published-min(n, published), published)
					// It holds for what is published from then on, too.
					r.publishMany(orders, published, 2)
					published += 2
					r.expectReplay(orders, published-min(n, published), published)
				}
				expect(t, running.frames(published), numbers(0, published))
				running.silent()
			})
		})
	}
}

// expectReplay checks every kind of start on an open stream of which the frames
// after the sequence base may be replayed, up to the sequence head.
func (r *rig) expectReplay(name backlog.StreamName, base, head int) {
	r.t.Helper()
	newest := r.store.head(name)
	for _, start := range []struct {
		what  string
		start Start
		after int
	}{
		{"oldest", Oldest(), base},
		{"live", Live(), head},
		{"last 4", Last(4), max(base, head-4)},
		{"last 1000", Last(1000), base},
	} {
		s := r.subscribe(name, start.start)
		if got := s.subscribed; got.Oldest != uint64(base)+1 || got.ResumeAfter.Sequence != uint64(start.after) || got.Head != newest {
			r.t.Errorf("%s with %d to %d: %+v", start.what, base+1, head, got)
		}
		s.caughtUp()
		if got, want := fmt.Sprint(s.payloads), fmt.Sprint(numbers(start.after, head-start.after)); got != want {
			r.t.Errorf("%s with %d to %d: got %s, want %s", start.what, base+1, head, got, want)
		}
		s.sub.Close()
	}
	for sequence := 1; sequence <= head; sequence++ {
		r.expectResume(name, backlog.Position{Epoch: newest.Epoch, Sequence: uint64(sequence)}, base, head)
	}
}

// expectResume checks the start after a position.
func (r *rig) expectResume(name backlog.StreamName, p backlog.Position, base, head int) {
	r.t.Helper()
	s := r.subscribe(name, After(p))
	defer s.sub.Close()
	from := int(p.Sequence)
	if resumed := from >= base; s.subscribed.Resumed != resumed {
		r.t.Errorf("resumed after %d with %d to %d: %v", from, base+1, head, !resumed)
	} else if !resumed {
		if g := s.gap(GapTrimmed); g.Oldest != uint64(base)+1 {
			r.t.Errorf("gap after %d with %d to %d: %+v", from, base+1, head, g)
		}
		from = base
	}
	s.caughtUp()
	if got, want := fmt.Sprint(s.payloads), fmt.Sprint(numbers(from, head-from)); got != want {
		r.t.Errorf("after %s with %d to %d: got %s, want %s", p, base+1, head, got, want)
	}
}

func TestChangedRetentionAge(t *testing.T) {
	for what, cfg := range map[string]Config{"all in memory": {}, "a part in memory": {TailFrames: 6}} {
		t.Run(what, func(t *testing.T) {
			bubble(t, cfg, func(t *testing.T, r *rig) {
				for i := range 4 { // 5 frames each of 3, 2, 1 and 0 hours ago
					if i > 0 {
						advance(t, time.Hour)
					}
					r.publishMany(orders, 5*i, 5)
				}
				r.subscribe(orders, Oldest()).caughtUp()
				for _, c := range []struct {
					age  time.Duration
					base int
				}{{90 * time.Minute, 10}, {0, 0}, {30 * time.Minute, 15}, {150 * time.Minute, 5}, {4 * time.Hour, 0}, {time.Minute, 15}} {
					r.setBounds(1000, c.age)
					r.expectReplay(orders, c.base, 20)
				}
			})
		})
	}
}

// A closed stream's frames may be replayed by who resumes, within the bounds that
// hold at the time.
func TestChangedBoundsOfAClosedStream(t *testing.T) {
	bubble(t, Config{Linger: time.Hour}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 20)
		s := r.subscribe(orders, Oldest())
		s.frames(20)
		last := r.bus.close(orders)
		s.until("the end", func() bool { return len(s.notices) == 2 })
		waiting := r.subscribe(orders, Live())
		for _, n := range []int{5, 20, 0, 12, 3} {
			r.setBounds(uint64(n), 0)
			loads, _ := r.store.reads()
			for sequence := range last.Sequence {
				from := int(sequence) + 1
				p := backlog.Position{Epoch: last.Epoch, Sequence: uint64(from)}
				again := r.subscribe(orders, After(p))
				if base := 20 - n; from < base {
					again.gap(GapTrimmed)
					continue
				} else if got := again.subscribed; !got.Resumed || got.Oldest != uint64(base)+1 {
					t.Errorf("after %d with a backlog of %d: %+v", from, n, got)
				}
				again.frames(20 - from)
				expect(t, again.payloads, numbers(from, 20-from))
				again.until("the end", func() bool { return len(again.notices) == 2 })
			}
			// What may be resumed is in memory.
			if after, _ := r.store.reads(); after-loads != 20-n-1 && n < 20 {
				t.Errorf("%d loads with a backlog of %d, want one for each of %d gaps", after-loads, n, 20-n-1)
			}
		}
		waiting.caughtUp()
		waiting.silent()
	})
}

// A read that began before a policy was set and ends after one that began later
// must not bring the old bounds back.
func TestReadThatAHintOvertakes(t *testing.T) {
	bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 20)
		r.subscribe(orders, Oldest()).caughtUp()
		r.store.trim(orders, 15) // so that what precedes has to be looked up
		var held atomic.Bool
		r.store.after = func(string) {
			if !held.Swap(true) { // the loader's, with its result
				r.setBounds(3, 0)
			}
		}
		r.subscribe(orders, After(backlog.Position{Epoch: 1, Sequence: 2})).notice()
		synctest.Wait()
		r.expectReplay(orders, 17, 20)
	})
}

// A hint that comes during a stream's first load is not lost: the load may have
// read what was before.
func TestHintDuringTheFirstLoad(t *testing.T) {
	bubble(t, Config{ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 20)
		var held atomic.Bool
		r.store.after = func(string) {
			if !held.Swap(true) {
				r.setBounds(3, 0)
			}
		}
		r.subscribe(orders, Oldest()).caughtUp()
		synctest.Wait()
		r.expectReplay(orders, 17, 20)
	})
}
