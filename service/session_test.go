package service_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// overSession returns a client of a replica whose subscriptions share a Session.
func overSession(t *testing.T, r *servicetest.Replica) fanfarev1.FanfareServiceClient {
	t.Helper()
	s := servicetest.NewSessions(r.Client)
	t.Cleanup(s.Close)
	return s
}

// Subscriptions of one session begin where each of them asked, and get what follows.
func TestStartsInASession(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s, other := stream("starts", ""), stream("other", "")
		positions := publishMany(t, w.a, s, 100, numbered)
		client := overSession(t, w.b)
		last := &fanfarev1.SubscribeRequest{Channel: s.Channel, Start: &fanfarev1.SubscribeRequest_Last{Last: 3}}
		readers := map[string]*reader{}
		for _, tt := range []struct {
			name    string
			request *fanfarev1.SubscribeRequest
			first   int
		}{
			{"oldest", fromOldest(s), 0}, {"live", live(s), 100}, {"after", after(s, positions[41]), 42}, {"last", last, 97},
		} {
			r := subscribeWith(t, client, tt.request)
			for i, f := range r.take(100 - tt.first) {
				if got := string(f.GetPayload()); got != numbered(tt.first+i) {
					t.Fatalf("%s: frame %d is %q", tt.name, i, got)
				}
			}
			r.untilCaughtUp()
			readers[tt.name] = r
		}
		r := subscribeWith(t, client, live(other))
		r.silent("other", func() { publish(t, w.a, newFrame(other, "other")) })
		publish(t, w.a, newFrame(s, "more"))
		for name, r := range readers {
			if got := r.payloads(1)[0]; got != "more" {
				t.Errorf("%s: the next frame is %q", name, got)
			}
		}
	})
}

// Every guarantee holds for subscriptions that share sessions, with credit: some come
// and go all the time, others stay, while frames of both kinds and all sizes flow, and
// listeners are lost.
func TestGuaranteesOfSessions(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		clients := []fanfarev1.FanfareServiceClient{overSession(t, w.a), overSession(t, w.b)}
		traffic := servicetest.StartTraffic(t, func() fanfarev1.FanfareServiceClient { return clients[rand.N(2)] })
		for range form(3, 20) {
			traffic.AwaitAcknowledged(int64(form(300, 2000)))
			if db.Has(servicetest.Outages) {
				w.killListeners(w.sql())
			}
		}
		traffic.AwaitAcknowledged(300)
		traffic.Finish()
	})
}

// Under silence: what is published at a random moment of many subscribes reaches every
// subscription that was acknowledged before, and nothing else is needed for that.
func TestSeamUnderSilenceInASession(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		session := openSession(t, w.b.Client)
		for round := range form(20, 300) {
			const members = 8
			first := uint32(round*members) + 1
			for i := range uint32(members) {
				s := stream("seam", fmt.Sprint(round, " ", i%3))
				session.send(subscribing(first+i, fromOldest(s)))
			}
			for i := range 3 {
				publish(t, w.a, newFrame(stream("seam", fmt.Sprint(round, " ", i)), "only"))
			}
			for i := range uint32(members) {
				if got := session.payloads(first+i, 1); !slices.Equal(got, []string{"only"}) {
					t.Fatalf("round %d: subscription %d got %q", round, i, got)
				}
			}
		}
	})
}

// A subscription is told of a gap, of a close and of the reopening as one with a call of
// its own is, and its siblings are not; its number is another's afterwards.
func TestEndsOfStreamsInASession(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		s, other := stream("ends", "a"), stream("ends", "b")
		session := openSession(t, w.b.Client)
		session.subscribed(7, live(other))
		session.caughtUp(7)
		publishMany(t, w.a, s, 5, numbered)
		for round := range 3 {
			for number := range uint32(3) {
				session.subscribed(number+1, fromOldest(s))
				session.caughtUp(number + 1)
			}
			publish(t, w.a, newFrame(s, "last"))
			closeStream(t, w.a, s)
			for number := range uint32(3) {
				session.until("it is closed", func() bool {
					n := session.notices[number+1]
					return n[len(n)-1].GetClosed() != nil
				})
				got := session.payloads(number+1, 1)
				if got[len(got)-1] != "last" {
					t.Errorf("round %d: the last frame is %q", round, got[len(got)-1])
				}
			}
			// A position of what was closed is told that there is another numbering.
			old := session.position(1)
			publish(t, w.a, newFrame(s, "again"))
			session.subscribed(2, fromOldest(s))
			session.payloads(2, 1) // this replica knows of the reopening
			session.subscribed(1, after(s, old))
			session.until("there is a gap", func() bool { return session.notices[1][len(session.notices[1])-1].GetGap() != nil })
			if gap := session.notices[1][1].GetGap(); gap.GetReason() != fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED {
				t.Errorf("the gap is %v", gap)
			}
			if got := session.payloads(1, 1)[0]; got != "again" {
				t.Errorf("after the gap came %q", got)
			}
			session.send(unsubscribing(2))
			session.until("it is unsubscribed", func() bool {
				n := session.notices[2]
				return n[len(n)-1].GetUnsubscribed() != nil
			})
			closeStream(t, w.a, s)
			session.until("this replica knows of the close", func() bool {
				n := session.notices[1]
				return n[len(n)-1].GetClosed() != nil
			})
		}
		if n := len(session.notices[7]); n != 2 {
			t.Errorf("the other was told %v", session.notices[7][2:])
		}
		publish(t, w.a, newFrame(other, "other"))
		if got := session.payloads(7, 1); !slices.Equal(got, []string{"other"}) {
			t.Errorf("the other got %q", got)
		}
	})
}

