package listener

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fanfare-io/fanfare/backlog"
)

// unheard is a frame of a stream that nobody hears.
func unheard(sequence uint64) backlog.Announcement {
	a := frame(sequence, []byte("payload"), nil)
	a.Stream.Scope = "unheard"
	return a
}

func newHalfDeaf(t *testing.T) *offline {
	o := newOffline(t)
	o.diary.unheard = "unheard"
	return o
}

// What nobody hears is judged and counted by whoever receives it, and wakes nobody;
// what is heard of the same envelope is announced.
func TestUnheardAnnouncementsEndWhereTheyArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newHalfDeaf(t)
		for n := range uint64(5) {
			o.publish(unheard(2*n), unheard(2*n+1))
			if s := o.bus.Stats(); s.Envelopes != n+1 || s.Announcements != 2*(n+1) || s.Unheard != s.Announcements {
				t.Fatalf("stats %+v after %d envelopes", s, n+1)
			}
			if n := len(o.bus.inbox.ready); n != 0 {
				t.Fatal("somebody was woken")
			}
		}
		o.publish(unheard(1), frame(1, nil, nil), unheard(2), frame(2, nil, nil))
		o.publish(unheard(3))
		o.publish(frame(3, nil, nil))
		synctest.Wait()
		if got, want := o.diary.story(), "d1 d2 d3"; got != want {
			t.Errorf("the sink was told %s, want %s", got, want)
		}
		if s := o.bus.Stats(); s.Envelopes != 8 || s.Announcements != 16 || s.Unheard != 13 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Whether somebody hears it or not, what is repeated, forged or a hint is found.
func TestUnheardIsJudgedLikeWhatIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newHalfDeaf(t)
		elapse(reloadInterval) // so that the keys may be loaded
		payload := o.payloads(unheard(1))[0]
		o.notify(payload)
		o.notify(payload)
		o.notify(strings.Replace(payload, "D\t", "C\t", 1))
		synctest.Wait()
		if got := o.diary.story(); got != "hint" {
			t.Errorf("the sink was told %q", got)
		}
		if s := o.bus.Stats(); s.Envelopes != 1 || s.Replayed != 1 || s.Forged != 1 {
			t.Errorf("stats %+v", s)
		}
		elapse(hintInterval)
		for _, entry := range []string{"H", "Z\twhat nobody knows"} {
			o.notify(o.raw(entry))
			elapse(hintInterval)
			if got := o.diary.story(); !strings.Contains(got, "hint") && !strings.Contains(got, "missed") {
				t.Errorf("of %q the sink was told %q", entry, got)
			}
		}
	})
}

// While the sink is stuck, or keys are loaded, nothing is judged before what came
// first.
func TestUnheardWaitsForWhatCameBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newHalfDeaf(t)
		o.diary.stuck = make(chan struct{})
		o.publish(frame(1, nil, nil))
		synctest.Wait()
		for n := range uint64(10) {
			o.publish(unheard(n))
			o.publish(frame(n+2, nil, nil))
		}
		if s := o.bus.Stats(); s.Unheard != 0 {
			t.Errorf("stats %+v while the sink is stuck", s)
		}
		close(o.diary.stuck)
		synctest.Wait()
		var want []string
		for n := range 11 {
			want = append(want, fmt.Sprint("d", n+1))
		}
		if got := o.diary.story(); got != strings.Join(want, " ") {
			t.Errorf("the sink was told %s", got)
		}
		if s := o.bus.Stats(); s.Unheard != 10 || s.Replayed != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// An entry whose parts are interrupted by what nobody hears is as lost as any, and
// whole ones of both kinds are put together.
func TestUnheardBetweenParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newHalfDeaf(t)
		large := frame(1, make([]byte, 3*maxEnvelopeBytes), nil)
		for _, p := range o.payloads(large) {
			o.notify(p)
		}
		synctest.Wait()
		if got := o.diary.story(); got != "d1" {
			t.Errorf("the sink was told %q", got)
		}
		o.notify(o.payloads(large)[0])
		synctest.Wait()
		o.publish(unheard(1))
		synctest.Wait()
		if got := o.diary.story(); got != "missed" {
			t.Errorf("the sink was told %q", got)
		}
		if s := o.bus.Stats(); s.BrokenEntries != 1 || s.Unheard != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Judging and leaving out what nobody hears leaves nothing to collect: it happens for
// every frame of the schema, on every replica.
func TestUnheardLeavesNoGarbage(t *testing.T) {
	a := NewAuthenticator()
	a.SetKeys([]Key{testKey})
	e := Envelope{Origin: 5, PID: 1, Transaction: 100}
	for n := range uint64(20) {
		e.Announcements = append(e.Announcements, unheard(n))
	}
	n := Notification{PID: 1, Payload: EncodeEnvelope(testKey, e)}
	judge := func() {
		clear(a.marks)
		got, err := a.open(n, func(backlog.StreamName) bool { return false })
		if err != nil || got.Unheard != 20 || got.Announcements != nil {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	judge()
	if allocations := testing.AllocsPerRun(100, judge); allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}
