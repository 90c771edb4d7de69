package servicetest

import (
	"slices"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// windowRun is goodRun with a second to a tick and a window around the publishes
// at 40 and 50 s. Another stream is held in it, to which one publish takes until it
// is over, and another subscriber, who stalls, misses everything. live has caught
// up before.
func windowRun() Run {
	run := goodRun()
	held := backlog.StreamName{Channel: "c", Scope: "held"}
	run.Publishes = append(run.Publishes, Publish{
		Publisher: "h", Stream: held, Content: contentNumber(40), Began: 41, Ended: 61, Result: Confirmed, Position: at(1),
	})
	live := &run.Subscribers[1]
	live.Events = slices.Insert(live.Events, 1, Event{Tick: 36, Kind: SawCaughtUp, Position: at(3)})
	run.Subscribers = append(run.Subscribers, Subscriber{Name: "stalled", Stream: testStream, Events: []Event{
		{Tick: 36, Kind: SawSubscribed, Start: StartLive, Position: at(3)},
		{Tick: 37, Kind: SawCaughtUp, Position: at(3)},
	}})
	for i := range run.Publishes {
		p := &run.Publishes[i]
		p.BeganAt, p.EndedAt = Moment(p.Began)*time.Second, Moment(p.Ended)*time.Second
	}
	for _, s := range run.Subscribers {
		for i := range s.Events {
			s.Events[i].At = Moment(s.Events[i].Tick) * time.Second
		}
	}
	run.Windows = []Window{{From: 39 * time.Second, To: 59 * time.Second, Held: []backlog.StreamName{held}, Stalled: []string{"stalled"}}}
	return run
}

func TestIsolated(t *testing.T) {
	const frame4, frame5 = 4, 6 // publishes
	live := func(r *Run) []Event { return r.Subscribers[1].Events }
	for name, test := range map[string]struct {
		change func(r *Run)
		broken int
	}{
		"nothing":                     {func(*Run) {}, 0},
		"no window":                   {func(r *Run) { live(r)[2].At = time.Hour; r.Windows = nil }, 0},
		"a frame comes late":          {func(r *Run) { live(r)[2].At = 47 * time.Second }, 1},
		"a frame does not come":       {func(r *Run) { r.Subscribers[1].Events = slices.Delete(live(r), 4, 5) }, 1},
		"a frame comes just in time":  {func(r *Run) { live(r)[2].At = 46 * time.Second }, 0},
		"a slow subscriber":           {func(r *Run) { live(r)[2].At = time.Minute; r.Subscribers[1].Slow = true }, 0},
		"a publish takes long":        {func(r *Run) { r.Publishes[frame5].EndedAt = 56 * time.Second }, 1},
		"a publish is refused":        {func(r *Run) { r.Publishes[frame5].Result = Refused }, 1},
		"a publish is not answered":   {func(r *Run) { r.Publishes[frame4].Result, r.Publishes[frame4].EndedAt = Unknown, 0 }, 1},
		"a publish is rolled back":    {func(r *Run) { r.Publishes[frame5].Result = RolledBack }, 0},
		"an ephemeral one takes long": {func(r *Run) { r.Publishes[frame4+1].EndedAt = 58 * time.Second }, 1},
		"the stream is not held":      {func(r *Run) { r.Windows[0].Held = nil }, 1},
		"a subscriber is not stalled": {func(r *Run) { r.Windows[0].Stalled = nil }, 2},
		"a late one began late":       {func(r *Run) { r.Publishes[frame5].BeganAt, r.Publishes[frame5].EndedAt = 55*time.Second, time.Hour }, 0},
		"a subscription ends": {func(r *Run) {
			r.Subscribers[1].Events = append(live(r)[:2:2], Event{At: 45 * time.Second, Kind: SawEnd, Explained: true})
		}, 0},
		"a subscription has not caught up after a gap": {func(r *Run) {
			r.Subscribers[1].Events = append(live(r)[:2:2], Event{At: 38 * time.Second, Kind: SawGap, Reason: fanfarev1.GapReason_GAP_REASON_TRIMMED})
		}, 0},
	} {
		run := windowRun()
		test.change(&run)
		if v := isolated(run); len(v) != test.broken {
			t.Errorf("%s: %d violations, want %d: %q", name, len(v), test.broken, v)
		}
	}
}
