package hub

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// overtakenSubscribe subscribes after sequence 43 of 45, of which the tail has 40:
// the announcements of an ephemeral frame and of the last five are on their way.
func (r *rig) overtakenSubscribe(t *testing.T) (running *reader, subscribed chan error, sub func() *reader) {
	t.Helper()
	r.publishMany(orders, 0, 40)
	r.ephemeralMany(orders, 0, 1)
	running = r.subscribe(orders, Live())
	running.caughtUp()
	r.bus.hold()
	r.ephemeralMany(orders, 1, 1)
	r.publishMany(orders, 40, 5)
	position := r.store.head(orders)
	position.Sequence = 43
	subscribed = make(chan error, 1)
	var got *Subscription
	var placed Subscribed
	go func() {
		var err error
		got, placed, err = subscribe(t.Context(), r.hub, orders, After(position))
		subscribed <- err
	}()
	synctest.Wait()
	if len(subscribed) > 0 {
		t.Fatalf("it was answered before the announcements: %v", <-subscribed)
	}
	return running, subscribed, func() *reader {
		r.t.Cleanup(got.Close)
		return &reader{rig: r, name: orders, sub: got, subscribed: placed, position: placed.ResumeAfter}
	}
}

// A subscription that waited for announcements was placed by what had been judged
// before a failover: the server that took over had lost those frames and gave their
// numbers to others, and the client was told that it had been resumed.
func TestFailoverWhileAnnouncementsAreAwaited(t *testing.T) {
	bubble(t, Config{TailFrames: 10, ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		_, subscribed, sub := r.overtakenSubscribe(t)
		r.bus.queued = nil
		r.bus.kill()
		r.store.restart()
		r.store.lose(orders, 5)
		r.bus.release(false)
		r.bus.listen()
		if err := <-subscribed; err != nil {
			t.Fatal(err)
		}
		r.publishMany(orders, 100, 5)
		s := sub()
		if s.subscribed.Resumed {
			t.Errorf("%+v: the position is of lost frames", s.subscribed)
		}
		s.gap(GapAhead)
	})
}

// It was not answered at all while there was no listening, however long that took.
func TestOutageWhileAnnouncementsAreAwaited(t *testing.T) {
	bubble(t, Config{TailFrames: 10, ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		running, subscribed, _ := r.overtakenSubscribe(t)
		r.bus.queued = nil
		began := time.Now()
		r.bus.kill()
		if err := <-subscribed; !errors.Is(err, ErrNotListening) {
			t.Errorf("Subscribe: %v, want ErrNotListening", err)
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("it took %s", d)
		}
		r.bus.release(false)
		r.bus.listen()
		running.gap(GapEphemeralMaybeMissed)
		expect(t, running.frames(5), numbers(40, 5))
	})
}

// Where the listening is back before the wait is over, nothing is noticed of it.
func TestBlipWhileAnnouncementsAreAwaited(t *testing.T) {
	bubble(t, Config{TailFrames: 10, ReReadInterval: time.Hour}, func(t *testing.T, r *rig) {
		_, subscribed, sub := r.overtakenSubscribe(t)
		r.bus.queued = nil
		r.bus.kill()
		r.bus.release(false)
		r.bus.listen()
		if err := <-subscribed; err != nil {
			t.Fatal(err)
		}
		s := sub()
		if got := s.subscribed; !got.Resumed || got.ResumeAfter.Sequence != 43 {
			t.Errorf("%+v", got)
		}
		expect(t, s.frames(2), numbers(43, 2))
	})
}
