package service

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// The place of a call comes back when its client has taken everything, and not
// before.
func TestPlaceOfACallWhoseClientTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, func(c *Config) { c.UntakenTimeout = time.Hour })
		s := backlog.StreamName{Channel: "places"}
		call := w.subscribe(s, newConnection(noConn{}))
		call.takeAll()
		w.publishEach(s, maxInFlight+1)
		call.end() // by the write timeout
		for left := maxInFlight; left > 0; left-- {
			synctest.Wait()
			if n := w.server.calls.Load(); n != 1 {
				t.Fatalf("%d places are taken with %d messages in flight", n, left)
			}
			call.take(1)
		}
		synctest.Wait()
		if n := w.server.calls.Load(); n != 0 {
			t.Errorf("%d places are taken with nothing in flight", n)
		}
	})
}

// Of a call that its client has cancelled grpc keeps nothing.
func TestPlaceOfACancelledCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, func(c *Config) { c.UntakenTimeout = time.Hour })
		call := w.subscribe(backlog.StreamName{Channel: "places"}, newConnection(noConn{}))
		synctest.Wait()
		if n := w.server.calls.Load(); n != 1 || call.inFlight() == 0 {
			t.Fatalf("%d places are taken with %d messages in flight", n, call.inFlight())
		}
		call.cancel()
		call.end()
		if n := w.server.calls.Load(); n != 0 {
			t.Errorf("%d places are taken", n)
		}
	})
}

// Of a call that takes nothing for good the connection is closed.
func TestPlaceOfACallWhoseClientTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDeliveryWorld(t, nil)
		s := backlog.StreamName{Channel: "places"}
		c := newConnection(noConn{})
		call := w.subscribe(s, c)
		w.publishEach(s, maxInFlight)
		call.end()
		ended := time.Now()
		<-c.gone
		if took := time.Since(ended); took != w.server.cfg.UntakenTimeout {
			t.Errorf("the connection was closed after %s", took)
		}
		synctest.Wait()
		if n := w.server.calls.Load(); n != 0 {
			t.Errorf("%d places are taken", n)
		}
	})
}

// grpc may forget a message without freeing it. Not in a bubble, which cleanups do not
// belong to.
func TestPlaceOfACallThatGRPCForgot(t *testing.T) {
	w := newDeliveryWorld(t, func(c *Config) { c.WriteTimeout, c.UntakenTimeout = 10*time.Millisecond, time.Hour })
	s := backlog.StreamName{Channel: "places"}
	call := w.subscribe(s, newConnection(noConn{}))
	eventually(t, "Subscribed and CaughtUp are in flight", func() bool { return call.inFlight() == 2 })
	w.publish(s, 1)
	eventually(t, "a frame is in flight", func() bool { return call.inFlight() == 3 })
	w.publish(s, 1)
	eventually(t, "another is", func() bool { return call.inFlight() == 4 })
	w.publish(s, 1)
	if f := failureOf(<-call.ended); f.reason != fanfarev1.ErrorReason_ERROR_REASON_SLOW_SUBSCRIBER {
		t.Errorf("it ended with %+v", f)
	}
	if n := w.server.calls.Load(); n != 1 {
		t.Errorf("%d places are taken", n)
	}
	call.stream.forget()
	eventually(t, "the place is free", func() bool {
		runtime.GC()
		return w.server.calls.Load() == 0
	})
}
