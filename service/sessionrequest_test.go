package service

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/hub"
)

// ask sends a request that the test's client knows nothing of.
func (s *fakeSession) ask(r *fanfarev1.SessionSubscribe) {
	s.subs[r.GetNumber()] = &fakeMember{}
	s.requests <- &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{Subscribe: r}}
}

// endedWith returns the Ended of a number that comes next.
func (s *fakeSession) endedWith(number uint32) *fanfarev1.Error {
	s.world.t.Helper()
	for _, r := range s.takeAll() {
		if r.GetEnded() != nil && slices.Contains(r.GetNumbers(), number) {
			return r.GetEnded().GetError()
		}
	}
	s.world.t.Fatalf("%d has not ended", number)
	return nil
}

// A request that says nothing, or has a number that it may not have, ends the session:
// the client is mistaken about what there is.
func TestRequestsThatEndASession(t *testing.T) {
	name := backlog.StreamName{Channel: "c"}
	for what, test := range map[string]struct {
		request *fanfarev1.SessionRequest
		field   string
	}{
		"nothing": {&fanfarev1.SessionRequest{}, "request"},
		"subscribe 0": {&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{
			Subscribe: &fanfarev1.SessionSubscribe{Request: &fanfarev1.SubscribeRequest{Channel: "c"}},
		}}, "subscribe.number"},
		"unsubscribe 0": {&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Unsubscribe{}}, "unsubscribe.number"},
		"credit 0": {&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Credit{
			Credit: &fanfarev1.SessionCredit{Bytes: 1},
		}}, "credit.number"},
		"a number in use": {&fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{
			Subscribe: &fanfarev1.SessionSubscribe{Number: 1, Request: &fanfarev1.SubscribeRequest{Channel: "other"}},
		}}, "subscribe.number"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDeliveryWorld(t, nil)
				s := w.session(newConnection(noConn{}))
				s.subscribe(1, name)
				s.takeAll()
				s.requests <- test.request
				f := s.endsAfter(0)
				if f.code != codes.InvalidArgument || f.reason != fanfarev1.ErrorReason_ERROR_REASON_INVALID_FIELD || f.field != test.field {
					t.Errorf("it ended with %+v", f)
				}
				if s.takeAll(); w.server.calls.Load() != 0 || w.hub.Subscribers(name) != 0 {
					t.Errorf("%d places are taken, %d subscribers", w.server.calls.Load(), w.hub.Subscribers(name))
				}
			})
		})
	}
}

// A subscription that is refused ends itself alone, and says why; its number may be
// used again.
func TestRefusedSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "c"}
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, name)
		good := &fanfarev1.SubscribeRequest{Channel: "c"}
		for _, tt := range []struct {
			request *fanfarev1.SessionSubscribe
			field   string
		}{
			{&fanfarev1.SessionSubscribe{}, "request"},
			{&fanfarev1.SessionSubscribe{Request: &fanfarev1.SubscribeRequest{}}, "request.channel"},
			{&fanfarev1.SessionSubscribe{Request: &fanfarev1.SubscribeRequest{Channel: "c", Scope: strings.Repeat("x", 256)}}, "request.scope"},
			{&fanfarev1.SessionSubscribe{Request: &fanfarev1.SubscribeRequest{Channel: "c\x00"}}, "request.channel"},
			{&fanfarev1.SessionSubscribe{Request: &fanfarev1.SubscribeRequest{Channel: "c", Start: &fanfarev1.SubscribeRequest_Live{}}}, "request.live"},
			{&fanfarev1.SessionSubscribe{Request: &fanfarev1.SubscribeRequest{Channel: "c", Start: &fanfarev1.SubscribeRequest_After{
				After: &fanfarev1.Position{Sequence: 1 << 63},
			}}}, "request.after.sequence"},
			{&fanfarev1.SessionSubscribe{Request: good, Credit: proto.Uint64(1 << 63)}, "credit"},
			{&fanfarev1.SessionSubscribe{Request: good, Credit: proto.Uint64(math.MaxUint64)}, "credit"},
		} {
			tt.request.Number = 7
			s.ask(tt.request)
			if e := s.endedWith(7); e.GetCode() != int32(codes.InvalidArgument) || e.GetReason() != fanfarev1.ErrorReason_ERROR_REASON_INVALID_FIELD || e.GetField() != tt.field {
				t.Errorf("%v: ended with %v", tt.request, e)
			}
		}
		s.subscribe(7, name)
		w.publish(name, 1)
		s.takeAll()
		s.isWhole(1, 1)
		s.isWhole(7, 1)
		// Of numbers that are not subscribed nothing is wanted: they may just have ended.
		s.unsubscribe(8)
		s.give(8, math.MaxUint64)
		s.give(7, 1) // needs none
		if got := s.takeAll(); len(got) != 0 {
			t.Errorf("answered with %v", got)
		}
		s.goesOn()
	})
}

