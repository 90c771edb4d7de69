package sse_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog/pgbacklog/pgtest"
	"github.com/fanfare-io/fanfare/clientlib/sse"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// A server's timeouts are for requests and answers that end: a stream goes on over them,
// idle or not, while a client that sends its request too slowly is cut.
func TestAServersTimeoutsDoNotCutStreams(t *testing.T) {
	const timeout = 300 * time.Millisecond
	e := start(t, func(c *sse.Config, s *http.Server) {
		s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = timeout, timeout, timeout, timeout
		c.Heartbeat = 3 * timeout
	})
	b := e.open(one)
	b.until("caught_up")
	slow, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close() //nolint:errcheck // of a test
	if _, err := io.WriteString(slow, "GET "+one); err != nil {
		t.Fatal(err)
	}
	_ = slow.SetDeadline(time.Now().Add(patience))
	if answer, err := io.ReadAll(slow); err != nil || len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 4") {
		t.Errorf("a request that does not come was answered %q, %v", answer, err)
	}
	for i := range 3 { // a heartbeat, which is later than every timeout, then a frame
		blocks := b.parser.blocks
		for b.parser.blocks == blocks {
			if _, dispatched, err := b.parser.block(); err != nil || dispatched {
				t.Fatalf("waiting for a heartbeat: an event %t, %v", dispatched, err)
			}
		}
		e.publish("1", fmt.Sprint(i))
		b.expect(fmt.Sprint(i))
	}
	if b.parser.comments < 3 {
		t.Errorf("%d comments came", b.parser.comments)
	}
}

func TestHeartbeatsHaveTheID(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.Heartbeat = 10 * time.Millisecond })
	last := e.publish("1", "a")
	b := e.open(one + "?from=live")
	b.until("caught_up")
	for b.parser.comments < 5 {
		if _, dispatched, err := b.parser.block(); err != nil || dispatched {
			t.Fatalf("an event %t, %v", dispatched, err)
		}
		if b.id() != last.String() {
			t.Fatalf("the id is %q, want %s", b.id(), last)
		}
	}
}

// EventSource shows pages no comments. With heartbeats as events a page sees that a
// connection is alive, from its beginning and whether or not frames come, which may be of
// types that it does not listen to.
func TestHeartbeatsAsEvents(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.Heartbeat = 400 * time.Millisecond })
	b := e.open(one + "?from=live&heartbeat=event")
	b.until("fanfare.heartbeat")
	// Each says what retry: said, which the page does not see.
	beat := fmt.Sprintf(`fanfare.heartbeat {"interval_ms":400,"retry_in_ms":%d}`, b.parser.retry.Milliseconds())
	if b.parser.retry == 0 || b.seen[0] != beat {
		t.Fatalf("the first event is %s, want %s", b.seen[0], beat)
	}
	var last string
	for beats, deadline := 0, time.Now().Add(patience/2); beats < 2; {
		if time.Now().After(deadline) {
			t.Fatalf("%d heartbeats came among %d events", beats, len(b.seen))
		}
		last = e.publish("1", "a").String()
		for next := ""; next != "a"; {
			if next = b.until("").String(); next == beat {
				beats++
			}
		}
	}
	if b.expect(beat); b.id() != last { // idle
		t.Errorf("the id is %q, want %s", b.id(), last)
	}
	if several := e.open("/v1/streams?stream=orders%2F1&stream=orders%2F2&heartbeat=event"); several.until("fanfare.heartbeat").id == "" {
		t.Error("a heartbeat came before the id")
	}
}

// A drain: everyone is told to come back, at different times, with nothing cut in half, and
// who comes meanwhile is told the same; nobody who does not read holds it up.
func TestADrainEndsStreamsInOrder(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.WriteTimeout = time.Second })
	e.publish("1", "a")
	var browsers []*browser
	for range 20 {
		b := e.open(one)
		b.until("caught_up")
		browsers = append(browsers, b)
	}
	stuck := e.open("/v1/streams/orders/2") // takes nothing of what is more than fits between the two
	for range 40 {
		e.publish("2", strings.Repeat("x", 256<<10))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var draining sync.WaitGroup
	draining.Go(func() { e.Drain(ctx) })
	retries := map[time.Duration]bool{}
	for _, b := range browsers {
		b.until(`fanfare.reconnect {"reason":"DRAINING"`)
		b.ends()
		retries[b.parser.retry] = true
	}
	draining.Wait()
	if ctx.Err() != nil || e.Stats().Connections != 0 {
		t.Errorf("the drain ended with %d connections: %v", e.Stats().Connections, ctx.Err())
	}
	if len(retries) < 15 {
		t.Errorf("20 browsers were told to come back at %d different times", len(retries))
	}
	stuck.leave()
	late := e.open(one, "Last-Event-ID", browsers[0].id())
	if reconnect := late.until("DRAINING"); reconnect.id != browsers[0].id() {
		t.Errorf("the event is %+v, want the id %s", reconnect, browsers[0].id())
	}
}

