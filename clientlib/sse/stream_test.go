package sse_test

import (
	"fmt"
	"net/http"
	"testing"
)

const one = "/v1/streams/orders/1"

// caughtUp is the event that says so.
func caughtUp(scope, position string) string {
	return fmt.Sprintf(`fanfare.caught_up {"stream":{"channel":"orders","scope":%q},"position":%q}`, scope, position)
}

func TestABrowserGetsWhatIsStoredAndWhatIsPublished(t *testing.T) {
	e := start(t, nil)
	first := e.publish("1", "a", "b\nc\n", "")
	b := e.open(one)
	b.expect("a", "b\nc\n", "", caughtUp("1", first.String()))
	if b.id() != first.String() {
		t.Errorf("the id is %s, want %s", b.id(), first)
	}
	last := e.publish("1", "d")
	b.expect("d")
	if b.id() != last.String() {
		t.Errorf("the id is %s, want %s", b.id(), last)
	}
}

func TestStarts(t *testing.T) {
	e := start(t, nil)
	second := e.publish("1", "a", "b")
	fifth := e.publish("1", "c", "d", "e")
	caught := caughtUp("1", fifth.String())
	for _, c := range []struct {
		query, id string
		want      []string
	}{
		{"", "", []string{"a", "b", "c", "d", "e", caught}},
		{"?from=oldest", "", []string{"a", "b", "c", "d", "e", caught}},
		{"?from=live", "", []string{caught}},
		{"?last=2", "", []string{"d", "e", caught}},
		{"?last=0", "", []string{caught}},
		{"?last=100", "", []string{"a", "b", "c", "d", "e", caught}},
		{"?after=" + second.String(), "", []string{"c", "d", "e", caught}},
		{"?after=" + fifth.String(), "", []string{caught}},
		{"?after=" + second.String(), fifth.String(), []string{caught}},
		{"?from=live", second.String(), []string{"c", "d", "e", caught}},
		{"?last=1", second.String(), []string{"c", "d", "e", caught}},
	} {
		var headers []string
		if c.id != "" {
			headers = []string{"Last-Event-ID", c.id}
		}
		b := e.open(one+c.query, headers...)
		b.expect(c.want...)
		b.leave()
	}
}

func TestAClosedStreamEndsTheConnectionAndItsPositionIsFinal(t *testing.T) {
	e := start(t, nil)
	last := e.publish("1", "a", "b")
	b := e.open(one)
	b.until("caught_up")
	e.closeStream("1")
	b.expect(fmt.Sprintf(`fanfare.closed {"stream":{"channel":"orders","scope":"1"},"last":%q}`, last))
	b.ends()
	if got := e.status(one, "Last-Event-ID", b.id()); got != http.StatusNoContent {
		t.Errorf("the position of a closed stream was answered %d, want 204", got)
	}
}
