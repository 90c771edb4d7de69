package service

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
)

// sendTimes are when a call was sent something, from a moment on.
type sendTimes struct {
	mu sync.Mutex
	at []time.Time
}

// watch notes when a call is sent something, whose client takes everything.
func watch(call *fakeCall) *sendTimes {
	call.stream.takeEverything()
	synctest.Wait()
	s := &sendTimes{at: []time.Time{time.Now()}}
	call.stream.eachSend(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.at = append(s.at, time.Now())
	})
	return s
}

// gaps calls check with each time between two sends, the last up to now.
func (s *sendTimes) gaps(check func(gap time.Duration, at time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.at[0]
	for _, at := range append(s.at[1:len(s.at):len(s.at)], time.Now()) {
		check(at.Sub(last), at)
		last = at
	}
}

func (b *outbox) outlets() []*outlet {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*outlet(nil), b.all...)
}

// Symptom: 100,000 idle subscriptions used a fifth of a processor. Cause: each had a
// timer of its own, and its heartbeats a turn, a message's way through grpc and a
// write of their own. Those of a connection come together, none later than it must
// or much earlier, and none has a timer.
func TestHeartbeatsOfAConnectionComeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, beats = 300, 10
		w := newDeliveryWorld(t, nil)
		beat, early := w.server.cfg.Heartbeat, w.server.early()
		c := newConnection(noConn{})
		var sent []*sendTimes
		for i := range calls {
			sent = append(sent, watch(w.subscribe(backlog.StreamName{Channel: "idle", Scope: fmt.Sprint(i)}, c)))
			elapse(rand.N(2 * beat / calls))
		}
		elapse(beats * beat)
		moments := map[time.Time]bool{}
		total := 0
		for _, s := range sent {
			end := time.Now()
			s.gaps(func(gap time.Duration, at time.Time) {
				if gap > beat || gap < beat-early && at != end {
					t.Errorf("a heartbeat after %s", gap)
				}
				moments[at] = true
			})
			total += len(s.at) - 1
		}
		if total < calls*beats {
			t.Errorf("%d heartbeats of %d calls in %d times", total, calls, beats)
		}
		if most := (beats + 2) * int(beat/early); len(moments) > most {
			t.Errorf("they came at %d moments, want at most %d", len(moments), most)
		}
		for _, d := range c.outbox.outlets() {
			if d.timer != nil {
				t.Fatal("an idle call has a timer")
			}
		}
	})
}

// Whatever calls come and go, and whatever they are sent in between, each hears
// something at least once in the time of a heartbeat, and a connection keeps nothing of
// calls that have ended.
func TestHeartbeatsAreNeverLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		beat := w.server.cfg.Heartbeat
		connections := []*connection{newConnection(noConn{}), newConnection(noConn{}), newConnection(noConn{})}
		type running struct {
			call *fakeCall
			sent *sendTimes
		}
		var all []running
		end := func(i int) {
			r := all[i]
			r.sent.gaps(func(gap time.Duration, _ time.Time) {
				if gap > beat {
					t.Errorf("a call heard nothing for %s", gap)
				}
			})
			r.call.cancel()
			synctest.Wait()
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
		}
		for range 2000 {
			elapse(rand.N(beat / 10))
			switch s := (backlog.StreamName{Channel: "any", Scope: fmt.Sprint(rand.N(10))}); rand.N(4) {
			case 0:
				call := w.subscribe(s, connections[rand.N(len(connections))])
				all = append(all, running{call, watch(call)})
			case 1:
				if len(all) > 0 {
					end(rand.N(len(all)))
				}
			default:
				w.publish(s, 1)
			}
		}
		for len(all) > 0 {
			end(0)
		}
		for _, c := range connections {
			if n := len(c.outbox.outlets()); n != 0 {
				t.Errorf("a connection keeps %d calls", n)
			}
		}
		elapse(3 * beat) // no timer looks at nothing
	})
}
