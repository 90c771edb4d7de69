package hub

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestListeningIsReplaced(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		var all []*reader
		for i := range 20 {
			r.publishMany(streamName(i), 0, 3)
			s := r.subscribe(streamName(i), Oldest())
			s.caughtUp()
			all = append(all, s)
		}
		loads, _ := r.store.reads()
		r.bus.kill()
		for i := range all {
			r.publishMany(streamName(i), 3, 5)
		}
		r.store.restart()
		r.bus.listen()
		for i, s := range all {
			expect(t, s.frames(8), numbers(0, 8))
			r.publishMany(streamName(i), 8, 1)
			expect(t, s.frames(9), numbers(0, 9))
			s.silent()
		}
		if after, _ := r.store.reads(); after != loads+1 {
			t.Errorf("%d loads for a new listening, want 1", after-loads)
		}
	})
}

// The refresh is repeated until the store answers, and from the right server.
func TestRefreshIsRetried(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.kill()
		r.publishMany(orders, 0, 2)
		r.store.setFail(backlog.ErrUnavailable)
		r.bus.listen()
		time.AfterFunc(time.Second, func() { r.store.setFail(backlog.ErrOtherServer) })
		time.AfterFunc(2*time.Second, func() { r.store.setFail(nil) })
		expect(t, s.frames(2), numbers(0, 2))
	})
}

// Lost announcements are repaired by the next one, by the re-read when there is
// none, and by a hint.
func TestLostAnnouncements(t *testing.T) {
	lose := func(r *rig, n int) {
		r.bus.setFilter(func() int { return 0 })
		r.publishMany(orders, 0, n)
		r.bus.setFilter(nil)
	}
	t.Run("next", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			s := r.subscribe(orders, Oldest())
			lose(r, 3)
			r.publishMany(orders, 3, 1)
			expect(t, s.frames(4), numbers(0, 4))
		})
	})
	t.Run("re-read", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			lose(r, 3)
			began := time.Now()
			expect(t, s.frames(3), numbers(0, 3))
			if d := time.Since(began); d > 30*time.Second {
				t.Errorf("repaired after %s", d)
			}
		})
	})
	t.Run("hint", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			lose(r, 3)
			r.bus.sinkHint()
			began := time.Now()
			expect(t, s.frames(3), numbers(0, 3))
			if d := time.Since(began); d > 0 {
				t.Errorf("repaired after %s", d)
			}
		})
	})
}

func (b *fakeBus) sinkHint() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sink.Hint()
}

func TestHintsAreTakenOnceASecond(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.subscribe(orders, Oldest()).caughtUp()
		before, _ := r.store.reads()
		for range 100 {
			r.bus.sinkHint()
			advance(t, 50*time.Millisecond)
		}
		if after, _ := r.store.reads(); after-before < 5 || after-before > 6 {
			t.Errorf("%d refreshes for 5 s of hints", after-before)
		}
	})
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// Announcements that are wrong, though authentic, never move a position: a read
// shows what is there, and they are forgotten.
func TestWrongAnnouncements(t *testing.T) {
	var log syncBuffer
	cfg := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	bubble(t, cfg, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 5)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		head := r.store.head(orders)
		own := head.Epoch ^ r.store.origin
		at := func(kind backlog.AnnouncementKind, own, origin, sequence uint64) backlog.Announcement {
			return backlog.Announcement{
				Kind: kind, Stream: orders, OwnEpoch: own, Origin: origin, RowID: fmt.Sprint("row", sequence),
				Frame: backlog.Frame{Position: backlog.Position{Epoch: own ^ origin, Sequence: sequence}, Payload: []byte("forged")},
			}
		}
		origin := r.store.origin
		for _, a := range []backlog.Announcement{
			at(backlog.AnnouncePointer, own, origin, 6),
			at(backlog.AnnouncePointer, own, origin, backlog.MaxPositionValue),
			at(backlog.AnnounceFrame, own, origin, 7),
			at(backlog.AnnounceFrame, own, origin+1, 6),
			at(backlog.AnnounceFrame, own+1, origin, 6),
			at(backlog.AnnounceFrame, own+1, origin, 1),
			at(backlog.AnnounceFrame, own, origin, 0),
			at(backlog.AnnounceFrame, own, origin, 3),
			at(backlog.AnnounceClosed, own, origin, 4),
			at(backlog.AnnounceClosed, own, origin, 6),
			at(backlog.AnnounceClosed, own, origin+1, 5),
			at(backlog.AnnounceClosed, own+1, origin, 5),
			at(backlog.AnnounceClosed, 0, 0, 0),
			at(0, own, origin, 6),
			at(77, own+1, origin, 6),
		} {
			r.bus.forge(a)
			synctest.Wait()
			s.silent()
		}
		r.publishMany(orders, 5, 2)
		expect(t, s.frames(7), numbers(0, 7))
		s.silent()
		for _, want := range []string{"channel dropped row6", "channel dropped row7", fmt.Sprint("channel dropped row", uint64(backlog.MaxPositionValue))} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, log.String())
			}
		}
	})
}

