package servicetest

import (
	"testing"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// The order of a publisher's frames of both kinds, and what a Gap excuses: frames
// that had been published when it came, until one has come that was not.
func TestOrderOfKinds(t *testing.T) {
	publish := func(publisher string, began Tick, n uint64) Publish {
		return Publish{
			Publisher: publisher, Stream: testStream, Content: contentNumber(n), Ephemeral: n > 20,
			Began: began, Ended: began + 1, Result: Confirmed,
		}
	}
	publishes := []Publish{
		publish("p", 10, 1), publish("p", 15, 21), publish("p", 20, 2), publish("q", 25, 6),
		publish("p", 30, 23), publish("p", 40, 4), publish("p", 50, 25),
	}
	gap := func(tick Tick, reason fanfarev1.GapReason) Event {
		return Event{Tick: tick, Kind: SawGap, Reason: reason}
	}
	missed, changed := fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED, fanfarev1.GapReason_GAP_REASON_EPOCH_CHANGED
	frame := func(tick Tick, n uint64) Event {
		if n > 20 {
			return Event{Tick: tick, Kind: SawEphemeral, Content: contentNumber(n)}
		}
		return Event{Tick: tick, Kind: SawFrame, Position: at(n), Content: contentNumber(n)}
	}
	for name, test := range map[string]struct {
		events     []Event
		violations int
	}{
		"in order":                          {[]Event{frame(60, 1), frame(61, 21), frame(62, 2), frame(63, 6), frame(64, 23), frame(65, 4), frame(66, 25)}, 0},
		"late":                              {[]Event{frame(60, 1), frame(61, 2), frame(62, 21)}, 1},
		"late, and later than another's":    {[]Event{frame(60, 21), frame(61, 2), frame(62, 4), frame(63, 23)}, 1},
		"after another publisher's":         {[]Event{frame(60, 1), frame(61, 6), frame(62, 21), frame(63, 2)}, 0},
		"early":                             {[]Event{frame(60, 21), frame(61, 23), frame(62, 2)}, 1},
		"late after a gap":                  {[]Event{gap(60, missed), frame(61, 1), frame(62, 2), frame(63, 21)}, 0},
		"late after another gap":            {[]Event{gap(60, changed), frame(61, 1), frame(62, 2), frame(63, 21)}, 0},
		"late, and a gap too late":          {[]Event{frame(60, 1), frame(61, 2), frame(62, 21), gap(63, missed)}, 1},
		"late, and a gap between":           {[]Event{frame(60, 1), frame(61, 2), gap(62, missed), frame(63, 21)}, 0},
		"late after one since the gap":      {[]Event{frame(12, 1), gap(22, missed), frame(42, 4), frame(43, 23)}, 1},
		"late of before the gap, too":       {[]Event{frame(12, 1), gap(22, missed), frame(42, 4), frame(43, 21)}, 1},
		"late before one since the gap":     {[]Event{frame(12, 1), gap(22, missed), frame(23, 2), frame(24, 21), frame(42, 4)}, 0},
		"late in the subscription after it": {append([]Event{frame(60, 1), frame(61, 2)}, append(reconnect(62, 2), frame(65, 21))...), 0},
	} {
		events := append([]Event{{Tick: 59, Kind: SawSubscribed, Start: StartOldest}}, test.events...)
		events[0].Tick = min(59, events[1].Tick-1)
		run := Run{Publishes: publishes, Subscribers: []Subscriber{{Name: "s", Stream: testStream, Events: events}}}
		if v := kept(run); len(v) != test.violations {
			t.Errorf("%s: %q, want %d violations", name, v, test.violations)
		}
	}
}
