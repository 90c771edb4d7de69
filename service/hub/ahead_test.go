package hub

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/fanfare-io/fanfare/backlog"
)

// takeOne takes n deliveries of one frame each, and waits after each until the hub has
// nothing to do.
func (r *reader) takeOne(n int) {
	r.t.Helper()
	for range n {
		taken := len(r.payloads)
		for tries := 0; len(r.payloads) == taken; tries++ {
			d, ok, err := r.sub.TryNext(1)
			if err == nil && ok {
				err = r.take(d)
			}
			if err != nil || tries == 10 {
				r.t.Fatalf("nothing follows %d frames: %v", len(r.payloads), err)
			}
			synctest.Wait()
		}
	}
}

func (r *rig) wantPages(n int) {
	r.t.Helper()
	if _, pages := r.store.reads(); pages != n {
		r.t.Errorf("%d pages were read, want %d", pages, n)
	}
}

// paging is a configuration under which the oldest of a thousand frames are read in
// pages of a hundred.
var paging = Config{TailFrames: 10, PageFrames: 100}

// The next page is read while a subscription takes what it has, and one page only: not
// for who takes nothing, nor what follows that page.
func TestPagesAreReadAhead(t *testing.T) {
	bubble(t, paging, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1000)
		s := r.subscribe(orders, Oldest())
		s.takeOne(50)
		r.wantPages(1)
		s.takeOne(2)
		r.wantPages(2)
		s.takeOne(48)
		r.wantPages(2)
		// It has used up a page: it takes.
		s.takeOne(1)
		r.wantPages(3)
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		r.store.setBefore(func(string) { <-gate })
		s.takeOne(199) // of the page that it has, and of the one that is there
		if d, ok, err := s.sub.TryNext(1); ok || err != nil {
			t.Errorf("%+v, %v while the store answers nothing", d, err)
		}
		open()
		expect(t, s.frames(1000), numbers(0, 1000))
		r.wantPages(10)
		s.sub.Close()
		if n := r.hub.Stats().PageBytes; n != 0 {
			t.Errorf("%d bytes of pages are left", n)
		}
	})
}

// Subscriptions at the same place share what is read ahead.
func TestPagesReadAheadAreShared(t *testing.T) {
	bubble(t, paging, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1000)
		var all []*reader
		for range 50 {
			all = append(all, r.subscribe(orders, Oldest()))
		}
		for n := 75; n < 1000; n += 75 {
			for i, s := range all {
				s.takeOne(max(0, n-i-len(s.payloads)))
			}
		}
		for _, s := range all {
			expect(t, s.frames(1000), numbers(0, 1000))
		}
		r.wantPages(10)
		if n := r.hub.Stats().PageBytes; n != 0 {
			t.Errorf("%d bytes of pages are left", n)
		}
	})
}

// Pages that are read ahead are within the bound of all pages, and the first to go: a
// page that is in use is not evicted for one, and one is for a page that is needed.
func TestPagesReadAheadAreBounded(t *testing.T) {
	const limit = 100 << 10 // two pages of 32 frames fit, three do not
	bubble(t, Config{TailFrames: 10, PageBytes: 32 << 10, MaxPageBytes: limit}, func(t *testing.T, r *rig) {
		payload := strings.Repeat("x", 1000)
		for range 900 {
			r.bus.publish(orders, payload)
		}
		bounded := func(pages int) {
			t.Helper()
			r.wantPages(pages)
			if n := r.hub.Stats().PageBytes; n > limit {
				t.Errorf("%d bytes of pages", n)
			}
		}
		a := r.subscribe(orders, Oldest())
		a.takeOne(18) // with the last of them the next page is asked for
		bounded(2)
		b := r.subscribe(orders, Last(700))
		b.takeOne(1)
		bounded(3)
		b.takeOne(25) // no room for another
		bounded(3)
		a.takeOne(14) // it still has its page
		bounded(3)
		a.takeOne(1) // but not the next
		bounded(4)
		b.takeOne(6)
		bounded(4)
		a.frames(900)
		b.frames(700)
	})
}

