package sse_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
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
	if got := e.Stats(); got.Streams != 2 || got.Postponed != 1 {
		t.Errorf("%+v", got)
	}
	eventually(t, "the server has two subscriptions, when pages have ended theirs", func() bool { return e.replica.Hub.Stats().Subscribers == 2 })
	first.leave()
	eventually(t, "the browser has left", func() bool { return e.Stats().Connections == 1 })
	third := e.open("/v1/streams/orders/3") // in place of 2, which lingers
	third.expect("a")
	e.publish("1", "b")
	shared.until("b")
	eventually(t, "the server has two subscriptions", func() bool { return e.replica.Hub.Stats().Subscribers == 2 })
}

// What is read for browsers that are behind is given up when the last of them has left, so
// that those who only reload do not take the turns of others.
func TestAPageIsReadWhileSomebodyWaitsForIt(t *testing.T) {
	u, address := startUpstream(t)
	e := newEdge(t, newClient(t, []string{address}), func(c *sse.Config, _ *http.Server) {
		c.SubscribeTimeout, c.MaxReplays, c.RelayBytes = time.Hour, 1, 1
	})
	u.publish(3)
	watching := e.open(one + "?from=live")
	watching.until("caught_up")
	u.hold(true)
	leave := make([]context.CancelFunc, 40)
	var answered sync.WaitGroup
	for i := range leave {
		var ctx context.Context
		ctx, leave[i] = context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?last=%d", e.url, one, 1+i%2), nil)
		if err != nil {
			t.Fatal(err)
		}
		answered.Go(func() {
			if response, err := e.server.Client().Do(r); err == nil {
				_ = response.Body.Close()
				t.Errorf("a browser that left was answered %s", response.Status)
			}
		})
	}
	eventually(t, "one page is read, and one waits", func() bool {
		s := e.Stats()
		return s.Connections == 1+len(leave) && s.Replays == 1 && s.ReplaysWaiting == 1
	})
	for _, l := range leave[1:] {
		l()
	}
	eventually(t, "one page is left, of the browser that is", func() bool {
		s := e.Stats()
		return s.Connections == 2 && s.Replays == 1 && s.ReplaysWaiting == 0
	})
	leave[0]()
	eventually(t, "nothing is read for nobody", func() bool { s := e.Stats(); return s.Connections == 1 && s.Replays == 0 })
	answered.Wait()
	u.hold(false)
	e.open(one + "?last=1").until("caught_up")
}

// Symptom: the first browser that wants another format doubles what is kept of a stream,
// and on a quiet stream it stayed so: only a new event drops what is too much.
func TestAnotherFormatDoesNotExceedWhatMayBeKept(t *testing.T) {
	for _, all := range []bool{false, true} {
		const limit = 100 << 10
		e := start(t, func(c *sse.Config, _ *http.Server) {
			if c.RelayBytes = limit; all {
				c.RelayBytes, c.MaxRelayBytes = 10*limit, limit
			}
		})
		watching := e.open(one)
		watching.until("caught_up")
		for range 50 { // the payload and one format are within the limit
			e.publish("1", strings.Repeat("x", 850))
			watching.next()
		}
		if n := e.Stats().RelayBytes; n < limit*9/10 {
			t.Fatalf("%d bytes are kept of %d", n, limit)
		}
		b := e.open(one + "?format=json&from=live")
		b.until("caught_up")
		if n := e.Stats().RelayBytes; n > limit {
			t.Errorf("all %t: %d bytes are kept of %d", all, n, limit)
		}
		e.publish("1", "end")
		b.until("end")
		watching.until("end")
	}
}

// Symptom: a stream was closed while a browser that takes nothing held what was kept of it.
// It counted, and could not be dropped: of the streams that go on nothing was kept instead,
// and everybody who came back needed a page.
func TestWhatIsKeptOfAClosedStreamIsDroppedFirst(t *testing.T) {
	const limit = 2 << 20
	e := start(t, func(c *sse.Config, _ *http.Server) {
		c.RelayBytes, c.MaxRelayBytes, c.WriteTimeout = limit, limit, time.Hour
	})
	e.open("/v1/streams/orders/closed?from=live") // is not read, and more follows than fits between the two
	for range 43 {
		e.publish("closed", strings.Repeat("x", 256<<10)) // every fourth exceeds the limit: three are kept
	}
	e.closeStream("closed")
	eventually(t, "the closed stream has ended", func() bool { return e.Stats().Streams == 0 })
	if kept := e.Stats().RelayBytes; kept < limit/2 || kept > limit {
		t.Fatalf("%d bytes are kept of %d", kept, limit)
	}
	b := e.open(one)
	var ids []string
	for range 4 {
		e.publish("1", strings.Repeat("y", 100<<10))
		b.until("yyy")
		ids = append(ids, b.id())
	}
	pages := e.Stats().Pages
	again := e.open(one, "Last-Event-ID", ids[1])
	again.until("yyy")
	again.until("yyy")
	if got := e.Stats(); again.id() != ids[3] || got.Pages != pages || got.RelayBytes > limit || got.Connections != 3 {
		t.Errorf("at %s of %s; %d pages were needed, and now %+v", again.id(), ids, got.Pages-pages, got)
	}
}
