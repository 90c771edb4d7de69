package sse_test

import (
	"strings"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
	"github.com/fanfare-io/fanfare/service/servicetest"
)

// gapsOfEphemeral is how many of events say that ephemeral frames may have been missed.
func gapsOfEphemeral(events []string) (n int) {
	for _, e := range events {
		if strings.HasPrefix(e, "fanfare.gap") && strings.Contains(e, "EPHEMERAL_MAYBE_MISSED") {
			n++
		}
	}
	return n
}

// Symptom: a browser that had had ephemeral frames came back to another edge, or to the
// same after its relay had gone, and nobody told it that it had missed some: only a relay
// that has had one itself knew that the stream carries any.
func TestMissedEphemeralFramesAreToldByRelaysThatAreNew(t *testing.T) {
	replica := servicetest.Start(t, embedded)
	var edges []*edge
	for range 2 {
		e := newEdge(t, newClient(t, []string{replica.Addr}, clientlib.WithSession()), nil)
		e.replica = replica
		edges = append(edges, e)
	}
	edges[0].publish("1", "a")
	b := edges[0].open(one)
	b.until("caught_up")
	edges[0].publishEphemeral("1", "typing 1")
	b.until("typing 1")
	b.leave()
	edges[0].publishEphemeral("1", "typing 2") // nobody is there
	again := edges[1].open(one, "Last-Event-ID", b.id())
	begins := edges[1].open(one) // has missed nothing
	again.until("caught_up")
	begins.until("caught_up")
	for _, e := range []string{"typing 3", "typing 4"} {
		edges[0].publishEphemeral("1", e)
		again.until(e)
		begins.until(e)
		if n := gapsOfEphemeral(again.seen); n != 1 {
			t.Errorf("typing 2 was missed, and %d gaps came: %q", n, again.seen)
		}
		if n := gapsOfEphemeral(begins.seen); n != 0 {
			t.Errorf("nothing was missed, and %d gaps came: %q", n, begins.seen)
		}
	}
}

// Symptom: an edge lost its server, and the stream's first ephemeral frames were published
// before it had subscribed anew. Its browsers missed them and were not told, then or when
// the next came: a client tells it only of streams of which it has had one.
func TestMissedEphemeralFramesAreToldWhenTheEdgeWasNotSubscribed(t *testing.T) {
	u, address := startUpstream(t)
	e := newEdge(t, newClient(t, []string{address}), nil)
	u.publish(1)
	b := e.open(one)
	b.until("caught_up")
	u.hold(true)
	u.interrupt()
	b.until(`"listening":false`)
	u.pass() // nobody is there
	u.hold(false)
	b.until(`"listening":true`)
	for _, frame := range []string{"2 after", "3 after"} {
		u.pass()
		b.until(frame)
		if n := gapsOfEphemeral(b.seen); n != 1 {
			t.Errorf("a frame was missed, and %d gaps came: %q", n, b.seen)
		}
	}
	// From then on the client tells, once each time.
	u.interrupt()
	b.until(fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED.String()[len("GAP_REASON_"):])
	u.pass()
	b.until("4 after")
	if n := gapsOfEphemeral(b.seen); n != 2 {
		t.Errorf("%d gaps came in all: %q", n, b.seen)
	}
}