// A number ends once, and is then another subscription's.
func TestNumbersAreUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		name, other := backlog.StreamName{Channel: "c"}, backlog.StreamName{Channel: "other"}
		w.publish(name, 5)
		s := w.session(newConnection(noConn{}))
		for range 100 {
			s.subscribe(1, name)
			s.unsubscribe(1)
			s.takeAll()
			s.subscribe(1, other)
			s.unsubscribe(1)
			s.unsubscribe(1)
			s.takeAll()
		}
		if len(s.subs) != 0 || w.hub.Stats().Subscribers != 0 || w.server.calls.Load() != 1 {
			t.Errorf("%d are left, %d of the hub, %d places", len(s.subs), w.hub.Stats().Subscribers, w.server.calls.Load())
		}
		s.subscribe(1, name)
		s.takeAll()
		s.isWhole(1, 5)
	})
}

// Each subscription takes a place among those of the server, and one among those of its
// session, until it ends. Who finds none is told which limit it was.
func TestLimitsOfASession(t *testing.T) {
	for _, tt := range []struct {
		all, session int
		names        string
		retry        bool
	}{{10, 100, "the server has 10 ", true}, {100, 9, "the session has 9 ", false}} {
		synctest.Test(t, func(t *testing.T) {
			const most = 9 // beside the session itself
			w := newDeliveryWorld(t, func(c *Config) { c.MaxSubscriptions, c.MaxSessionSubscriptions = tt.all, tt.session })
			name := backlog.StreamName{Channel: "c"}
			s := w.session(newConnection(noConn{}))
			for number := range uint32(most) {
				s.subscribe(number+1, name)
			}
			for range 3 {
				s.takeAll()
				s.ask(&fanfarev1.SessionSubscribe{Number: 100, Request: &fanfarev1.SubscribeRequest{Channel: "c"}})
				e := s.endedWith(100)
				if e.GetCode() != int32(codes.ResourceExhausted) || e.GetReason() != fanfarev1.ErrorReason_ERROR_REASON_LIMIT_REACHED ||
					!strings.Contains(e.GetMessage(), tt.names) || (e.GetRetryIn() != nil) != tt.retry {
					t.Errorf("refused with %v", e)
				}
				s.unsubscribe(1)
				s.takeAll()
				s.subscribe(1, name)
			}
			s.takeAll()
			for number := range uint32(most) {
				s.isWhole(number+1, 0)
			}
			close(s.requests)
			if err := s.end(); err != nil || w.server.calls.Load() != 0 {
				t.Errorf("it ended with %v; %d places are taken", err, w.server.calls.Load())
			}
		})
	}
}

// When the client half-closes, what it asked for before is answered, and the call ends
// OK.
func TestHalfCloseOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "c"}
		s := w.session(newConnection(noConn{}))
		for number := range uint32(10) {
			s.subscribe(number+1, name)
		}
		s.takeAll()
		w.publishEach(name, 2*maxInFlight) // the client takes nothing
		for number := range uint32(5) {
			s.unsubscribe(number + 1)
		}
		close(s.requests)
		s.takeAll()
		if f := s.endsAfter(0); f != nil {
			t.Errorf("it ended with %+v", f)
		}
		if len(s.subs) != 5 {
			t.Errorf("%d subscriptions have not been answered", len(s.subs))
		}
		if n := w.server.calls.Load(); n != 0 {
			t.Errorf("%d places are taken", n)
		}
	})
}