// Symptom: a server did not end for half a minute, the write timeout, after its drain had
// given up on a browser that took nothing: Close waited for the write to it.
func TestCloseDoesNotWaitForBrowsersThatTakeNothing(t *testing.T) {
	e := start(t, func(c *sse.Config, _ *http.Server) { c.WriteTimeout = time.Hour })
	for range 40 { // more than fits between the two
		e.publish("1", strings.Repeat("x", 256<<10))
	}
	stuck := e.open(one)
	defer stuck.leave()
	var written uint64
	quiet := 0
	eventually(t, "the browser takes nothing", func() bool {
		if n := e.Stats().Bytes; n != written {
			written, quiet = n, 0
		}
		quiet++
		return written > 0 && quiet == 20
	})
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		e.Close()
	}()
	select {
	case <-closed:
	case <-time.After(patience / 2): // the browser itself gives up after all of it
		t.Error("Close still waits")
	}
	if n := e.Stats().Slow; n != 0 { // it had an hour
		t.Errorf("%d browsers are said to have been too slow", n)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	e := start(t, nil)
	b := e.open(one)
	b.until("caught_up")
	e.Close()
	b.ends()
	e.Close()
	if got := e.Stats(); got.Connections != 0 || got.Streams != 0 || got.RelayBytes != 0 {
		t.Errorf("after Close: %+v", got)
	}
	e.open(one).until("fanfare.reconnect")
}

// Browsers that take nothing keep a bounded part of what is sent, are ended, and hold up
// nobody. What one has not taken it gets when it comes back.
func TestBrowsersThatTakeNothingAreEnded(t *testing.T) {
	e := start(t, func(c *sse.Config, s *http.Server) {
		c.WriteTimeout, c.RelayBytes = time.Second, 256<<10 // the one that reads does so in it
		s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10) // so that little fits between the two
			return ctx
		}
	})
	first := e.publish("1", "a")
	var stuck []*browser
	for range 2 {
		b := e.open(one + "?from=live")
		b.until("caught_up")
		stuck = append(stuck, b)
	}
	reader := e.open(one + "?from=live")
	reader.until("caught_up")
	payload := strings.Repeat("x", 50<<10)
	n := 0
	for ; e.Stats().Slow < 2; n++ {
		e.publish("1", payload)
		reader.expect(payload)
		if n > 2000 {
			t.Fatalf("100 MB later: %+v", e.Stats())
		}
	}
	if got := e.Stats(); got.RelayBytes > 512<<10 {
		t.Errorf("the relay keeps %d bytes", got.RelayBytes)
	}
	eventually(t, "the browsers that are stuck have gone", func() bool { return e.Stats().Connections == 1 })
	stuck[0].leave()
	b := e.open(one, "Last-Event-ID", first.String())
	for range n {
		b.expect(payload)
	}
}

// Trouble that passes is 200, retry: and the end, with the id of the browser.
func TestTroubleThatPassesTellsToComeBack(t *testing.T) {
	replica := servicetest.Start(t, embedded)
	proxy := pgtest.Proxy(t, replica.Addr)
	e := newEdge(t, newClient(t, []string{proxy.Addr()}), func(c *sse.Config, _ *http.Server) {
		c.SubscribeTimeout, c.MaxConnections = 200*time.Millisecond, 1
	})
	last := e.publish("1", "a")
	proxy.Refuse()
	proxy.Reset()
	for range 3 { // a failure is not remembered
		b := e.open(one, "Last-Event-ID", last.String())
		reconnect := b.until(`fanfare.reconnect {"reason":"UNAVAILABLE"`)
		b.ends()
		if reconnect.id != last.String() || b.parser.retry == 0 {
			t.Errorf("the event is %+v, retry %s", reconnect, b.parser.retry)
		}
	}
	proxy.Restore()
	e.publish("1", "b")
	var b *browser
	eventually(t, "the edge is back", func() bool {
		b = e.open(one, "Last-Event-ID", last.String())
		first, err := b.next()
		return err == nil && first.data == "b"
	})
	// One more than may be served.
	e.open(one).until(`fanfare.reconnect {"reason":"LIMIT_REACHED"`)
	e.publish("1", "c")
	b.until("c")
}

func TestARelayLingersAndThenLeaves(t *testing.T) {
	replica := servicetest.Start(t, embedded)
	e := newEdge(t, newClient(t, []string{replica.Addr}), func(c *sse.Config, _ *http.Server) { c.Linger = 2 * time.Second })
	for range 3 {
		b := e.open(one)
		b.until("caught_up")
		b.leave()
		eventually(t, "the browser has left", func() bool { return e.Stats().Connections == 0 })
		if n := e.Stats().Streams; n != 1 {
			t.Fatalf("%d streams are subscribed to right after", n)
		}
	}
	eventually(t, "the stream is not subscribed to any more", func() bool { return e.Stats().Streams == 0 && e.Stats().RelayBytes == 0 })
	eventually(t, "the server has no subscription", func() bool { return replica.Hub.Stats().Subscribers == 0 })
}

// However many browsers watch a stream, the server has one subscription.
func TestManyBrowsersAreOneSubscription(t *testing.T) {
	replica := servicetest.Start(t, embedded)
	e := newEdge(t, newClient(t, []string{replica.Addr}), nil)
	e.publish("1", "a")
	var browsers []*browser
	for range 200 {
		browsers = append(browsers, e.open(one))
	}
	for _, b := range browsers {
		b.until("caught_up")
	}
	if n := replica.Hub.Stats().Subscribers; n != 1 {
		t.Errorf("the server has %d subscriptions", n)
	}
	e.publish("1", "b")
	for _, b := range browsers {
		b.expect("b")
	}
	if got := e.Stats(); got.Connections != 200 || got.Streams != 1 || got.Frames != 400 || got.Requests != 200 {
		t.Errorf("the statistics are %+v", got)
	}
}