// Pointers are read, in order with what is carried inline.
func TestPointers(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		for i := range 200 {
			if i%3 == 0 {
				r.bus.publishPointer(orders, fmt.Sprint(i))
			} else {
				r.bus.publish(orders, fmt.Sprint(i))
			}
		}
		expect(t, s.frames(200), numbers(0, 200))
		s.caughtUpOrSilent()
	})
}

// A busy stream gets back into line after a hole, instead of being read again
// and again because each read ends behind what was announced meanwhile.
func TestBusyStreamHealsAfterAHole(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		var mu sync.Mutex
		next := 0
		publish := func(string) {
			mu.Lock()
			defer mu.Unlock()
			r.publishMany(orders, next, 10)
			next += 10
		}
		r.store.setBefore(publish)
		r.store.after = publish
		before, _ := r.store.reads()
		r.bus.setFilter(func() int { return 0 })
		publish("")
		r.bus.setFilter(nil)
		for range 100 {
			publish("")
			synctest.Wait()
		}
		expect(t, s.frames(next), numbers(0, next))
		if after, _ := r.store.reads(); after-before > 2 {
			t.Errorf("%d reads for one hole", after-before)
		}
	})
}

func TestLostCommits(t *testing.T) {
	t.Run("ahead", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 7)
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			r.bus.kill()
			r.store.lose(orders, 2)
			r.bus.listen()
			if g := s.gap(GapAhead); g.Requested.Sequence != 7 || g.Head.Sequence != 5 || g.ResumeAfter.Sequence != 0 || g.Oldest != 1 {
				t.Errorf("gap %+v", g)
			}
			s.caughtUp()
			r.publishMany(orders, 5, 1)
			expect(t, s.frames(13)[7:], numbers(0, 6))
		})
	})
	t.Run("sequences reused", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 7)
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			slow := r.subscribe(orders, Oldest())
			r.bus.kill()
			r.store.lose(orders, 2)
			r.publishMany(orders, 100, 5)
			r.bus.listen()
			s.gap(GapEpochChanged)
			s.caughtUp()
			want := append(numbers(0, 5), numbers(100, 5)...)
			expect(t, s.payloads[7:], want)
			// One that had not read yet gets what the tail had, then the gap.
			slow.until("the gap", func() bool { return len(slow.notices) > 1 })
			slow.caughtUp()
			expect(t, slow.payloads, append(numbers(0, 7), want...))
		})
	})
	t.Run("a restart loses nothing", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 3)
			s := r.subscribe(orders, Oldest())
			r.bus.kill()
			r.store.restart()
			r.bus.listen()
			r.publishMany(orders, 3, 3)
			expect(t, s.frames(6), numbers(0, 6))
			resumed := r.subscribe(orders, After(backlog.Position{}))
			expect(t, resumed.frames(6), numbers(0, 6))
		})
	})
	t.Run("everything", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 3)
			s := r.subscribe(orders, Oldest())
			s.caughtUp()
			r.bus.kill()
			r.store.remove(orders)
			r.bus.listen()
			if g := s.gap(GapEpochChanged); g.ResumeAfter != (backlog.Position{}) || g.Oldest != 1 {
				t.Errorf("gap %+v", g)
			}
			s.caughtUp()
			r.publishMany(orders, 10, 2)
			expect(t, s.frames(5)[3:], numbers(10, 2))
		})
	})
}

// A slow subscription whose frames are gone is told, and goes on.
func TestTrimmedUnderASlowSubscription(t *testing.T) {
	bubble(t, Config{TailFrames: 10}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.publishMany(orders, 0, 100)
		r.store.trim(orders, 20)
		g := s.gap(GapTrimmed)
		if g.Oldest != 81 || g.ResumeAfter.Sequence != 80 {
			t.Errorf("gap %+v", g)
		}
		s.caughtUp()
		expect(t, s.payloads[len(s.payloads)-20:], numbers(80, 20))
		r.publishMany(orders, 100, 1)
		s.until("the live frame", func() bool { return s.payloads[len(s.payloads)-1] == "100" })
	})
}

// Within the grace a running subscription reads what a new one may not.
func TestRunningSubscriptionReadsWithinTheGrace(t *testing.T) {
	bubble(t, Config{TailFrames: 10, PageFrames: 8}, func(t *testing.T, r *rig) {
		r.store.backlog = 5
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.publishMany(orders, 0, 100)
		expect(t, s.frames(100), numbers(0, 100))
		fresh := r.subscribe(orders, Oldest())
		fresh.caughtUp()
		expect(t, fresh.payloads, numbers(95, 5))
	})
}

// A page whose store is down is read when it is back.
func TestPageIsRetried(t *testing.T) {
	bubble(t, Config{TailFrames: 10}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		r.publishMany(orders, 0, 50)
		r.store.setFail(backlog.ErrUnavailable)
		time.AfterFunc(3*time.Second, func() { r.store.setFail(nil) })
		expect(t, s.frames(50), numbers(0, 50))
	})
}
