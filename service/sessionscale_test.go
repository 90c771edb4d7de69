package service_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// sessionCrowd is a Session with very many subscriptions, of which it keeps next to
// nothing.
type sessionCrowd struct {
	t    testing.TB
	call fanfarev1.FanfareService_SessionClient
	// caughtUp, frames and gone are how many of each have come for each number.
	caughtUp, frames, gone []uint8
	messages               int
}

func (c *sessionCrowd) each(request func(number uint32) *fanfarev1.SessionRequest, done func(r *fanfarev1.SessionResponse) []uint8) time.Duration {
	c.t.Helper()
	began := time.Now()
	var g errgroup.Group
	g.Go(func() error {
		for number := range uint32(len(c.gone)) {
			if request == nil {
				break
			}
			if err := c.call.Send(request(number + 1)); err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error {
		for left := len(c.gone); left > 0; {
			r, err := c.call.Recv()
			if err != nil {
				return err
			}
			c.messages++
			counts := done(r)
			if counts == nil {
				continue
			}
			for _, number := range r.GetNumbers() {
				if counts[number-1]++; counts[number-1] != 1 {
					return fmt.Errorf("%v twice for %d", r, number)
				}
				left--
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		c.t.Fatal(err)
	}
	return time.Since(began)
}

func (c *sessionCrowd) subscribe(name func(i int) backlog.StreamName) time.Duration {
	return c.each(func(number uint32) *fanfarev1.SessionRequest { return subscribing(number, live(name(int(number-1)))) },
		func(r *fanfarev1.SessionResponse) []uint8 {
			if r.GetCaughtUp() != nil {
				return c.caughtUp
			}
			return nil
		})
}

func (c *sessionCrowd) takeFrames() time.Duration {
	return c.each(nil, func(r *fanfarev1.SessionResponse) []uint8 {
		if len(r.GetFrames()) > 0 {
			return c.frames
		}
		return nil
	})
}

func (c *sessionCrowd) unsubscribe() time.Duration {
	return c.each(unsubscribing, func(r *fanfarev1.SessionResponse) []uint8 {
		if r.GetUnsubscribed() != nil {
			return c.gone
		}
		return nil
	})
}

func newSessionCrowd(t testing.TB, r *servicetest.Replica, n int) *sessionCrowd {
	return &sessionCrowd{
		t: t, call: openSession(t, r.Client).call,
		caughtUp: make([]uint8, n), frames: make([]uint8, n), gone: make([]uint8, n),
	}
}

// One session carries very many subscriptions, over as many streams or of one: all are
// acknowledged, a frame reaches each, and beside what the hub has of a stream each costs
// little, which is free again when it has ended.
func TestManySubscriptionsInASession(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		n, bound := form(2000, 20_000), form(2048, 1024)
		r := servicetest.Start(t, db.URL, wholeBacklog, quickLinger)
		publish(t, r, newFrame(stream("warm", ""), "x"))
		each := func(before uint64) int { return int(int64(heapBytes()-before) / int64(n)) }
		empty := func() {
			t.Helper()
			eventually(t, "the hub is empty", func() bool { s := r.Hub.Stats(); return s.Streams == 0 && s.Subscribers == 0 })
		}

		// What grows once, whatever comes.
		warm := newSessionCrowd(t, r, n)
		warm.subscribe(func(i int) backlog.StreamName { return stream("warm", fmt.Sprint(i)) })
		warm.unsubscribe()
		empty()

		// What the hub has of a stream and of its subscription.
		name := func(i int) backlog.StreamName { return stream("crowd", fmt.Sprint(i)) }
		before := heapBytes()
		subs := make([]*hub.Subscription, n)
		for i := range subs {
			subs[i] = r.Hub.Subscribe(name(i), hub.Live())
		}
		for _, sub := range subs {
			for range 2 { // Subscribed, CaughtUp
				eventually(t, "it is handed a notice", func() bool {
					_, ok, err := sub.TryNext(1)
					if err != nil {
						t.Fatal(err)
					}
					return ok
				})
			}
		}
		streams := each(before)
		for _, sub := range subs {
			sub.Close()
		}
		clear(subs)
		subs = nil
		empty()

		for _, tt := range []struct {
			what    string
			streams int
		}{{"as many streams", n}, {"one stream", 1}} {
			own := streams
			if tt.streams == 1 {
				own = 0
			}
			of := func(i int) backlog.StreamName { s := name(i % tt.streams); s.Channel = tt.what; return s }
			crowd := newSessionCrowd(t, r, n)
			before := heapBytes()
			subscribing := crowd.subscribe(of)
			if got := r.Hub.Stats().Subscribers; got != n {
				t.Errorf("%s: %d subscriptions are counted as %d", tt.what, n, got)
			}
			cost := each(before) - own
			crowd.messages = 0
			var processor time.Duration
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			used := ownCPUTime(t)
			publishEverywhere(ctx, t, r, tt.streams, of)
			taking := crowd.takeFrames()
			processor = ownCPUTime(t) - used
			messages := crowd.messages
			leaving := crowd.unsubscribe()
			empty()
			left := each(before)
			t.Logf("%d subscriptions of %s: %d bytes each beside %d of the hub; begun in %s; a frame to each in %s and %d messages, %s of a processor with publishing and receiving; ended in %s, %d bytes each left",
				n, tt.what, cost, own, subscribing, taking, messages, processor, leaving, left)
			if cost > bound {
				t.Errorf("a subscription costs %d bytes beside its stream", cost)
			}
			const slack = 1 << 20 // of the heap as a whole
			if left*n > n*bound/8+slack {
				t.Errorf("%d bytes are left of each subscription", left)
			}
			if tt.streams == 1 && messages > n/100 {
				t.Errorf("one frame was sent in %d messages", messages)
			}
			runtime.KeepAlive(crowd)
		}
	})
}
