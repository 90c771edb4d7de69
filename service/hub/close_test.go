package hub

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

func TestClose(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		r.publishMany(orders, 0, 5)
		last := r.bus.close(orders)
		expect(t, s.frames(5), numbers(0, 5))
		s.caughtUpThenClosed(last)

		// While it is closed: with a position the rest and the end, without one it
		// waits for the reopening.
		middle := backlog.Position{Epoch: last.Epoch, Sequence: 3}
		for _, resident := range []bool{true, false} {
			if !resident {
				s.sub.Close()
				advance(t, 11*time.Second)
				if n := r.hub.Stats().Streams; n != 0 {
					t.Fatalf("%d streams linger", n)
				}
			}
			again := r.subscribe(orders, After(middle))
			if got := again.subscribed; !got.Resumed || got.Head != last || got.Oldest != 1 {
				t.Errorf("Subscribed %+v", got)
			}
			again.caughtUpThenClosed(last)
			expect(t, again.payloads, numbers(3, 2))
			again.sub.Close()
		}
		waiting := r.subscribe(orders, Oldest())
		if got := waiting.subscribed; got.Head != last || got.ResumeAfter != (backlog.Position{}) || got.Oldest != 6 {
			t.Errorf("Subscribed %+v", got)
		}
		beginning := r.subscribe(orders, After(backlog.Position{}))
		if g := beginning.gap(GapEpochChanged); g.ResumeAfter != (backlog.Position{}) {
			t.Errorf("gap %+v", g)
		}
		beginning.caughtUp()

		r.publishMany(orders, 100, 3)
		expect(t, waiting.frames(3), numbers(100, 3))
		expect(t, beginning.frames(3), numbers(100, 3))
		late := r.subscribe(orders, After(middle))
		late.gap(GapEpochChanged)
		expect(t, late.frames(3), numbers(100, 3))
	})
}

func (r *reader) caughtUpThenClosed(last backlog.Position) {
	r.t.Helper()
	r.until("the end", func() bool {
		if len(r.notices) == 0 {
			return false
		}
		_, ok := r.notices[len(r.notices)-1].(Closed)
		return ok
	})
	if _, ok := r.notices[0].(CaughtUp); !ok || len(r.notices) != 2 {
		r.t.Errorf("notices %+v", r.notices)
	}
	if got := r.notices[1].(Closed).Last; got != last {
		r.t.Errorf("closed after %s, want %s", got, last)
	}
}

// The close comes after everything before it, however the announcements arrive:
// as pointers, in disorder, or only as a reopened stream.
func TestCloseAfterUnreadFrames(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		for _, order := range []string{"in order", "shuffled", "shuffled", "shuffled"} {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				s := r.subscribe(orders, Oldest())
				s.caughtUp()
				r.bus.hold()
				r.bus.publish(orders, "0")
				r.bus.publishPointer(orders, "1")
				r.bus.publishPointer(orders, "2")
				last := r.bus.close(orders)
				if reopened {
					r.publishMany(orders, 100, 2)
				}
				// The frames of the first numbering were known before it ended.
				r.bus.release(order == "shuffled")
				s.until("frames or the end", func() bool { return len(s.payloads) == 3 })
				expect(t, s.payloads, numbers(0, 3))
				switch n := s.notice().(type) {
				case Closed:
					if n.Last != last {
						t.Errorf("closed after %s, want %s", n.Last, last)
					}
				case Gap:
					if !reopened || n.Reason != GapEpochChanged || n.Requested != last {
						t.Errorf("gap %+v", n)
					}
					expect(t, s.frames(5)[3:], numbers(100, 2))
				default:
					t.Errorf("notice %+v", n)
				}
			})
		}
	}
}

// A subscription that finds another numbering when the listener is back gets
// what is left of its own, then a Gap, then the new one.
func TestReopenedWhileNotListening(t *testing.T) {
	for _, parked := range []bool{true, false} {
		bubble(t, Config{TailFrames: 8, PageFrames: 5}, func(t *testing.T, r *rig) {
			r.publishMany(orders, 0, 20)
			s := r.subscribe(orders, Oldest())
			if parked {
				s.caughtUp()
			}
			r.bus.kill()
			r.publishMany(orders, 20, 30)
			last := r.bus.close(orders)
			r.publishMany(orders, 100, 20)
			r.bus.listen()
			expect(t, s.frames(50), numbers(0, 50))
			g, ok := s.lastGap()
			if !ok || g.Reason != GapEpochChanged || g.Requested != last || g.ResumeAfter.Sequence != 0 {
				t.Errorf("gap %+v", g)
			}
			expect(t, s.frames(70)[50:], numbers(100, 20))
		})
	}
}

// lastGap reads up to a Gap.
func (r *reader) lastGap() (g Gap, ok bool) {
	r.t.Helper()
	r.until("a gap", func() bool {
		if n := len(r.notices); n > 0 {
			g, ok = r.notices[n-1].(Gap)
		}
		return ok
	})
	return g, ok
}