// After an outage of the listener every subscription of a stream that carries ephemeral
// frames is told that it may have missed some, with its number; the status is told once.
// No durable frame is missed.
func TestOutageInASession(t *testing.T) {
	needs := servicetest.Needs{servicetest.Outages, servicetest.Notifications}
	servicetest.OnEachStore(t, needs, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		const members = 60
		name := func(number uint32) backlog.StreamName { return stream("outage", fmt.Sprint(number%30)) }
		for i := range uint32(30) {
			announce(t, w.a, newFrame(name(i), "marks it"))
			publish(t, w.a, newFrame(name(i), "before"))
		}
		session := openSession(t, w.b.Client)
		for number := range uint32(members) {
			session.send(subscribing(number+1, live(name(number+1))))
		}
		for number := range uint32(members) {
			session.caughtUp(number + 1)
		}
		if n := w.killListeners(w.sql()); n == 0 {
			t.Fatal("no listener was killed")
		}
		for i := range uint32(30) {
			publish(t, w.a, newFrame(name(i), "after"))
		}
		for number := range uint32(members) {
			if got := session.payloads(number+1, 1); !slices.Equal(got, []string{"after"}) {
				t.Errorf("%d got %q", number+1, got)
			}
			session.until("it is told that it may have missed something", func() bool {
				return slices.ContainsFunc(session.notices[number+1], func(r *fanfarev1.SessionResponse) bool {
					return r.GetGap().GetReason() == fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED
				})
			})
		}
		for _, r := range session.notices[0] {
			if r.GetStatus() == nil {
				t.Errorf("all were told %v", r)
			}
		}
		if n := len(session.notices[0]); n > 2 {
			t.Errorf("all were told the status %d times", n)
		}
	})
}

// A client that takes nothing of its session for the write timeout is ended, and resumes
// each subscription where that stands; other sessions, on the same connection, go on.
func TestSlowSession(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) {
			c.Service.WriteTimeout = 5 * time.Second // the brisk one reads in it, once all is published
			c.Service.UntakenTimeout = time.Hour
		})
		const streams, frames = 3, 150
		name := func(i int) backlog.StreamName { return stream("slow", fmt.Sprint(i)) }
		pad := strings.Repeat("x", 8000)
		conn := dial(t, w.b.Addr, narrow)
		client := fanfarev1.NewFanfareServiceClient(conn)
		slow, brisk := openSession(t, client), openSession(t, client)
		for i := range streams {
			slow.subscribed(uint32(i)+1, live(name(i)))
			brisk.subscribed(uint32(i)+1, live(name(i)))
		}
		for i := range streams {
			publishMany(t, w.a, name(i), frames, func(n int) string { return fmt.Sprint(n, " ", pad) })
		}
		for i := range streams {
			brisk.payloads(uint32(i)+1, frames)
		}
		eventually(t, "the slow session is ended", func() bool { return w.b.Hub.Stats().Subscribers == streams })
		err := slow.end()
		if info := infoOf(err); status.Code(err) != codes.ResourceExhausted || info.GetReason() != "SLOW_SUBSCRIBER" {
			t.Errorf("it ended with %v", err)
		}
		resumed := openSession(t, client)
		for i := range streams {
			number := uint32(i) + 1
			got := len(slow.frames[number])
			if got == frames {
				t.Errorf("stream %d was taken as a whole: nothing was tested", i)
			}
			resumed.subscribed(number, after(name(i), slow.position(number)))
			resumed.payloads(number, frames-got)
			contiguous(t, append(slow.frames[number], resumed.frames[number]...), 1)
		}
	})
}