// Requests are not taken while too many answers wait, whatever they ask for.
func TestFloodOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds = 20_000
		w := newDeliveryWorld(t, func(c *Config) { c.WriteTimeout = time.Hour })
		name := backlog.StreamName{Channel: "c"}
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, name)
		s.takeAll()
		w.publishEach(name, 2*maxInFlight) // so that answers wait, too
		for i := range rounds {
			if i%2 == 0 {
				s.ask(&fanfarev1.SessionSubscribe{Number: 2})
			} else {
				s.subscribe(2, name)
				s.unsubscribe(2)
			}
		}
		synctest.Wait()
		if taken := rounds*3/2 - len(s.requests); taken > 2*maxAnswers {
			t.Errorf("%d requests were taken, whose answers are not", taken)
		}
		answered := 0
		for len(s.requests) > 0 || s.inFlight() > 0 {
			for _, message := range s.stream.write(1) {
				response := &fanfarev1.SessionResponse{}
				if err := proto.Unmarshal(message, response); err != nil {
					t.Fatal(err)
				}
				if response.GetEnded() != nil || response.GetUnsubscribed() != nil {
					answered += len(response.GetNumbers())
				}
			}
			synctest.Wait()
		}
		if answered != rounds {
			t.Errorf("%d of %d were answered", answered, rounds)
		}
	})
}

// Frames are sent while there is credit left, and no longer; notices always. Those of a
// stream that have different credit part, and come together again.
func TestCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		w.store.size = 1000
		name := backlog.StreamName{Channel: "credit"}
		w.publish(name, 50)
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, name)
		for number, credit := range []uint64{0, 1, 20_000, 1 << 40, math.MaxInt64} {
			s.subscribeWith(uint32(number+2), name, &credit)
		}
		counts := func() (counts []int) {
			s.takeAll()
			for number := range uint32(6) {
				counts = append(counts, s.subs[number+1].count)
			}
			return counts
		}
		message := maxMessageBytes / len(EncodeFrame(backlog.Frame{ // so many frames to one
			Position: backlog.Position{Epoch: fakeEpoch, Sequence: 1}, Created: time.Now(), Payload: w.store.payload(1),
		}))
		if got := counts(); !slices.Equal(got, []int{50, 0, message, 2 * message, 50, 50}) {
			t.Errorf("at first they got %d frames", got)
		}
		if got := s.subs[2].notices; !slices.Equal(got, []string{"subscribed"}) {
			t.Errorf("without credit it was told %v", got)
		}
		s.give(2, 1)
		s.give(3, 1<<20)
		if got := counts(); !slices.Equal(got, []int{50, message, 50, 2 * message, 50, 50}) {
			t.Errorf("after more credit for two they have %d frames", got)
		}
		s.give(2, 1<<20)
		s.give(4, 1<<20)
		counts()
		w.publish(name, 1)
		s.takeAll() // which they may have had apart
		w.publish(name, 1)
		if got := s.takeAll(); len(got) != 1 || len(got[0].GetNumbers()) != 6 {
			t.Errorf("all are at one place, and were sent %d messages", len(got))
		}
		s.give(5, math.MaxInt64)
		if e := s.endedWith(5); e.GetCode() != int32(codes.InvalidArgument) || e.GetField() != "credit.bytes" {
			t.Errorf("too much credit ended with %v", e)
		}
		for _, number := range []uint32{1, 2, 3, 4, 6} {
			s.isWhole(number, 52)
		}
		if n := w.hub.Subscribers(name); n != 5 {
			t.Errorf("the hub has %d subscribers", n)
		}
	})
}

