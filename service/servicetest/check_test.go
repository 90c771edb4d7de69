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
// after frame 3, and a live one that began before frame 4 was sent.
func goodRun() Run {
	var run Run
	for n := uint64(1); n <= 5; n++ {
		run.Publishes = append(run.Publishes, Publish{
			Publisher: "p", Stream: testStream, Content: contentNumber(n),
			Began: Tick(10 * n), Ended: Tick(10*n + 1), Result: Confirmed, Position: at(n),
		})
	}
	run.Publishes = append(run.Publishes,
		Publish{Publisher: "q", Stream: testStream, Content: contentNumber(6), Began: 60},
		Publish{Publisher: "q", Stream: testStream, Content: contentNumber(7), Began: 62, Ended: 63, Result: Refused},
		Publish{Publisher: "q", Stream: testStream, Content: contentNumber(8), Began: 64, Ended: 65, Result: RolledBack},
	)
	frame := func(tick Tick, n uint64) Event {
		return Event{Tick: tick, Kind: SawFrame, Position: at(n), Content: contentNumber(n)}
	}
	run.Subscribers = []Subscriber{
		{Name: "oldest", Stream: testStream, Complete: true, Events: []Event{
			{Tick: 5, Kind: SawSubscribed, Start: StartOldest},
			frame(12, 1), frame(22, 2),
			{Tick: 23, Kind: SawCaughtUp, Position: at(2)},
			frame(32, 3),
			{Tick: 33, Kind: SawEnd, Explained: true},
			{Tick: 34, Kind: SawSubscribed, Start: StartAfter, Asked: at(3), Position: at(3), Resumed: true},
			frame(42, 4), frame(52, 5), frame(61, 6),
		}},
		{Name: "live", Stream: testStream, Complete: true, Events: []Event{
			{Tick: 35, Kind: SawSubscribed, Start: StartLive, Position: at(3)},
			frame(43, 4), frame(53, 5), frame(62, 6),
		}},
	}
	run.Samples = []ListenerSample{{"a", 1}, {"b", 0}}
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
			*live(r) = (*live(r))[:2] // frame 5 was confirmed
		}, []string{"Acked", "Resumable"}},
		"a frame in the middle is lost": {func(r *Run) {
			*live(r) = slices.Delete(*live(r), 2, 3)
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
			e[1], e[2] = e[2], e[1]
		}, []string{"Ordered", "Explicit"}},
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
			(*live(r))[3].Content = contentNumber(5)
			*live(r) = slices.Delete(*live(r), 2, 3)
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
				{Tick: 66, Kind: SawGap, Position: at(6)},
			}
		},
		"a frame stored before a live subscription began": func(r *Run) {
			r.Publishes[3].Began = 34
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