// A page that turns out to be larger than the room there is evicts none.
func TestPageReadAheadWithoutRoomIsGivenUp(t *testing.T) {
	bubble(t, Config{TailFrames: 10, PageBytes: 32 << 10, MaxPageBytes: 70 << 10}, func(t *testing.T, r *rig) {
		payload := strings.Repeat("x", 1000)
		for range 900 {
			r.bus.publish(orders, payload)
		}
		s := r.subscribe(orders, Oldest())
		s.takeOne(32)
		r.wantPages(2)
		s.takeOne(1)
		r.wantPages(4) // read again, and the next one
		s.frames(900)
	})
}

// What was read ahead is used only if the stream is still what it was then: a
// subscription gets what a page that is read when it comes to it would have.
func TestPagesReadAheadDoNotOutliveTheirStream(t *testing.T) {
	for _, tt := range []struct {
		name   string
		happen func(r *rig)
		reason GapReason
	}{
		{"trimmed", func(r *rig) {
			r.store.trim(orders, 20)
			r.hub.Hint()
		}, GapTrimmed},
		{"closed, and trimmed", func(r *rig) {
			r.bus.close(orders)
			r.store.trim(orders, 20)
		}, GapTrimmed},
		{"closed, and opened again", func(r *rig) {
			r.bus.close(orders)
			r.publishMany(orders, 0, 20)
			r.store.mu.Lock()
			r.store.streams[orders].retired = nil // after the grace
			r.store.mu.Unlock()
		}, GapEpochChanged},
		{"commits were lost", func(r *rig) {
			r.bus.kill()
			r.store.lose(orders, 950)
			r.bus.listen()
		}, GapAhead},
		{"commits were lost, and nobody listens", func(r *rig) {
			r.bus.kill()
			r.store.trim(orders, 20)
		}, GapTrimmed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, paging, func(t *testing.T, r *rig) {
				r.publishMany(orders, 0, 1000)
				s := r.subscribe(orders, Oldest())
				s.takeOne(60)
				r.wantPages(2)
				tt.happen(r)
				synctest.Wait()
				s.takeOne(40)
				expect(t, s.payloads, numbers(0, 100))
				if tt.name == "commits were lost, and nobody listens" {
					s.silent()
					synctest.Wait()
					r.wantPages(3)
					r.bus.listen()
				}
				s.gap(tt.reason)
				expect(t, s.payloads, numbers(0, 100))
			})
		})
	}
}

// A page ahead whose store is down is not read again and again for nobody; whoever
// comes to it does.
func TestPageAheadThatFailsIsGivenUp(t *testing.T) {
	bubble(t, paging, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1000)
		s := r.subscribe(orders, Oldest())
		s.takeOne(40)
		r.store.setFail(errors.New("down"))
		s.takeOne(60)
		r.wantPages(2)
		r.store.setFail(nil)
		expect(t, s.frames(1000), numbers(0, 1000))
		r.wantPages(11)
	})
}

// Who leaves takes what was read ahead along, and what is being read.
func TestLeavingDropsPagesReadAhead(t *testing.T) {
	bubble(t, paging, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 1000)
		a, b := r.subscribe(orders, Oldest()), r.subscribe(orders, Last(500))
		a.takeOne(60)
		gate := make(chan struct{})
		b.takeOne(40)
		r.store.setBefore(func(string) { <-gate })
		b.takeOne(20)
		a.sub.Close()
		b.sub.Close()
		close(gate)
		synctest.Wait()
		r.wantPages(4)
		if n := r.hub.Stats().PageBytes; n != 0 {
			t.Errorf("%d bytes of pages are left", n)
		}
	})
}

// Pages that nobody waits for come last, and are few.
func TestPagesReadAheadWait(t *testing.T) {
	g := newPager()
	ahead := &page{stream: &stream{}}
	if !g.pushAhead(ahead) {
		t.Fatal("refused, with nothing queued")
	}
	for i := range 3 {
		g.push(&page{stream: &stream{}, after: backlog.Position{Sequence: uint64(i)}})
	}
	if g.pushAhead(&page{stream: &stream{}}) {
		t.Error("taken, although others are waited for")
	}
	for range 3 {
		if g.take(t.Context()) == ahead {
			t.Error("one that nobody waits for came first")
		}
	}
	if g.take(t.Context()) != ahead {
		t.Error("it did not come at all")
	}
	for i := range maxAhead {
		if !g.pushAhead(&page{stream: &stream{}}) {
			t.Errorf("page %d refused", i)
		}
	}
	if g.pushAhead(&page{stream: &stream{}}) {
		t.Error("more than the bound")
	}
}
