package sse_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/clientlib/sse"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// A page may be ahead of the relay, which is where ephemeral frames come from: what was
// published before a frame must not come after it.
func TestAPageAheadOfTheRelayWaitsForIt(t *testing.T) {
	u, address := startUpstream(t)
	e := newEdge(t, newClient(t, []string{address}), nil)
	u.publish(3)
	watching := e.open(one)
	watching.until("caught_up")
	u.lag(true)
	u.publish(1)
	u.pass()
	u.publish(1)
	b := e.open(one + "?last=1")
	if _, _, err := b.parser.block(); err != nil || b.id() != "1-4" { // a page has said so
		t.Fatalf("it begins after %s: %v", b.id(), err)
	}
	u.pass()
	u.lag(false)
	u.publish(1)
	want := []string{"1 after 1-4", "1-5", "2 after 1-5", "1-6"}
	watching.expect(append([]string{"1-4"}, want...)...)
	b.until("1-6")
	var frames []string
	for _, text := range b.seen {
		if text[0] != 'f' { // fanfare.caught_up
			frames = append(frames, text)
		}
	}
	if !slices.Equal(frames, want) {
		t.Errorf("it got %q, want %q", b.seen, want)
	}
}

// Where a numbering ends, the ring goes on, and has sequences of it and of the next: one
// that comes back in the next is found without a page all the same.
func TestPositionsAreFoundAfterABreak(t *testing.T) {
	u, address := startUpstream(t)
	e := newEdge(t, newClient(t, []string{address}), nil)
	u.publish(5)
	watching := e.open(one)
	watching.until("caught_up")
	u.loseCommits(5)
	u.publish(3)
	watching.until("2-3")
	pages := e.Stats().Pages
	for id, want := range map[string][]string{"2-0": {"2-1", "2-2", "2-3"}, "2-1": {"2-2", "2-3"}, "2-2": {"2-3"}} {
		b := e.open(one, "Last-Event-ID", id)
		b.expect(want...)
		b.leave()
	}
	if got := e.Stats().Pages; got != pages {
		t.Errorf("%d pages were needed", got-pages)
	}
	lost := e.open(one, "Last-Event-ID", "1-3")
	lost.expect(`fanfare.gap {"stream":{"channel":"orders","scope":"1"},"reason":"EPOCH_CHANGED","requested":"1-3","oldest":"1","head":"2-3","resume_after":"2-0"}`)
}

// A server that answers a page says nothing of what is published from now on; only the
// relay's subscription does. While that is not in force, at first or again, nobody is
// told that it is.
func TestAPageDoesNotStandInForTheSubscription(t *testing.T) {
	u, address := startUpstream(t)
	e := newEdge(t, newClient(t, []string{address}), func(c *sse.Config, _ *http.Server) {
		c.SubscribeTimeout, c.RelayBytes, c.Linger = 200*time.Millisecond, 1, time.Hour
	})
	u.publish(3)
	onlyPages := func(r *fanfarev1.SubscribeRequest) bool {
		_, oldest := r.GetStart().(*fanfarev1.SubscribeRequest_Oldest)
		return !oldest && r.GetStart() != nil
	}
	u.holdThose(onlyPages)
	postponed := func(query string) {
		t.Helper()
		b := e.open(one + query)
		if b.until(`fanfare.reconnect {"reason":"UNAVAILABLE"`); len(b.seen) != 1 || b.parser.blocks != 0 {
			t.Errorf("%q was begun with the id %q, and told %q", query, b.id(), b.seen)
		}
	}
	postponed("")
	u.hold(false)
	watching := e.open(one)
	watching.until("caught_up")
	u.holdThose(onlyPages)
	u.interrupt()
	watching.until(`fanfare.status {"stream":{"channel":"orders","scope":"1"},"listening":false`)
	for _, query := range []string{"", "?from=live", "?after=1-3"} {
		postponed(query)
	}
	u.hold(false)
	b := e.open(one + "?after=1-3")
	u.pass()
	b.until("1 after 1-3")
}
