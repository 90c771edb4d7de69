package servicetest

import (
	"slices"
	"testing"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

var testStream = backlog.StreamName{Channel: "c", Scope: "s"}

func at(sequence uint64) backlog.Position { return backlog.Position{Epoch: 9, Sequence: sequence} }

func contentNumber(n uint64) Content { return Content{byte(n)} }

// goodRun is a run with every kind of event and nothing wrong: five confirmed
// frames, one whose outcome is unknown and which was stored as 6, one refused
// (7) and one rolled back (8); a subscriber from the oldest that reconnects
// after frame 3, and a live one that began before frame 4 was sent. After frames
// 3, 4 and 5 their publisher sent ephemeral ones (23, 24, 25), the first of them
// while the one subscriber was away and the other was not there yet; one that was
// refused (27).
func goodRun() Run {
	var run Run
	for n := uint64(1); n <= 5; n++ {
		run.Publishes = append(run.Publishes, Publish{
			Publisher: "p", Stream: testStream, Content: contentNumber(n),
			Began: Tick(10 * n), Ended: Tick(10*n + 1), Result: Confirmed, Position: at(n),
		})
		if n >= 3 {
			run.Publishes = append(run.Publishes, Publish{
				Publisher: "p", Stream: testStream, Content: contentNumber(20 + n), Ephemeral: true,
				Began: Tick(10*n + 3), Ended: Tick(10*n + 4), Result: Confirmed,
			})
		}
	}
	run.Publishes = append(run.Publishes,
		Publish{Publisher: "q", Stream: testStream, Content: contentNumber(6), Began: 60},
		Publish{Publisher: "q", Stream: testStream, Content: contentNumber(7), Began: 62, Ended: 63, Result: Refused},
		Publish{Publisher: "q", Stream: testStream, Content: contentNumber(8), Began: 64, Ended: 65, Result: RolledBack},
		Publish{Publisher: "q", Stream: testStream, Content: contentNumber(27), Ephemeral: true, Began: 66, Ended: 67, Result: Refused},
	)
	frame := func(tick Tick, n uint64) Event {
		return Event{Tick: tick, Kind: SawFrame, Position: at(n), Content: contentNumber(n)}
	}
	ephemeral := func(tick Tick, n uint64) Event {
		return Event{Tick: tick, Kind: SawEphemeral, Content: contentNumber(n)}
	}
	run.Subscribers = []Subscriber{
		{Name: "oldest", Stream: testStream, Complete: true, Events: []Event{
			{Tick: 5, Kind: SawSubscribed, Start: StartOldest},
			frame(12, 1), frame(22, 2),
			{Tick: 23, Kind: SawCaughtUp, Position: at(2)},
			frame(32, 3),
			{Tick: 33, Kind: SawEnd, Explained: true},
			{Tick: 34, Kind: SawSubscribed, Start: StartAfter, Asked: at(3), Position: at(3), Resumed: true},
			frame(42, 4), ephemeral(44, 24), frame(52, 5), ephemeral(54, 25), frame(61, 6),
		}},
		{Name: "live", Stream: testStream, Complete: true, Events: []Event{
			{Tick: 35, Kind: SawSubscribed, Start: StartLive, Position: at(3)},
			frame(43, 4), ephemeral(44, 24), frame(53, 5), ephemeral(54, 25), frame(62, 6),
		}},
	}
	run.Samples = []ListenerSample{{"a", 1}, {"b", 0}}
	run.Memory = []MemorySample{{"a", 10, 10}, {"b", 9, 10}}
	return run
}

func TestAGoodRunViolatesNothing(t *testing.T) {
	for _, g := range append(slices.Clone(Checks), Unbroken) {
		if v := g.Validate(goodRun()); len(v) != 0 {
			t.Errorf("%s: %v", g.Name, v)
		}
	}
}

// Each check detects its violation, and only checks that are meant to do.
func TestEveryCheckDetectsItsViolation(t *testing.T) {
	// Of live, 0 is Subscribed, 1, 3 and 5 are frames 4 to 6, 2 and 4 ephemeral.
	oldest := func(r *Run) *[]Event { return &r.Subscribers[0].Events }
	live := func(r *Run) *[]Event { return &r.Subscribers[1].Events }
	for name, test := range map[string]struct {
		spoil  func(r *Run)
		broken []string
	}{
		"a rolled back frame arrives": {func(r *Run) {
			*live(r) = append(*live(r), Event{Tick: 70, Kind: SawFrame, Position: at(7), Content: contentNumber(8)})
		}, []string{"Atomic"}},
		"a refused frame arrives": {func(r *Run) {
			*live(r) = append(*live(r), Event{Tick: 70, Kind: SawFrame, Position: at(7), Content: contentNumber(7)})
		}, []string{"Atomic"}},
		"a frame nobody published": {func(r *Run) {
			*live(r) = append(*live(r), Event{Tick: 70, Kind: SawFrame, Position: at(7), Content: contentNumber(99)})
		}, []string{"Atomic"}},
		"a payload was changed": {func(r *Run) {
			(*live(r))[1].Content = contentNumber(99)
		}, []string{"Atomic", "Acked", "Ordered", "Resumable"}},
		"the last frame is lost": {func(r *Run) {
			*live(r) = slices.Delete((*live(r))[:5], 3, 4) // frame 5 was confirmed
		}, []string{"Acked", "Resumable"}},
		"a frame in the middle is lost": {func(r *Run) {
			*live(r) = slices.Delete(*live(r), 3, 4)
		}, []string{"Acked", "Resumable", "Explicit"}},
		"a frame before the subscription is lost": {func(r *Run) {
			*oldest(r) = slices.Delete(*oldest(r), 1, 3) // 1 and 2
			(*oldest(r))[0].Tick = 25                    // after both were sent
		}, []string{"Resumable", "Explicit"}},
		"a frame is lost after a first call that failed": {func(r *Run) {
			*oldest(r) = slices.Delete(*oldest(r), 1, 3) // 1 and 2
			(*oldest(r))[0].Tick = 25                    // after both were sent
			*oldest(r) = slices.Insert(*oldest(r), 0, Event{Tick: 4, Kind: SawEnd, Explained: true})
		}, []string{"Resumable", "Explicit"}},
		"two frames are swapped": {func(r *Run) {
			e := *live(r)
			e[1], e[3] = e[3], e[1]
		}, []string{"Ordered", "Explicit", "Kept"}}, // the ephemeral one is late, too
		"a frame comes twice": {func(r *Run) {
			*live(r) = slices.Insert(*live(r), 2, (*live(r))[1])
		}, []string{"Ordered", "Once"}},
		"a frame comes twice across a resume": {func(r *Run) {
			*oldest(r) = slices.Insert(*oldest(r), 7, Event{Tick: 35, Kind: SawFrame, Position: at(3), Content: contentNumber(3)})
		}, []string{"Ordered", "Once"}},
		"a frame is stored twice": {func(r *Run) {
			*live(r) = append(*live(r), Event{Tick: 70, Kind: SawFrame, Position: at(7), Content: contentNumber(5)})
			r.Subscribers[0].Complete = false
		}, []string{"Once"}},
		"two contents at one position": {func(r *Run) {
			(*live(r))[5].Content = contentNumber(5)
			*live(r) = slices.Delete(*live(r), 3, 5)
			r.Publishes = slices.Delete(r.Publishes, 7, 8) // and no ephemeral frame after 5
			*oldest(r) = slices.Delete(*oldest(r), 10, 11)
		}, []string{"Ordered", "Once", "Explicit"}},
		"a publisher's frames are numbered backwards": {func(r *Run) {
			p := r.Publishes
			p[0], p[1] = p[1], p[0]
		}, []string{"Ordered"}},
		"resumed somewhere else": {func(r *Run) {
			(*oldest(r))[6].Position = at(2)
		}, []string{"Resumable", "Explicit"}},
		"not resumed and not told": {func(r *Run) {
			(*oldest(r))[6].Resumed = false
		}, []string{"Resumable"}},
		"a call ends without a reason": {func(r *Run) {
			(*oldest(r))[5].Explained = false
		}, []string{"Explicit"}},
		"two listener connections": {func(r *Run) {
			r.Samples[0].Connections = 2
		}, []string{"Frugal"}},
		"memory beyond the bound": {func(r *Run) {
			r.Memory[1].Bytes = 11
		}, []string{"Bounded"}},
		"an ephemeral frame is lost": {func(r *Run) {
			*live(r) = slices.Delete(*live(r), 2, 3)
		}, []string{"Kept"}},
		"an ephemeral frame is lost before a subscription ends": {func(r *Run) {
			*live(r) = append(slices.Delete(*live(r), 2, 3), Event{Tick: 70, Kind: SawEnd, Explained: true})
		}, []string{"Kept"}},
		"an ephemeral frame is lost after it was told that others may be": {func(r *Run) {
			*live(r) = slices.Insert(slices.Delete(*live(r), 2, 3), 1, ephemeralGap(36, 3))
		}, []string{"Kept"}},
		"an ephemeral frame comes twice": {func(r *Run) {
			*live(r) = slices.Insert(*live(r), 3, (*live(r))[2])
		}, []string{"Kept"}},
		"ephemeral frames are swapped": {func(r *Run) {
			e := *live(r)
			*live(r) = append(e[:2:2], e[3], e[4], e[2], e[5])
		}, []string{"Kept"}},
		"an ephemeral frame is early": {func(r *Run) {
			e := *live(r)
			e[3], e[4] = e[4], e[3]
		}, []string{"Kept"}},
		"a refused ephemeral frame arrives": {func(r *Run) {
			*live(r) = append(*live(r), Event{Tick: 70, Kind: SawEphemeral, Content: contentNumber(27)})
		}, []string{"Atomic"}},
		"an ephemeral frame nobody published": {func(r *Run) {
			*live(r) = append(*live(r), Event{Tick: 70, Kind: SawEphemeral, Content: contentNumber(5)})
		}, []string{"Atomic", "Kept"}}, // a durable frame was, which it stands in for
		"a gap": {func(r *Run) {
			*live(r) = slices.Insert(*live(r), 1, Event{Tick: 36, Kind: SawGap, Position: at(3), Reason: fanfarev1.GapReason_GAP_REASON_TRIMMED})
		}, []string{"Unbroken"}},
	} {
		t.Run(name, func(t *testing.T) {
			run := goodRun()
			test.spoil(&run)
			var broken []string
			for _, g := range append(slices.Clone(Checks), Unbroken) {
				if len(g.Validate(run)) > 0 {
					broken = append(broken, g.Name)
				}
			}
			if !slices.Equal(broken, test.broken) {
				t.Errorf("broken are %v, want %v", broken, test.broken)
			}
		})
	}
}

// ephemeralGap tells that ephemeral frames may have been missed, after frame n.
func ephemeralGap(tick Tick, n uint64) Event {
	return Event{Tick: tick, Kind: SawGap, Position: at(n), Reason: fanfarev1.GapReason_GAP_REASON_EPHEMERAL_MAYBE_MISSED}
}

// reconnect ends a subscription and resumes it after frame n.
func reconnect(tick Tick, n uint64) []Event {
	return []Event{
		{Tick: tick, Kind: SawEnd, Explained: true},
		{Tick: tick + 2, Kind: SawSubscribed, Start: StartAfter, Asked: at(n), Position: at(n), Resumed: true},
	}
}

// A run may lose what was never promised.
func TestWhatIsNotPromised(t *testing.T) {
	for name, loosen := range map[string]func(r *Run){
		"an unknown outcome that was not stored": func(r *Run) {
			for i := range r.Subscribers {
				e := r.Subscribers[i].Events
				r.Subscribers[i].Events = e[:len(e)-1]
			}
		},
		"a subscriber that left early": func(r *Run) {
			r.Subscribers[1].Complete = false
			r.Subscribers[1].Events = r.Subscribers[1].Events[:2]
		},
		"frames that a gap announced": func(r *Run) {
			r.Subscribers[1].Events = []Event{
				{Tick: 35, Kind: SawSubscribed, Start: StartLive, Position: at(3)},
				{Tick: 44, Kind: SawEphemeral, Content: contentNumber(24)},
				{Tick: 54, Kind: SawEphemeral, Content: contentNumber(25)},
				{Tick: 66, Kind: SawGap, Position: at(6)},
			}
		},
		"ephemeral frames that may have been missed": func(r *Run) {
			r.Subscribers[1].Events[2] = ephemeralGap(44, 4)
		},
		"an ephemeral frame that was under way when a subscription ended": func(r *Run) {
			r.Subscribers[1].Events = slices.Replace(r.Subscribers[1].Events, 2, 3, reconnect(44, 4)...)
		},
		"the last ephemeral frame": func(r *Run) {
			r.Subscribers[1].Events = slices.Delete(r.Subscribers[1].Events, 4, 5)
		},
		"an ephemeral frame that comes once in each subscription": func(r *Run) {
			e := r.Subscribers[1].Events
			r.Subscribers[1].Events = slices.Insert(e, 3, append(reconnect(45, 4), e[2])...)
		},
		"an ephemeral frame that was sent again": func(r *Run) {
			r.Publishes = append(r.Publishes, Publish{Publisher: "p", Stream: testStream, Content: contentNumber(25), Ephemeral: true, Began: 66})
			r.Subscribers[1].Events = append(r.Subscribers[1].Events, Event{Tick: 67, Kind: SawEphemeral, Content: contentNumber(25)})
		},
		"a frame stored before a live subscription began": func(r *Run) {
			r.Publishes[4].Began = 34
			r.Subscribers[1].Events[0].Position = at(4)
			r.Subscribers[1].Events = slices.Delete(r.Subscribers[1].Events, 1, 2)
		},
	} {
		run := goodRun()
		loosen(&run)
		for _, g := range Checks {
			if v := g.Validate(run); len(v) > 0 {
				t.Errorf("%s: %s: %v", name, g.Name, v)
			}
		}
	}
}
