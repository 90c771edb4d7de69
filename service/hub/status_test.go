package hub

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// Running subscriptions are told when the listening is lost and when it is back,
// once each, wherever they are; new ones take a listening for granted.
func TestStatusNotices(t *testing.T) {
	bubble(t, Config{StatusNotices: true, TailFrames: 10}, func(t *testing.T, r *rig) {
		r.publishMany(orders, 0, 100)
		var all []*reader
		for i, name := range []backlog.StreamName{orders, orders, streamName(2), streamName(3)} {
			s := r.subscribe(name, Live())
			if i != 1 {
				s.caughtUp()
				s.silent()
			}
			all = append(all, s)
		}
		paging := r.subscribe(orders, Oldest())
		r.store.setBefore(func(what string) {
			if what == "page" {
				<-time.After(10 * time.Second)
			}
		})
		paging.silent() // asks for a page
		unread := r.subscribe(orders, Live())
		for range 3 {
			r.bus.kill()
			for _, s := range append(all, paging) {
				s.status(false)
				s.silentOr(CaughtUp{})
			}
			r.bus.listen()
			for _, s := range append(all, paging) {
				s.status(true)
				s.silent()
			}
		}
		// Of all that only the last change is told to who did not look.
		unread.status(true)
		unread.caughtUp()
		unread.silent()
		fresh := r.subscribe(orders, Live())
		fresh.caughtUp()
		fresh.silent()
		r.store.setBefore(nil)
		expect(t, paging.frames(100), numbers(0, 100))
	})
}

func (r *reader) status(listening bool) {
	r.t.Helper()
	if n, ok := r.notice().(Status); !ok || n.Listening != listening {
		r.t.Fatalf("notice %+v, want the status %v", n, listening)
	}
}

// Without being asked the hub tells no status.
func TestNoStatusNotices(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		s := r.subscribe(orders, Live())
		s.caughtUp()
		r.bus.kill()
		synctest.Wait()
		s.silent()
		r.bus.listen()
		synctest.Wait()
		s.silent()
	})
}