// What is left of a replaced numbering may be gone; then there is only the Gap.
func TestReplacedAndForgotten(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 5)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.kill()
		r.publishMany(orders, 5, 5)
		r.store.remove(orders)
		r.publishMany(orders, 100, 2)
		r.bus.listen()
		s.gap(GapEpochChanged)
		s.caughtUp()
		expect(t, s.payloads[5:], numbers(100, 2))
	})
}

// Closed and opened again several times while nobody listened, the last time
// left closed: every subscription ends or waits where it should.
func TestClosedWhileNotListening(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.kill()
		r.bus.close(orders)
		r.publishMany(orders, 10, 3)
		last := r.bus.close(orders)
		r.bus.listen()
		s.gap(GapEpochChanged)
		s.caughtUp()
		expect(t, s.payloads[3:], numbers(10, 3))
		if got := s.closed(); got != last {
			t.Errorf("closed after %s, want %s", got, last)
		}
		waiting := r.subscribe(orders, Oldest())
		waiting.caughtUp()
		r.bus.kill()
		r.publishMany(orders, 20, 2)
		r.bus.close(orders)
		r.bus.listen()
		// It was the only numbering meanwhile: nothing was missed.
		expect(t, waiting.frames(2), numbers(20, 2))
		waiting.closed()
	})
}

// A stream that did not exist began, was closed, began again and was closed
// again, all while nobody listened: the first numbering is not passed over in
// silence.
func TestTwoNumberingsThatNobodySaw(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.kill()
		r.publishMany(orders, 0, 3)
		r.bus.close(orders)
		r.publishMany(orders, 100, 2)
		r.bus.close(orders)
		r.bus.listen()
		s.gap(GapEpochChanged)
		s.caughtUp()
		expect(t, s.frames(2), numbers(100, 2))
		s.closed()
	})
}

// A read that is in flight when the close is announced tells nothing new of the
// numbering: it must not bring it back.
func TestReadThatTheCloseOvertakes(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 5)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.store.after = func(string) {
			r.store.after = nil
			r.bus.close(orders)
		}
		r.bus.sinkHint()
		s.closed()
		synctest.Wait()
		waiting := r.subscribe(orders, Oldest())
		waiting.caughtUp()
		waiting.silent()
		r.publishMany(orders, 100, 2)
		expect(t, waiting.frames(2), numbers(100, 2))
	})
}

// A whole numbering came and went before a subscription that waited for the
// stream could see it: it is told.
func TestNumberingThatNobodySaw(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.kill()
		r.publishMany(orders, 0, 3)
		r.bus.close(orders)
		r.publishMany(orders, 100, 2)
		r.bus.listen()
		if g := s.gap(GapEpochChanged); g.Requested != (backlog.Position{}) || g.ResumeAfter.Sequence != 0 || g.Head != r.store.head(orders) {
			t.Errorf("gap %+v", g)
		}
		s.caughtUp()
		expect(t, s.frames(2), numbers(100, 2))
	})
}

// The same while announcements came, late: its frames are read and delivered.
func TestNumberingThatWasAnnouncedLate(t *testing.T) {
	bubble(t, Config{TailFrames: 4}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.bus.hold()
		r.publishMany(orders, 0, 30)
		last := r.bus.close(orders)
		r.publishMany(orders, 100, 2)
		r.bus.release(false)
		expect(t, s.frames(30), numbers(0, 30))
		if got := s.closed(); got != last {
			t.Errorf("closed after %s, want %s", got, last)
		}
	})
}

// A waiting subscription outlives the removal of the closed stream.
func TestRemovedWhileWaiting(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 3)
		r.bus.close(orders)
		s := r.subscribe(orders, Oldest())
		s.caughtUp()
		r.store.remove(orders)
		advance(t, 31*time.Second)
		synctest.Wait()
		r.publishMany(orders, 10, 2)
		expect(t, s.frames(2), numbers(10, 2))
		again := r.subscribe(orders, After(backlog.Position{}))
		if !again.subscribed.Resumed {
			t.Errorf("0-0 of a stream that was never closed was refused")
		}
	})
}

// A waiting subscription gets a numbering that began with more than a tail
// holds, from its first frame.
func TestBurstIntoAWaitingStream(t *testing.T) {
	bubble(t, Config{TailFrames: 10}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.bus.hold()
		r.publishMany(orders, 0, 200)
		r.bus.release(false)
		expect(t, s.frames(200), numbers(0, 200))
	})
}

// Many numberings one after the other, each seen whole.
func TestReopeningAgainAndAgain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Oldest())
		for i := range 50 {
			s.caughtUp()
			for j := range 3 {
				r.bus.publish(orders, fmt.Sprint(i*3+j))
			}
			r.bus.close(orders)
			expect(t, s.frames(3), numbers(i*3, 3))
			s.closed()
			s.sub.Close()
			s = r.subscribe(orders, Oldest())
		}
		if n := r.hub.Subscribers(orders); n != 1 {
			t.Errorf("%d subscribers", n)
		}
	})
}