// Symptom: it may not be learnt that a subscription without credit has ended before it
// has credit. One whose ephemeral frames were dropped before it took them is told at
// once, and so are all of the same place; its siblings go on.
func TestPausedSubscriptionIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kept = 10
		w := newDeliveryWorldOn(t, hub.Config{TailFrames: kept}, nil)
		name := backlog.StreamName{Channel: "c"}
		w.publish(name, 1)
		s := w.session(newConnection(noConn{}))
		s.subscribe(1, name)
		none := uint64(0)
		for number := range uint32(3) {
			s.subscribeWith(number+2, name, &none)
			s.give(number+2, 1) // which they use up
		}
		s.takeAll()
		var got []*fanfarev1.SessionResponse
		for range kept + 2 {
			w.publishEphemeral(name, 1)
			synctest.Wait()
			for _, message := range s.stream.write(s.inFlight()) {
				response := &fanfarev1.SessionResponse{}
				if err := proto.Unmarshal(message, response); err != nil {
					t.Fatal(err)
				}
				got = append(got, response)
			}
		}
		ended := map[uint32]bool{}
		for _, r := range got {
			for _, number := range r.GetNumbers() {
				if r.GetEnded() != nil {
					ended[number] = true
					e := r.GetEnded().GetError()
					if e.GetReason() != fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER || e.GetPosition().GetSequence() != 1 || e.GetRetryIn() == nil {
						t.Errorf("%d ended with %v", number, e)
					}
				} else if number != 1 {
					t.Errorf("%d was sent %v", number, r)
				}
			}
		}
		if len(ended) != 3 || ended[1] {
			t.Errorf("%v have ended", ended)
		}
		if n := withFrames(got); n != kept+2 {
			t.Errorf("the other got %d messages of %d", n, kept+2)
		}
	})
}

// The status is told once for all, however many subscriptions there are, and those that
// have no credit, too.
func TestStatusIsToldOnceForAll(t *testing.T) {
	for _, paused := range []uint32{2, 1} { // every other one, and all
		statusIsToldOnce(t, paused)
	}
}

func statusIsToldOnce(t *testing.T, paused uint32) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorldOn(t, hub.Config{StatusNotices: true}, nil)
		s := w.session(newConnection(noConn{}))
		none := uint64(0)
		for number := range uint32(100) {
			name := backlog.StreamName{Channel: "c", Scope: fmt.Sprint(number % 60)}
			w.publish(name, 1)
			if number%paused == paused-1 {
				s.subscribeWith(number+1, name, &none)
			} else {
				s.subscribe(number+1, name)
			}
		}
		s.takeAll()
		told := func() (statuses []string) {
			for _, r := range s.takeAll() {
				if r.GetStatus() != nil {
					statuses = append(statuses, fmt.Sprintf("%t for %v", r.GetStatus().GetListening(), r.GetNumbers()))
				}
			}
			return statuses
		}
		for number := range uint64(3) {
			w.lose()
			if got := told(); !slices.Equal(got, []string{"false for []"}) {
				t.Errorf("when the listening ended: %v", got)
			}
			w.listen(number + 2)
			if got := told(); !slices.Equal(got, []string{"true for []"}) {
				t.Errorf("when there was one again: %v", got)
			}
		}
		s.goesOn()
	})
}

// A panic in a turn ends the session that has it.
func TestPanicInATurnOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		name := backlog.StreamName{Channel: "c"}
		s, other := w.session(newConnection(noConn{})), w.session(newConnection(noConn{}))
		s.subscribe(1, name)
		other.subscribe(1, name)
		s.takeAll()
		other.takeAll()
		s.stream.eachSend(func() { panic("for a test") })
		w.publish(name, 1)
		if f := s.endsAfter(0); f.code != codes.Internal {
			t.Errorf("it ended with %+v", f)
		}
		other.takeAll()
		other.isWhole(1, 1)
		if n := w.server.calls.Load(); n != 2 {
			t.Errorf("%d places are taken", n)
		}
	})
}
