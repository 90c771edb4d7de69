package failover

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

const ackLimit = 30 * time.Second

// watched returns acks of a method and whether they have expired.
func watched(method string) (*acks, *atomic.Bool) {
	expired := new(atomic.Bool)
	return newAcks(method, ackLimit, func() { expired.Store(true) }), expired
}

func subscribeRequest(number uint32) *fanfarev1.SessionRequest {
	return &fanfarev1.SessionRequest{Request: &fanfarev1.SessionRequest_Subscribe{Subscribe: &fanfarev1.SessionSubscribe{Number: number}}}
}

func subscribedResponse(numbers ...uint32) *fanfarev1.SessionResponse {
	return &fanfarev1.SessionResponse{Numbers: numbers, Notice: &fanfarev1.SessionResponse_Subscribed{Subscribed: &fanfarev1.Subscribed{}}}
}

// pass lets the time of a bubble go by, and what is due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A client that rests between Subscribe and its first Recv has no complaint against
// the hub.
func TestOnlyWaitingForTheHubCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, expired := watched(fanfarev1.FanfareService_Subscribe_FullMethodName)
		pass(10 * ackLimit)
		a.waiting(true)
		pass(ackLimit - time.Second)
		a.waiting(false)
		pass(10 * ackLimit)
		if expired.Load() {
			t.Fatal("expired although the client has waited for less")
		}
		a.waiting(true)
		pass(2 * time.Second)
		if !expired.Load() {
			t.Error("not expired after the client has waited for all of it")
		}
	})
}

func TestAnyAnswerEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, expired := watched(fanfarev1.FanfareService_Subscribe_FullMethodName)
		a.waiting(true)
		pass(time.Second)
		a.waiting(false)
		a.received(&fanfarev1.SubscribeResponse{})
		a.waiting(true)
		pass(10 * ackLimit)
		if expired.Load() {
			t.Error("expired although the hub has answered")
		}
	})
}

// Each subscription of a session is answered by its number; what comes for others is
// no answer.
func TestSessionsAwaitEachSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, expired := watched(fanfarev1.FanfareService_Session_FullMethodName)
		a.waiting(true)
		pass(10 * ackLimit) // nothing is due
		a.sent(subscribeRequest(1))
		a.sent(subscribeRequest(2))
		pass(ackLimit - time.Second)
		a.received(subscribedResponse(1))
		a.received(&fanfarev1.SessionResponse{Numbers: []uint32{2}, Notice: &fanfarev1.SessionResponse_Progress{}})
		pass(ackLimit - time.Second)
		if expired.Load() {
			t.Fatal("expired although there was an answer in the meantime")
		}
		pass(2 * time.Second)
		if !expired.Load() {
			t.Error("not expired although subscription 2 was never answered")
		}
	})
}

func TestRefusalsAreAnswers(t *testing.T) {
	for name, response := range map[string]*fanfarev1.SessionResponse{
		"ended":        {Numbers: []uint32{1}, Notice: &fanfarev1.SessionResponse_Ended{Ended: &fanfarev1.Ended{}}},
		"unsubscribed": {Numbers: []uint32{1}, Notice: &fanfarev1.SessionResponse_Unsubscribed{Unsubscribed: &fanfarev1.Unsubscribed{}}},
		"closed":       {Numbers: []uint32{1}, Notice: &fanfarev1.SessionResponse_Closed{Closed: &fanfarev1.Closed{}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, expired := watched(fanfarev1.FanfareService_Session_FullMethodName)
				a.sent(subscribeRequest(1))
				a.waiting(true)
				if a.received(response) {
					t.Error("taken for an eviction")
				}
				pass(10 * ackLimit)
				if expired.Load() {
					t.Error("expired although the hub has answered")
				}
			})
		})
	}
}

func TestEvictionFromASession(t *testing.T) {
	a, _ := watched(fanfarev1.FanfareService_Session_FullMethodName)
	ended := &fanfarev1.Ended{Error: &fanfarev1.Error{Reason: fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER}}
	if !a.received(&fanfarev1.SessionResponse{Numbers: []uint32{1}, Notice: &fanfarev1.SessionResponse_Ended{Ended: ended}}) {
		t.Error("not taken for one")
	}
}

func TestCallsWithoutSubscriptionsAreNotWatched(t *testing.T) {
	a, _ := watched(fanfarev1.FanfareService_PublishStream_FullMethodName)
	if a != nil {
		t.Fatal("watched")
	}
	a.sent(subscribeRequest(1))
	a.waiting(true)
	if a.received(subscribedResponse(1)) {
		t.Error("an eviction")
	}
}
