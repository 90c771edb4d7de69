package bench

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/cmd/fanfare/internal/load"
)

// A storm or a replay counts only if every subscriber got everything, in order,
// once, and was told so.
func TestCrowdChecksWhatArrives(t *testing.T) {
	now := time.Now()
	subscribed := func(m *member) { m.Subscribed(0, now) }
	frames := func(first, last uint64) func(*member) {
		return func(m *member) { m.Frames(int(last-first+1), first, last, 100, now) }
	}
	notice := func(kind load.NoticeKind) func(*member) { return func(m *member) { m.Notice(kind, now) } }
	caughtUp := notice(load.CaughtUp)
	for _, c := range []struct {
		name  string
		calls []func(*member)
		// want is "complete", "waiting" or part of an error.
		want string
	}{
		{"everything", []func(*member){subscribed, frames(1, 2), frames(3, 5), caughtUp}, "complete"},
		{"not told yet", []func(*member){subscribed, frames(1, 5)}, "waiting"},
		{"some missing", []func(*member){subscribed, frames(1, 4), caughtUp}, "CaughtUp came after frame 4 of 5"},
		{"one twice", []func(*member){subscribed, frames(1, 2), frames(2, 5)}, "frame 2 came after frame 2"},
		{"one left out", []func(*member){subscribed, frames(1, 2), frames(4, 5)}, "frame 4 came after frame 2"},
		{"one too many", []func(*member){subscribed, frames(1, 6)}, "nobody published one after 5"},
		{"before Subscribed", []func(*member){frames(1, 5)}, "before Subscribed"},
		{"in the middle", []func(*member){func(m *member) { m.Subscribed(2, now) }}, "begins after frame 2"},
		{"a gap", []func(*member){subscribed, notice(load.Gap)}, "a gap"},
		{"a status", []func(*member){subscribed, func(m *member) { m.End(errors.New("slow")) }}, "a subscription ended: slow"},
		{"an end", []func(*member){subscribed, func(m *member) { m.End(nil) }}, "the status is OK"},
		{"an end of our own", []func(*member){subscribed, func(m *member) { m.End(load.ErrClosed) }}, "waiting"},
	} {
		crowd := &crowd{frames: 5, members: make([]member, 1), arrived: make(chan struct{}), failed: make(chan error, 1)}
		crowd.missing.Store(1)
		m := &crowd.members[0]
		m.crowd = crowd
		for _, call := range c.calls {
			call(m)
		}
		got := "waiting"
		select {
		case err := <-crowd.failed:
			got = err.Error()
		case <-crowd.arrived:
			got = "complete"
		default:
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// The bound is the server's, and told before subscriptions are refused one by one.
func TestCrowdsAreSpreadOverConnections(t *testing.T) {
	_, err := gather(t.Context(), &Server{Address: "127.0.0.1:1"}, 2, 2*maxStreamsPerConnection+1, 0, liveRequests("c", 1))
	if !errors.Is(err, errCrowdSplit) {
		t.Errorf("20,001 subscriptions on two connections: %v", err)
	}
}

// Answers come in any order; every number must have been given, once.
func TestNumberingOfAnswers(t *testing.T) {
	for _, c := range []struct {
		sequences []uint64
		right     bool
	}{
		{nil, true}, {[]uint64{1}, true}, {[]uint64{2, 1, 3}, true},
		{[]uint64{2}, false}, {[]uint64{1, 3}, false}, {[]uint64{1, 2, 2}, false}, {[]uint64{1, 1, 3}, false}, {[]uint64{0, 1}, false},
	} {
		var n numbering
		for _, s := range c.sequences {
			n.add(s)
		}
		if err := n.check(); (err == nil) != c.right {
			t.Errorf("%s: %v", fmt.Sprint(c.sequences), err)
		}
	}
}
