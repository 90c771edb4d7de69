package sse_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib/sse"
)

// Symptom: 20,000 browsers with 50 streams each had an edge subscribe to a million, and the
// server refuse everybody's: only connections were bounded. What is in use stays, what only
// lingers makes room.
func TestStreamsThatAreSubscribedToAreBounded(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.MaxRelays, c.Linger = 2, time.Hour })
	first := e.open("/v1/streams?stream=orders/1&stream=orders/2")
	first.until("caught_up")
	last := e.publish("3", "a")
	late := e.open("/v1/streams/orders/3", "Last-Event-ID", last.String())
	if reconnect := late.until(`fanfare.reconnect {"reason":"LIMIT_REACHED"`); reconnect.id != last.String() || late.parser.retry == 0 {
		t.Errorf("the event is %+v, retry %s", reconnect, late.parser.retry)
	}
	late.ends()
	shared := e.open(one)
	shared.until("caught_up")
	if got := e.Stats(); got.Streams != 2 || got.Postponed != 1 || e.replica.Hub.Stats().Subscribers != 2 {
		t.Errorf("%d subscriptions, and %+v", e.replica.Hub.Stats().Subscribers, got)
	}
	first.leave()
	eventually(t, "the browser has left", func() bool { return e.Stats().Connections == 1 })
	third := e.open("/v1/streams/orders/3") // in place of 2, which lingers
	third.expect("a")
	e.publish("1", "b")
	shared.until("b")
	eventually(t, "the server has two subscriptions", func() bool { return e.replica.Hub.Stats().Subscribers == 2 })
}