// A frame for many subscriptions goes over the wire once: ephemeral or durable, small or
// large.
func TestSharedFramesInASession(t *testing.T) {
	alongside(t)
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db)
		const members, frames = 200, 30
		s := stream("shared", "")
		session := openSession(t, w.b.Client)
		for number := range uint32(members) {
			session.send(subscribing(number+1, live(s)))
		}
		for number := range uint32(members) {
			session.caughtUp(number + 1)
		}
		if state, err := w.b.Client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: s.Channel}); status.Code(err) != codes.NotFound {
			t.Errorf("the stream is %v, %v", state, err)
		}
		publish(t, w.a, newFrame(s, "warm"))
		for number := range uint32(members) {
			session.payloads(number+1, 1)
		}
		state, err := w.b.Client.GetStream(t.Context(), &fanfarev1.GetStreamRequest{Channel: s.Channel})
		if err != nil || state.GetStream().GetSubscribers() != members {
			t.Errorf("%d subscriptions are counted as %d, %v", members, state.GetStream().GetSubscribers(), err)
		}
		before := session.messages
		for i := range frames {
			f := newFrame(s, strings.Repeat("x", []int{1, 3000, 1 << 20}[i%3]))
			if i%2 == 0 && i%3 < 2 {
				announce(t, w.a, f)
			} else {
				publish(t, w.a, f)
			}
			for number := range uint32(members) {
				session.until("all have it", func() bool { return len(session.frames[number+1]) == 2+i })
			}
		}
		if n := session.messages - before; n > frames {
			t.Errorf("%d frames were sent in %d messages", frames, n)
		}
	})
}

// However a session is ended, and whatever it does at that moment, nothing of it is left.
func TestKilledSessionsLeaveNothing(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, quickLinger, maxSubscriptions(1000), func(c *servicetest.Config) {
			c.Service.WriteTimeout, c.Service.UntakenTimeout = 2*time.Second, time.Second
		})
		pad := strings.Repeat("x", 20_000)
		for i := range 4 {
			publishMany(t, w.a, stream("killed", fmt.Sprint(i)), 60, func(n int) string { return fmt.Sprint(n, pad) })
		}
		base := goroutines(t, w.b)
		for round := range form(40, 400) {
			conn, err := dialResettable(w.b.Addr, narrow)
			if err != nil {
				t.Fatal(err)
			}
			session := openSession(t, fanfarev1.NewFanfareServiceClient(conn))
			members := rand.N(60)
			for number := range uint32(members) {
				request := subscribing(number+1, fromOldest(stream("killed", fmt.Sprint(number%6))))
				if number%5 == 0 {
					request = withCredit(request, rand.Uint64N(100_000))
				}
				session.send(request)
				if number%7 == 6 {
					session.send(unsubscribing(number))
				}
			}
			for range rand.N(members/4 + 1) { // there is more than that
				if err := session.recv(); err != nil {
					t.Fatal(err)
				}
			}
			switch round % 4 {
			case 0:
				session.cancel()
			case 1:
				conn.reset()
			case 2:
				_ = conn.Close()
			case 3:
				_ = session.call.CloseSend()
				if err := session.end(); err != nil {
					t.Errorf("round %d: after half-closing it ended with %v", round, err)
				}
			}
			session.cancel()
			conn.reset()
		}
		nothingIsLeft(t, w.b, base)
		holdsExactly(t, w.b, 1000) // places
	})
}

// A session resumes on another replica after a drain: each subscription where it stands.
func TestDrainOfASession(t *testing.T) {
	servicetest.OnEachStore(t, nil, func(t *testing.T, db servicetest.Database) {
		w := newWorld(t, db, func(c *servicetest.Config) { c.Service.DrainDelay, c.Service.DrainGrace = -1, 5*time.Second })
		const streams, frames = 10, 20
		name := func(i int) backlog.StreamName { return stream("drain", fmt.Sprint(i)) }
		session := openSession(t, w.a.Client)
		for i := range streams {
			session.subscribed(uint32(i)+1, live(name(i)))
			publishMany(t, w.a, name(i), frames, numbered)
		}
		drained := make(chan error, 1)
		go func() { drained <- w.a.Drain(context.Background()) }()
		err := session.end()
		if info := infoOf(err); status.Code(err) != codes.Unavailable || info.GetReason() != "DRAINING" {
			t.Errorf("it ended with %v", err)
		}
		if n := session.notices[0]; len(n) != 1 || n[0].GetClosing().GetRetryIn().AsDuration() <= 0 || n[0].GetClosing().GetResumeAfter() != nil {
			t.Errorf("all were told %v", n)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		next := openSession(t, w.successor().Client)
		for i := range streams {
			number := uint32(i) + 1
			next.subscribed(number, after(name(i), session.position(number)))
			next.payloads(number, frames-len(session.frames[number]))
			contiguous(t, append(session.frames[number], next.frames[number]...), 1)
		}
		_ = next.call.CloseSend()
		if err := next.end(); err != nil && err != io.EOF {
			t.Errorf("after half-closing it ended with %v", err)
		}
	})
}
